"""OpenLineage events of the steps of a region, if the setting `openlineage_url` names a receiver.

A group's run begins with its ids and is complete when its tables show it. What a group or a rewind did is told from
its rows, after the newest id that the receiver has, which the registry keeps: so a later run tells what a process that
died, or a receiver that was not there, left untold. Starts, failures and ends without a commit are told at most once.
An owner that was fenced off tells nothing more, since the next one does.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import Fenced
from drainmark.jobs.errors.environment import extra
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.id_runs import Ids
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.orchestration.exporters.event_sender import END_SECONDS, SEND_SECONDS, EventSender, Position
from drainmark.orchestration.exporters.known_lineage import (
    KnownLineage,
    known_lineage,
    read_lineage,
    write_lineage,
)

if TYPE_CHECKING:
    from drainmark.jobs.runtime.analysis.blueprint import Blueprint
    from drainmark.jobs.runtime.outside import Outside
    from drainmark.orchestration.exporters.openlineage_events import Events
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable

CURSOR = "@openlineage"
"""Name of the registry's cursor that holds a `Position`, by ids; no operator can have it."""

IDS_AT_ONCE = 4096
"""A step reads the rows of so many untold ids, or of one group: twice the ids of a group, so that it catches up."""

_SAVE_SECONDS = 5.0

logger = logging.getLogger(__name__)


def lineage_of(workplace: Workplace, outside: Outside, blueprint: Blueprint | None) -> Lineage:
    """Return what tells the receiver that the settings name of a run.

    Args:
        blueprint: of the code; None if the caller has no code.

    Raises:
        UsageError: the extra `openlineage` is not installed.
    """
    with extra("openlineage", "openlineage_url is set, and openlineage-python is not installed"):
        from openlineage.client import event_v2  # noqa: F401
    return Lineage(workplace=workplace, outside=outside, blueprint=blueprint)


@dataclass(slots=True, kw_only=True)
class Lineage:
    """The lineage of a region, told while one process works on it."""

    workplace: Workplace
    outside: Outside
    blueprint: Blueprint | None
    _told: _Told | None = None

    def follow(self, step: str, numbers: Mapping[str, Any]) -> None:
        """Tell of a step of the protocol."""
        try:
            if step == "claim":
                self._told = self._claimed(numbers["epoch"])
            elif self._told is not None and (tell := _STEPS.get(step)) is not None:
                tell(self._told, numbers)
        except Fenced:
            if self._told is not None:
                self._told.sender.flush(0)
            self._told = None

    def _claimed(self, epoch: int) -> _Told:
        from drainmark.orchestration.exporters.openlineage_events import Events, http_sender

        settings, region = self.workplace.settings, self.outside.store.region
        checkpoint, registry = self.outside.store.checkpoint, self.outside.registry
        cursor = registry.load_cursor(region, CURSOR)
        if cursor is None:  # states from before the setting are no news
            cursor = str(checkpoint.history().next_id - 1)
            registry.save_cursor(region, CURSOR, cursor, epoch=epoch)
        if self.blueprint is not None:
            known = known_lineage(self.workplace, self.blueprint)
            write_lineage(self.workplace.home, region, known)
        else:
            known = read_lineage(self.workplace.home, region)
        identity = checkpoint.identity() or ""
        send = http_sender(settings.openlineage_url, settings.openlineage_api_key, SEND_SECONDS)
        position = Position.of(cursor)
        told = _Told(
            workplace=self.workplace,
            outside=self.outside,
            events=Events(identity=identity, namespace=settings.openlineage_namespace, region=region),
            known=known,
            epoch=epoch,
            sender=EventSender(send=send, position=position),
            _queued=position.taken,
            _saved=position,
        )
        told.sender.left_out = told._leave_out
        return told


