"""The results of all stages for a group, combined into the commit of one row of the checkpoint table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drainmark.jobs.protocol.records.manifest import FeedTaken, Sent
from drainmark.jobs.protocol.records.triggers import AGAIN, Trigger
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.stages.channels.channel_group import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A region at one moment, as one row will commit it.

    Attributes:
        groups: the groups with ids that become committed, in order; none if stages only catch up.
        snapshot: the parts that stages have finished of ids committed now or before, and the batches in flight.
        restarts: by stage, how often it began a batch again since the last row.
    """

    groups: tuple[Group, ...]
    snapshot: Snapshot
    restarts: Mapping[str, int]

    @property
    def is_in_flight(self) -> bool:
        """Are stages at different ids, with batches in flight?"""
        return bool(self.snapshot.overtaken)


def replaces(triggers: Iterable[Trigger]) -> bool:
    """Does a trigger withdraw the rows of an earlier id? All stages must have done that id, and then this one: later
    rows of the earlier id would not be withdrawn any more."""
    return any(AGAIN in trigger.identity for trigger in triggers)


def joinable(groups: Iterable[Group]) -> Sequence[Group]:
    """Return the first groups that one row can commit: ids without a gap; a group that replaces others is alone."""
    found: list[Group] = []
    for group in groups:
        is_alone = replaces(group.triggers)
        if found and (is_alone or group.first_id != found[-1].last_id + 1):
            break
        found.append(group)
        if is_alone:
            break
    return found


def joined(group: Group, moment: Moment, every_id: Mapping[str, str]) -> StagedGroup:
    """Return all parts of a moment as one group.

    Args:
        group: the group to commit; without members if stages only catch up.
        every_id: by name of a derived table that needs every id, even without rows, the stage that writes it.
    """
    staged: list[StagedGroup] = [part.made for part in moment.snapshot.parts]
    parts_of: dict[str, list[StagedGroup]] = defaultdict(list)
    for part in moment.snapshot.parts:
        parts_of[part.stage].append(part.made)
    return StagedGroup(
        group=group,
        rows_in=_summed(each.rows_in for each in staged),
        rows_quarantined=_summed(each.rows_quarantined for each in staged),
        unmet=_unmet(each.unmet for each in staged),
        refused=_said(each.refused for each in staged),
        tables=_tables(staged),
        lookups={table: version for each in staged for table, version in each.lookups.items()},
        feeds=_feeds(staged),
        sent=_sent(staged),
        process_seconds=max((sum(each.process_seconds for each in of) for of in parts_of.values()), default=0.0),
        drain_seconds=max((sum(each.drain_seconds for each in of) for of in parts_of.values()), default=0.0),
        upserts=tuple(dict.fromkeys(name for each in staged for name in each.upserts)),
        stages=moment.snapshot.through if moment.is_in_flight else {},
        spans={
            table: tuple((each.group.first_id, each.group.last_id) for each in parts_of[stage])
            for table, stage in every_id.items()
            if parts_of[stage]
        },
        restarts={name: count for name, count in moment.restarts.items() if count},
    )


def _tables(staged: Sequence[StagedGroup]) -> dict[str, StagedTable]:
    """Return, by table, all staged files in order, and the newest image, which includes the older ones."""
    found: dict[str, StagedTable] = {}
    for each in staged:
        for name, table in each.tables.items():
            before = found.get(name, StagedTable(files=()))
            found[name] = StagedTable(files=(*before.files, *table.files), image=table.image or before.image)
    return found


def _summed(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _unmet(counts: Iterable[Mapping[int, Mapping[str, int]]]) -> dict[int, dict[str, int]]:
    """Join the counts that stages have made of their own expectations."""
    found: dict[int, dict[str, int]] = {}
    for number, unmet in ((number, unmet) for each in counts for number, unmet in each.items()):
        found.setdefault(number, {}).update(unmet)
    return found


def _said(remarks: Iterable[Mapping[int, str]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for each in remarks:
        for number, text in each.items():
            found[number] = f"{found[number]}; {text}" if number in found else text
    return found


def _feeds(staged: Sequence[StagedGroup]) -> dict[str, FeedTaken]:
    found: dict[str, FeedTaken] = {}
    for name, taken in ((name, taken) for each in staged for name, taken in each.feeds.items()):
        before = found.get(name, FeedTaken())
        found[name] = FeedTaken(
            files=before.files + taken.files,
            rows=before.rows + taken.rows,
            bad=before.bad + taken.bad,
            error=taken.error or before.error,
        )
    return found


def _sent(staged: Sequence[StagedGroup]) -> dict[str, Sent]:
    found: dict[str, Sent] = {}
    for name, sent in ((name, sent) for each in staged for name, sent in each.sent.items()):
        before = found.get(name, Sent())
        found[name] = Sent(rows=before.rows + sent.rows, error=sent.error or before.error)
    return found
