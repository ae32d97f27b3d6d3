"""The pending triggers, how many of them the next group takes, and the ids that it gives them.

An input that held rows of an erased person is not read again while it is the same: a rewind must not bring them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors.environment import ErasedInput
from drainmark.jobs.operators.sources.kafka_topic import has_records_of
from drainmark.jobs.protocol.failure_policy import GroupSize
from drainmark.jobs.protocol.records.triggers import DIGESTS, FILE, SLICES, Trigger, kind_of, slices_of
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.replacement import one_of_each
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.jobs.runtime.messages import resume_command, skip_command
from drainmark.resources.erasure.notes import Blocked, BlockedInput, blocked

if TYPE_CHECKING:
    from drainmark.resources.registry.registry import Registry


_MOST_ERASED = 200
"""Pending triggers that are looked at behind an input of an erased person: a remedy must fit into a command line."""

_MOST_NAMED = 20
"""Files of slices that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest size of a group.

    Attributes:
        triggers: at most, per group.
        size_bytes: at most, per group; one trigger is always taken.
    """

    triggers: int = 2000
    size_bytes: int = 256 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Backlog:
    """The pending triggers of a region, which one run takes group by group.

    Attributes:
        size: of the next group.
        done: number of triggers that the run has published.
    """

    registry: Registry
    region: str
    limits: Limits
    size: GroupSize = field(default_factory=lambda: GroupSize(1, 1))
    done: int = 0

    @property
    def halt_requested(self) -> str | None:
        """Return the reason why the region should halt once no group is in work; None if nobody asked for a halt."""
        requested: str | None = self.registry.region_info(self.region).halt_requested
        return requested

    def next_group(self, in_hand: Sequence[Trigger], most: int | None) -> Sequence[Trigger]:
        """Return the triggers of the next group; none if the run may not take any.

        Args:
            in_hand: triggers of groups in work; they are not committed, so the registry still has them as pending.
            most: number of triggers that the run may take; None for all.
        """
        count = self.size.current
        if most is not None:
            count = min(count, most - self.done - len(in_hand))
        if count <= 0:
            return []
        after = max((trigger.order_index for trigger in in_hand), default=0)
        return one_of_each(self.registry.triggers.pending(self.region, count, self.limits.size_bytes, after=after))

    def next_uri(self) -> str | None:
        """Return the uri of the next pending trigger, even if the run may not take it."""
        pending = self.registry.triggers.pending(self.region, 1)
        return pending[0].uri if pending else None

    def published(self, triggers: int) -> None:
        """Note that a group with this number of triggers is published: the next group may be larger."""
        self.size = self.size.after_success()
        self.done += triggers

    def split(self) -> None:
        """Note that a group failed: its triggers come again in groups of one."""
        self.size = self.size.after_failure()


@dataclass(slots=True)
class IdAssignment:
    """The assignment of ids to triggers, for one run."""

    owner: RegionOwner
    _read_before: Mapping[int, Mapping[str, str]] | None = None
    _erased: Blocked | None = None

    def take(self, count: int = 1) -> int:
        """Take `count` consecutive ids for the caller; return the first."""
        return self.owner.outside.registry.progress.take_ids(self.owner.region, self.owner.epoch, count)

    def assign(self, pending: Sequence[Trigger]) -> tuple[Assigned, ...]:
        """Return triggers with new ids; slices that were read before a rewind also get the digests of that read.

        Raises:
            ErasedInput: one held rows of an erased person, and is as it was.
        """
        self._refuse_erased(pending)
        first = self.take(len(pending))
        self.remind(pending)
        return tuple(Assigned(sequence_id=first + i, trigger=trigger) for i, trigger in enumerate(pending))

    def remind(self, pending: Sequence[Trigger]) -> None:
        """Add the digests of slices with states that a rewind withdrew to the triggers that read them again."""
        if not any(SLICES in trigger.identity for trigger in pending):
            return
        if self._read_before is None:  # no rewind happens during a run
            rows = ((row.trigger_order, row.trigger_identity or {}) for row in self.owner.history.withdrawn)
            self._read_before = {order: identity.get(DIGESTS) or {} for order, identity in rows if order is not None}
        for trigger in pending:
            trigger.digests.update(self._read_before.get(trigger.order_index, {}))

    def _refuse_erased(self, pending: Sequence[Trigger]) -> None:
        if self._erased is None:  # an erasure needs the claim, so none comes during a run
            self._erased = blocked(self.owner.outside.store.checkpoint.folder)
        if (known := self._erased).marks and (found := self._blocked(known, pending)):
            region, first = found[0].region, found[0].uri
            ahead = self.owner.outside.registry.triggers.pending(region, _MOST_ERASED, after=pending[-1].order_index)
            found += self._blocked(known, ahead)  # so that the operator can mend all of them at once
            uris = list(dict.fromkeys(each.uri for each in found))
            others = f" and {len(uris) - 1} other pending input{'s' * (len(uris) > 2)}" if len(uris) > 1 else ""
            files = [file for each in found for file in _files_of(known.find(each.uri, each.identity))]
            named = f" (by {', '.join(files[:_MOST_NAMED])})" if files else ""
            msg = f"{first}{others} held rows of a person who was erased since, and would bring them back{named}"
            what, resume, skip = "it" if len(uris) == 1 else "them", resume_command(region), skip_command(region, *uris)
            # A slice gives what was cut, or halts.
            remedy, commands = f"pass over {what}, with all rows: {skip}", [skip]
            if all(kind_of(each.identity) == FILE for each in found):
                remedy = f"take these rows out of {what}, and {resume}; or pass over {what}: {skip}"
                commands = [resume, skip]
            raise ErasedInput(msg, remedy=remedy, commands=commands, triggers=tuple(found), trigger=first)

    def _blocked(self, known: Blocked, pending: Sequence[Trigger]) -> list[Trigger]:
        """Return the triggers whose input is as it was when a person was erased from what it gave."""
        found = [each for each in pending if known.find(each.uri, each.identity) or _is_part_of(each, known.slices)]
        files = [each for each in found if kind_of(each.identity) == FILE]
        gone, changed = self.owner.outside.inputs.lost([(each.uri, each.identity) for each in files])
        return [each for each in found if each.uri not in (*gone, *changed)]  # of the others the reader tells


def _files_of(known: BlockedInput | None) -> Sequence[str]:
    return known.files if known is not None else ()


def _is_part_of(trigger: Trigger, known: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a slice has records of others that were cut with other bounds: `resume --accept-loss` cuts anew."""
    pieces = [(name, piece) for name in slices_of(trigger.identity) if (piece := slice_of(trigger.identity, name))]
    return any(
        (other := slice_of(identity, name)) is not None and has_records_of(piece, other)
        for name, piece in pieces
        for identity in known
    )