@dataclass(slots=True, kw_only=True)
class _Told:
    """What one owner of a region tells.

    Attributes:
        open: first and last ids of the groups whose runs have begun and have not ended.
        has_failed: a failure was told since the last begin.
        is_behind: so many rows were untold that not all are in the queue.
        left_out: ids of groups and rewinds whose events the receiver does not take.
    """

    workplace: Workplace
    outside: Outside
    events: Events
    known: KnownLineage
    epoch: int
    sender: EventSender
    _queued: int
    _saved: Position
    open: dict[int, int] = field(default_factory=dict)
    has_failed: bool = False
    is_behind: bool = False
    left_out: list[int] = field(default_factory=list)
    _saved_at: float = field(default_factory=time.monotonic)
    _failures: int = 0

    # --- steps ------------------------------------------------------------------------------------------------------

    def begin(self, numbers: Mapping[str, Any]) -> None:
        from drainmark.orchestration.exporters.openlineage_events import named_input, named_output

        first, last = numbers["first_id"], numbers["last_id"]
        self.open[first] = last
        self.has_failed = False
        self._put(
            "START",
            first,
            inputs=[named_input(self.known.inputs[each]) for each in self.known.starts if each in self.known.inputs],
            outputs=[named_output(each.dataset) for each in self.known.outputs if each.columns is not None],
            told=self.events.group(self.epoch, first, last),
        )

    def group(self, numbers: Mapping[str, Any]) -> None:
        self._tell_through(numbers["last_id"], numbers.get("versions") or {})

    def failed(self, numbers: Mapping[str, Any]) -> None:
        self._end_open("FAIL", numbers["error"])
        self.has_failed = True

    def input(self, numbers: Mapping[str, Any]) -> None:
        self._end_open("ABORT", numbers["error"])

    def halt(self, numbers: Mapping[str, Any]) -> None:
        if not self.outside.store.checkpoint.history().is_halt_asked:
            self._fail(numbers["reason"])

    def release(self, numbers: Mapping[str, Any]) -> None:
        history = self.outside.store.checkpoint.history()
        untold = min((row.first_id for row in history.unpublished), default=history.next_id)
        self._tell_through(untold - 1)
        if numbers["outcome"] == Outcome.FAILED.value:
            self._fail(str((history.last_error or {}).get("message", "")))
        self._end_open("ABORT", "")
        self.sender.flush(END_SECONDS)
        self._save()
        self._tell_losses(untold - 1)

    # --- events that rows do not have -------------------------------------------------------------------------------

    def _put(self, kind: str, first: int, **parts: Any) -> None:
        moment = dt.datetime.now(dt.UTC)
        self.sender.put(partial(self.events.event, kind, (self.epoch, first), moment, **parts))

    def _fail(self, message: str) -> None:
        """Tell a failure once: of the groups in hand, or of the attempt if it has no group."""
        from drainmark.orchestration.exporters.openlineage_events import failure

        if self.open:
            self._end_open("FAIL", message)
        elif not self.has_failed:
            self._put("FAIL", 0, told=failure(message))
        self.has_failed = True

    def _end_open(self, kind: str, message: str) -> None:
        from drainmark.orchestration.exporters.openlineage_events import failure

        told = failure(message) if message else {}
        for first, last in sorted(self.open.items()):
            self._put(kind, first, told={**told, **self.events.group(self.epoch, first, last)})
        self.open.clear()

    # --- events of rows ---------------------------------------------------------------------------------------------

    def _tell_through(self, last: int, versions: Mapping[str, int] | None = None) -> None:
        """Tell of rows up to an id of which the receiver was not told: of all, unless they are very many.

        Args:
            versions: by table, its Delta version after the row with this id.
        """
        if self.sender.failures != self._failures:
            self._failures, self._queued = self.sender.failures, self.sender.position.taken
        self.is_behind = self._queued < last
        if self.is_behind and not self.sender.is_resting and not self.sender.is_half_full:
            self.is_behind = not self._queue_through(last, versions or {})
        self.open = {first: end for first, end in self.open.items() if first > last}
        if time.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self._save()

    def _queue_through(self, last: int, versions: Mapping[str, int]) -> bool:
        """Put the next untold groups up to an id into the queue; return whether these are all."""
        groups, through = _untold(self.outside.store.checkpoint, self._queued, last)
        for group in groups:
            number = group[-1].sequence_id
            make = self._event_of(group, versions if number == last else {})
            if not self.sender.put_numbered(make, number, after=self._queued):
                return False
            self._queued = number
            self._complete(group[0].sequence_id, number)
        return through >= last

    def _complete(self, first: int, last: int) -> None:
        """End the runs of the further groups that a commit joined; the event of its row ends the first one's."""
        for other in [each for each in self.open if first < each <= last]:
            self._put("COMPLETE", other, told=self.events.group(self.epoch, first, last))

    def _event_of(self, group: Sequence[CheckpointRow], versions: Mapping[str, int]) -> Callable[[], Any]:
        from drainmark.orchestration.exporters.datasets import output_of
        from drainmark.orchestration.exporters.row_events import group_event, rewind_event, tables_of

        row = group[-1]
        if row.kind is not RowKind.REWIND:
            return partial(group_event, self.events, self.known, group, versions)
        since = self.outside.store.checkpoint.rows(row.detail["to"] + 1, row.sequence_id)
        outputs = [output_of(self.workplace, table) for table in tables_of(row)]
        return partial(rewind_event, self.events, row, since, outputs)

    def _save(self) -> None:
        """Keep in the registry which rows the receiver has; else they are told again, and are the same then."""
        self._saved_at, position = time.monotonic(), self.sender.position
        if position != self._saved:
            self.outside.registry.save_cursor(self.events.region, CURSOR, str(position), epoch=self.epoch)
            self._saved = position

    def _leave_out(self, number: int, why: str) -> None:
        """Note an event that is not sent again; log the first one at once, since this process may die."""
        self.left_out.append(number)
        if len(self.left_out) == 1:
            region = self.events.region
            shown = f"drainmark history {shell_word(region)}"
            told = "%s: the OpenLineage event of id %d is left out: %s (see the receiver's log; what it lacks: %s)"
            logger.warning(told, region, number, why, shown)

    def _tell_losses(self, last: int) -> None:
        taken = self.sender.position.taken
        late = taken < (last if self.sender.is_resting or self.is_behind else self._queued)
        if self.sender.lost or late:
            untold = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in Ids.of(self.left_out).runs())
            told = f", with those of ids {untold}" if untold else ""
            later = f"; what is above id {taken} is sent by the next run" if late else ""
            logger.warning(
                "%s: the receiver of OpenLineage events did not take all: %d are lost%s%s (%s)",
                self.events.region,
                self.sender.lost,
                told,
                later,
                self.sender.why,
            )


def _untold(checkpoint: CheckpointTable, after: int, last: int) -> tuple[list[Sequence[CheckpointRow]], int]:
    """Return the next groups after an id, and the id up to which their rows were read: a part, if they are many."""
    from drainmark.orchestration.exporters.row_events import groups_of

    groups: list[Sequence[CheckpointRow]] = []
    through = after
    while not groups and through < last:
        through = min(through + IDS_AT_ONCE, last)
        groups = list(groups_of(checkpoint.rows(after + 1, through)))
    return groups, through


_STEPS: Mapping[str, Callable[[_Told, Mapping[str, Any]], None]] = {
    "begin": _Told.begin,
    "group": _Told.group,
    "progress": lambda told, numbers: told._tell_through(numbers["id"]),
    "retract": lambda told, numbers: told._tell_through(numbers["sequence_id"]),
    "rewind": lambda told, numbers: told._tell_through(numbers["rewind_id"]),
    "failed": _Told.failed,
    "input": _Told.input,
    "halt": _Told.halt,
    "release": _Told.release,
}
