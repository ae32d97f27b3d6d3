"""`doctor --repair` for tables: undoes changes by others, under a claim, with one commit for each table.

A sink outside Delta that is ahead of the checkpoint table, or behind it, is brought to what its history says.

A table that has lost rows of ids stays unchanged, and its region is halted: `reset` below these ids restores the table,
and the files behind them are processed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import RewindRefused, SplitBrain, UsageError
from drainmark.jobs.protocol.history import target_before
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.repairs import Repair, SinkRepair, TableRepair
from drainmark.jobs.regions.formatting import counted, said_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.errors.environment import FilesLost
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner
    from drainmark.resources.checkpoints.region_store import RegionTables

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRepair:
    """The repairs of one region's tables, in the order in which they are done.

    Attributes:
        checkpoint: repair of its checkpoint table, before all others: only then are the other repairs known.
        target: id below all lost ids; None if no id is lost.
    """

    region: str
    checkpoint: TableRepair | None = None
    tables: tuple[Repair, ...] = ()
    target: int | None = None

    @property
    def steps(self) -> tuple[Repair, ...]:
        return (*((self.checkpoint,) if self.checkpoint else ()), *self.tables)

    @property
    def possible(self) -> tuple[Repair, ...]:
        """Return the repairs that restore a table completely."""
        return tuple(repair for repair in self.tables if not repair.lost)

    @property
    def is_of_use(self) -> bool:
        """Say whether anything can be repaired."""
        return bool(self.possible) or (self.checkpoint is not None and not self.checkpoint.lost)

    @property
    def remedy(self) -> str | None:
        """Return the action that brings back lost ids, None if no id is lost."""
        if self.checkpoint is not None and self.checkpoint.lost:
            return f"restore {self.checkpoint.table} from a backup"
        if self.target is None:
            return None
        return f"drainmark reset {self.region} --to {self.target}, then run: the lost rows are processed again"

    def to_json(self) -> dict[str, Any]:
        return {"region": self.region, "tables": [step.to_json() for step in self.steps], "remedy": self.remedy}


def repair_lines(repair: RegionRepair) -> Iterator[str]:
    """Yield the repairs of a region, planned or done, as lines for people."""
    sinks = [step for step in repair.tables if isinstance(step, SinkRepair)]
    tables = [step for step in repair.steps if isinstance(step, TableRepair)]
    if tables:
        yield f"{repair.region}: {said_of(len(tables), 'table', 'were', 'was')} changed by others"
    for table in tables:
        yield f"  {table.table}:"
        yield from (f"    {line}" for line in _step_lines(table))
    if sinks:
        which = said_of(len(sinks), "sink", "outside Delta are", "outside Delta is")
        yield f"{repair.region}: {which} not where the checkpoint table is"
    for sink in sinks:
        yield f"  {sink.table} {sink.why}"
        yield from (f"    {line}" for line in _sink_lines(sink))
    if repair.checkpoint is not None:
        yield "  the other tables are looked at when this one is put right"
    if repair.remedy is not None:
        yield f"  to get the lost rows back: {repair.remedy}"


def _sink_lines(sink: SinkRepair) -> Iterator[str]:
    if sink.lost:
        yield f"cannot be put right: neither it nor its history has the rows of {_ids(sink.lost)}"
        return
    if sink.leaving:
        aside = ", its files go to _drainmark/aside/" if sink.table.startswith("files/") else ""
        yield f"leaves: {_ids(sink.leaving)}, which the checkpoint table does not know{aside}"
    if sink.written:
        yield f"is written again from its history: {_ids(sink.written)}"
    if not sink.leaving and not sink.written:
        yield "has the rows that it should have; only its version changes"


def _ids(ids: Sequence[int]) -> str:
    more = " …" if len(ids) > _SHOWN else ""
    return f"{counted(len(ids), 'id')}: {', '.join(map(str, ids[:_SHOWN]))}{more}"


def _step_lines(step: TableRepair) -> Iterator[str]:
    for commit in step.commits:
        user = f" ({commit['user']})" if commit["user"] else ""
        yield f"version {commit['version']}: {commit['operation']} by {commit['engine']}{user}"
    if step.lost:
        yield f"cannot be put right: nothing is left of {_ids(step.lost)}"
    elif step.history is not None:
        yield f"rebuilt from {step.history}; {said_of(len(step.removed), 'file', 'leave', 'leaves')}"
    else:
        again = said_of(len(step.added), "file", "are", "is")
        yield f"{again} shown again, {len(step.removed)} {'leaves' if len(step.removed) == 1 else 'leave'}"
        if step.copied:
            ids = sorted({number for part in step.copied for number in part.ids})
            yield f"rows of {counted(len(ids), 'id')} are written anew from the files as they were first written"


def plan_region(workplace: Workplace, region: str) -> RegionRepair:
    """Return the repairs that the tables of a region need; changes nothing."""
    from drainmark.jobs.runtime.commit.table_damage import plan_repairs, repair_checkpoint

    store = workplace.store(region)
    damage = store.foreign_commits.damage(store.checkpoint_name)
    if damage is not None and damage.commits:
        return RegionRepair(region=region, checkpoint=repair_checkpoint(store, damage, store.checkpoint.history()))
    history = store.checkpoint.history()
    return planned(region, history, plan_repairs(store, history))


def planned(region: str, history: RegionHistory, repairs: Sequence[Repair]) -> RegionRepair:
    """Return repairs with the id to go back to if some ids are lost."""
    lost = [number for repair in repairs for number in repair.lost]
    target = target_before(history, min(lost)) if lost else None
    return RegionRepair(region=region, tables=tuple(repairs), target=target)


def plan(workplace: Workplace) -> list[RegionRepair]:
    """Return the repairs of every region that needs some."""
    found = (plan_region(workplace, region) for region in workplace.own_regions())
    return [repair for repair in found if repair.steps]


def repairs_on_the_way(store: RegionTables, region: str, history: RegionHistory, to: int) -> tuple[Repair, ...]:
    """Return the repairs that a rewind has to make; none if no other program wrote, which is checked cheaply.

    Raises:
        RewindRefused: ids would stay in force that have lost rows, or that are still to be published to such a table.
    """
    from drainmark.jobs.runtime.commit.table_damage import first_brought, plan_repairs, require_sole_writer

    try:
        require_sole_writer(store, history)
    except SplitBrain:
        repairs = plan_repairs(store, history)
        lost = [number for repair in repairs for number in repair.lost]
        behind = [first_brought(row) for row in history.unpublished]
        if lost and to >= min(lost + behind):
            nearest = target_before(history, min(lost + behind))
            harmed = next(repair.table for repair in repairs if repair.lost)
            msg = f"cannot rewind to {to}: {harmed} has lost rows of ids from {min(lost)} on, and nothing has them"
            remedy = f"drainmark reset {region} --to {nearest}"
            raise RewindRefused(msg, remedy=remedy, nearest=nearest) from None
        return repairs
    return ()


def claim_to_rewind(owner: RegionOwner, to: int | None) -> Callable[[], Any]:
    """Return the claim of a rewind, as a function: it first repairs tables that others changed, as far as possible.

    Ids lost above the target leave with the rewind, in one commit per table. A bare reset repairs nothing.
    """

    from drainmark.jobs.runtime.commit.table_damage import lost_before_publishing

    def repair(owned: RegionOwner) -> bool:
        if owned.history.rewinding:
            return True
        lost = lost_before_publishing(owned.outside.store, owned.history)
        if lost is not None:  # the rewind withdraws the groups that cannot be published
            _require_below(owned.region, to or INITIAL_ID, lost)
            return False
        on_the_way = repairs_on_the_way(owned.outside.store, owned.region, owned.history, to or INITIAL_ID)
        return not on_the_way or repair_under_claim(owned, [])

    return lambda: owner.claim(repair=None if to is None else repair)


def _require_below(region: str, to: int, lost: FilesLost) -> None:
    nearest = int(lost.facts["target"])
    if to > nearest:
        msg = f"cannot rewind to {to}: {lost.message}"
        raise RewindRefused(msg, remedy=f"drainmark reset {region} --to {nearest}", nearest=nearest)


def is_put_right(workplace: Workplace, region: str) -> bool:
    """Say whether no table of a region needs a repair."""
    return not plan_region(workplace, region).steps


def mend(workplace: Workplace, region: str, *, rebuild: Callable[[], Any] = lambda: None) -> RegionRepair:
    """Repair the tables of a region that have lost no rows; return all repairs, those done and those impossible.

    Args:
        rebuild: rebuilds the region's rows in the registry; called once the checkpoint table is repaired, of which they
            may have been made while it lacked states.

    Raises:
        Owned: a run has the region.
        UsageError: its checkpoint table cannot be repaired.
    """
    from drainmark.jobs.runtime.commit.table_damage import repair_checkpoint

    store, first = workplace.store(region), None
    damage = store.foreign_commits.damage(store.checkpoint_name)
    if damage is not None and damage.commits:
        first = repair_checkpoint(store, damage, store.checkpoint.history())
        if first.lost:
            msg = f"files of {first.table} are gone, and nothing stands in for them"
            raise UsageError(msg, remedy="restore it from a backup")
        store.foreign_commits.put_right(first, epoch=0)
        rebuild()
    done: list[RegionRepair] = []
    owner = region_owner(workplace, region)
    with owning(owner, lambda: owner.claim(repair=lambda owned: repair_under_claim(owned, done))):
        pass
    return RegionRepair(region=region, checkpoint=first, tables=done[0].tables, target=done[0].target)


def repair_under_claim(owner: RegionOwner, done: list[RegionRepair]) -> bool:
    """Plan the repairs of an owner's tables, carry out those that lose nothing, and say whether these are all."""
    from drainmark.jobs.runtime.commit.table_damage import plan_repairs, repair_tables

    store = owner.outside.store
    if owner.history.rewinding:  # a rewind repairs tables in the same commits
        done.append(RegionRepair(region=owner.region))
        return True
    repairs: list[Repair] = []
    for _ in range(2):  # sinks wait for their histories
        seen = {repair.table for repair in repairs}
        more = [repair for repair in plan_repairs(store, owner.history) if repair.table not in seen]
        whole = [repair for repair in more if not repair.lost]
        owner.versions.update(repair_tables(store, owner.history, whole, owner.epoch))
        repairs += more
    found = planned(owner.region, owner.history, repairs)
    done.append(found)
    if found.possible:
        owner.ledger.note_published()  # a table that was deleted or restored has a smaller version than was noted
    owner.report("repair", {"tables": len(found.possible), "left": len(found.tables) - len(found.possible)})
    return len(found.possible) == len(found.tables)
