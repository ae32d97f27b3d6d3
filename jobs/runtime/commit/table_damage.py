"""Changes by others to the tables of a region: found before each commit, and repaired on request.

`plan_repairs` makes the steps that the plan shows, one commit a table, and `repair_tables` carries out the same steps.
A table of rows comes before the visible tables that are rebuilt from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import AccountingError, SplitBrain
from drainmark.jobs.errors.environment import FilesLost
from drainmark.jobs.frames.row_order import row_counts
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.history import RegionHistory, manifest_of, replaced_in, target_before
from drainmark.jobs.protocol.records.checkpoint_row import WITH_IDS, CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version, txn_version
from drainmark.jobs.protocol.records.manifest import Manifest, RegionTable, StagedFile, TableRole
from drainmark.jobs.protocol.repairs import (
    KnownVersions,
    Repair,
    SinkRepair,
    TableDamage,
    TableRepair,
    TableVersions,
    exact_repair,
    repair_from_history,
    repair_of_rows,
)
from drainmark.jobs.protocol.rewind_steps import Rewind
from drainmark.jobs.regions.formatting import counted
from drainmark.jobs.runtime.commit.publish import outer_sinks
from drainmark.jobs.runtime.commit.rewind_contents import own_tables
from drainmark.jobs.runtime.messages import resume_command

if TYPE_CHECKING:
    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.health.visible_rows import VisibleRows

_RESTORE = "restore all folders of the region from the same backup, never one alone"


def require_sole_writer(store: RegionTables, history: RegionHistory, names: Iterable[str] | None = None) -> None:
    """Check that no other writer changed rows of a region's tables since its last commit to each.

    If the log does not reach back to that commit, the rows are counted by id and compared with the recorded numbers.

    Args:
        names: of managed tables; by default all, and the sinks outside Delta.

    Raises:
        SplitBrain: another writer changed rows, or a table is another copy than the checkpoint table knows.
    """
    if names is None:
        outer_sinks.require_known(store, history)
    tables = _managed(store, history) if names is None else ()
    for name in [table.name for table in tables] if names is None else names:
        check = partial(_require_same_copy, store, history, name)
        try:
            store.foreign_commits.require_sole_writer(name, check)
        except SplitBrain as error:
            damage = store.foreign_commits.damage(name) if error.facts.get("is_cut") else None
            if damage is None or not RepairPlan(store, history).is_as_recorded(name, damage):
                raise
            check(store.foreign_commits.versions(name))
            store.foreign_commits.trust(name, damage.version)


def _require_same_copy(store: RegionTables, history: RegionHistory, name: str, found: TableVersions) -> None:
    if why := known_versions(store, history, name).other_copy(found):
        raise SplitBrain(f"{name} {why}", remedy=_RESTORE, table=name, is_cut=False)


def is_gone(store: RegionTables, history: RegionHistory, table: RegionTable) -> bool:
    """Say whether a managed table, or a sink outside Delta, was deleted after a group had been published to it."""
    if table.external:
        return outer_sinks.is_gone(store, history, table)
    return table.is_managed and table.name in history.versions and not store.table(table.name).exists()


def other_copy(store: RegionTables, history: RegionHistory, name: str) -> str:
    """Say why an existing managed table is another copy than the one that the region made; "" if it is not.

    A run may commit meanwhile if there is no claim: an older history has the least that the table must have, and a
    newer one the most that it can have.
    """

    def look() -> str:
        found = store.foreign_commits.versions(name)
        return known_versions(store, history, name, now=store.checkpoint.history()).other_copy(found)

    return look() and look()  # a rewind may have come in between


def known_versions(
    store: RegionTables, history: RegionHistory, name: str, *, now: RegionHistory | None = None
) -> KnownVersions:
    """Return the versions of a table that the rows of the checkpoint table show.

    Args:
        now: the history to ask for known commits; by default the same one.
    """
    now = now or history

    def has(epoch: int, number: int) -> bool:
        state = now.states.get(number)
        if now.rewinding or (state is not None and state.epoch <= epoch):  # a visible table may be brought up later
            return True
        rows = store.checkpoint.rows(since=number)
        return any((row.epoch, row.sequence_id) == (epoch, number) and row.kind in WITH_IDS for row in rows)

    def claimed(epoch: int) -> bool:
        return epoch <= now.epoch and not any(first <= epoch <= last for first, last in now.lost_epochs)

    noted, newest = history.versions.get(name), history.states.get(history.published_id)
    manifest = manifest_of(newest) if newest is not None and noted is not None and not history.rewinding else None
    has_rows = newest is not None and manifest is not None and bool(manifest.files.get(name))
    least = txn_version(newest.epoch, newest.sequence_id) if newest is not None and has_rows else 0
    return KnownVersions(noted=noted, least=least, epochs=claimed, has=has)


def published_to(history: RegionHistory, manifest: Manifest) -> list[str]:
    """Return the managed tables that a group is going to change."""
    return [
        table.name
        for table in history.tables
        if table.is_managed and manifest.files.get(table.history if table.is_derived and table.history else table.name)
    ]


def plan_repairs(store: RegionTables, history: RegionHistory) -> tuple[Repair, ...]:
    """Return the repairs of the tables that others changed, in the order to carry them out.

    Every commit of others since the last repair counts if it is still among the newest commits of its table, even if
    the region committed after it. A sink outside Delta waits until its history is put right: its rows come from there.
    """
    tables = tuple(RepairPlan(store, history).repairs())
    harmed = {repair.table for repair in tables}
    sinks = (table for table in history.tables if table.history not in harmed)
    return (*tables, *outer_sinks.repairs_of(store, history, sinks))


def repair_checkpoint(store: RegionTables, damage: TableDamage, history: RegionHistory) -> TableRepair:
    """Return the repair of the checkpoint table; if earlier files are unknown or gone, all states are lost."""
    repair = exact_repair(store.checkpoint_name, damage)
    if repair is not None:
        return repair
    lost = tuple(history.states) or (INITIAL_ID,)
    return TableRepair(
        table=store.checkpoint_name,
        version=damage.version,
        txn_version=damage.txn_version,
        commits=damage.commits,
        lost=lost,
    )


def repair_tables(
    store: RegionTables, history: RegionHistory, repairs: Iterable[Repair], epoch: int, version: int | None = None
) -> dict[str, int]:
    """Carry out repairs, one commit each; a repair that was done before a crash is not planned again.

    A sink outside Delta gets the version of the newest id that its region knows, under this owner's epoch: all that is
    committed is in it then, also what is not published elsewhere.

    Args:
        epoch: of the owner.
        version: txnVersion of the rewind that the same commits carry out; None for a repair alone.

    Returns:
        Delta version by table.
    """
    plan, versions = RepairPlan(store, history), {}
    for repair in repairs:
        if isinstance(repair, SinkRepair):
            newest = txn_version(epoch, history.next_id - 1)
            versions[repair.table] = outer_sinks.put_right(store, history, repair, epoch, newest).delta_version
            continue
        if is_gone(store, history, plan.table(repair.table)):
            store.create(plan.table(repair.table))
        rows = plan.rows_for(repair.table) if repair.history is not None else None
        done = store.foreign_commits.put_right(
            repair, epoch=epoch, version=version, rows=rows, table=plan.table(repair.table)
        )
        versions[repair.table] = done.delta_version
    return versions


@dataclass(slots=True)
class RepairPlan:
    """The planner of the repairs of a region's tables; within a rewind they also take back the tables."""

    store: RegionTables
    history: RegionHistory
    _rows: Sequence[CheckpointRow] | None = None

    def repairs(self) -> Iterator[TableRepair]:
        """Yield the repairs of the tables that others changed."""
        lost: dict[str, tuple[int, ...]] = {}
        tables = sorted(_managed(self.store, self.history), key=lambda table: table.is_derived)
        damaged = {table.name: damage for table in tables if (damage := self._damage(table)) is not None}
        for table in tables:
            damage = damaged.get(table.name)
            if damage is None or (not damage.commits and self.is_as_recorded(table.name, damage)):
                continue
            repair = self._repair_of(table, damage, lost.get(table.history or "", ()))
            lost[table.name] = repair.lost
            yield repair

    def rebuilt(self, table: RegionTable, damage: TableDamage, lost: Iterable[int] = ()) -> TableRepair:
        """Return the repair that rebuilds a visible table from its history.

        Args:
            lost: ids that the history has lost.
        """
        missing = lost if self._images(table) is not None else self.history.states
        return repair_from_history(table.name, damage, table.history or "", missing)

    def _damage(self, table: RegionTable) -> TableDamage | None:
        """Return the damage that others did to a table, None if there is none; a deleted table has no files left."""
        if is_gone(self.store, self.history, table):
            deleted = _by_others(0, "deleted")
            return TableDamage(version=0, txn_version=self._noted(), commits=(deleted,), is_traced=False)
        is_copy = bool(other_copy(self.store, self.history, table.name))
        damage = self.store.foreign_commits.damage(table.name, whatever=is_copy)
        return self._of_copy(table.name, damage) if damage is not None and is_copy else damage

    def _of_copy(self, name: str, damage: TableDamage) -> TableDamage:
        """Return the damage of a table that is another copy: commits are missing, or the region does not know them."""
        files = self.store.table(name).files
        gone = tuple(file for file in damage.sound if not files.holds((file,)))
        return replace(
            damage,
            txn_version=self._noted(),
            commits=(*damage.commits, _by_others(damage.version, "another copy was restored")),
            sound=tuple(file for file in damage.sound if file not in gone),
            gone=(*damage.gone, *gone),
            is_traced=False,
        )

    def _noted(self) -> int | None:
        """Return the `txnVersion` of the newest row with files that is noted as published; later ones come again."""
        behind = min((row.sequence_id for row in self.history.unpublished), default=self.history.next_id)
        published = (row for row in self.rows() if row.sequence_id < behind and manifest_of(row) is not None)
        return max(map(_version, published), default=None)

    def _repair_of(self, table: RegionTable, damage: TableDamage, lost: Iterable[int]) -> TableRepair:
        exact = None if self.history.rewinding else exact_repair(table.name, damage)
        if exact is not None:
            return exact
        return self.rebuilt(table, damage, lost) if table.is_derived else self._of_rows(table.name, damage)

    def _of_rows(self, name: str, damage: TableDamage) -> TableRepair:
        history, files, through = self.history, self.store.table(name).files, damage.txn_version or 0
        later = (row for row in history.unpublished if _version(row) > through)
        without = {number for row in later for number in range(row.first_id, row.sequence_id + 1)}
        without |= replaced_in(history, name)
        return repair_of_rows(
            name,
            damage,
            [*self._named(name, through)],
            shown=row_counts(files.pieces(damage.sound, [SEQUENCE_ID])),
            ids=[number for number in history.states if number not in without],
            edge=self._edge(name),
            restored=[part for row in history.rewinding for part in Rewind.from_row(row).restored_to(name)],
            is_there=lambda file: files.holds((file,)),
        )

    def _edge(self, name: str) -> int:
        return max(self.history.dropped.get(name, INITIAL_ID), self.history.trimmed.get(name, INITIAL_ID))

    def rows(self) -> Sequence[CheckpointRow]:
        """Return all rows of the checkpoint table; read once."""
        if self._rows is None:
            self._rows = self.store.checkpoint.rows()
        return self._rows

    def _named(self, name: str, through: int) -> Iterator[StagedFile]:
        """Yield the files of a table that checkpoint rows name up to a `txnVersion`."""
        for row in self.rows():
            manifest = manifest_of(row)
            if manifest is not None and _version(row) <= through:
                yield from manifest.files.get(name, ())

    def table(self, name: str) -> RegionTable:
        """Return the description of a managed table."""
        return next(table for table in _managed(self.store, self.history) if table.name == name)

    # --- visible tables ----------------------------------------------------------------------------------------------

    def _ids_of(self, name: str, damage: TableDamage) -> Sequence[int]:
        """Return the ids that a visible table may show: it may lag behind the committed id."""
        newest = split_txn_version(damage.txn_version or 0)[1]
        found = (self.history.committed_id, newest or None, self.history.lags.get(name))
        return list(dict.fromkeys(number for number in found if number is not None))

    def rows_for(self, name: str, to: int | None = None) -> VisibleRows:
        """Return the rows that a visible table should hold at an id, by its history; by default at the committed id."""
        table = self.table(name)
        to = self.history.committed_id if to is None else to
        live = self.store.table(table.history or "").files.live()
        if table.role is not TableRole.OVERWRITE:
            live = (*(self._images(table) or ()), *(file for file in live if (file.first_id or 0) <= to))
        return self.store.visible_rows(table, live, to)

    def _images(self, table: RegionTable) -> tuple[StagedFile, ...] | None:
        """Return the image in place of a history's dropped changes: () if none were dropped, None if it is gone."""
        name = table.history or ""
        if name not in self.history.dropped:
            return ()
        image = self.history.image_held(name, None, self.store.table(name).files.holds)
        return None if image is None else image.files

    # --- a log that was cut ------------------------------------------------------------------------------------------

    def is_as_recorded(self, name: str, damage: TableDamage) -> bool:
        """Say whether a table has the recorded number of rows of each id; ids without a record may have any number."""
        table, files = self.table(name), self.store.table(name).files
        try:
            found = row_counts(files.pieces(files.live(), [SEQUENCE_ID]))
        except AccountingError:  # rows without an id do not come from the region
            return False
        if table.is_derived:
            return any(found == self.rows_for(name, to).counts() for to in self._ids_of(name, damage))
        repair, edge = self._of_rows(name, damage), self._edge(name)
        shown = [file for file in files.live() if file.path not in repair.removed]
        wanted = row_counts(files.pieces([*repair.added, *shown], [SEQUENCE_ID]))
        for part in repair.copied:
            counted = row_counts(files.pieces(part.files, [SEQUENCE_ID]))
            wanted.update({number: counted[number] for number in part.ids})
        unknown = {*repair.lost, *(number for number in found if number <= edge and number in self.history.states)}
        return all(found[number] == wanted[number] for number in {*found, *wanted} - unknown)


def put_right_within(store: RegionTables, history: RegionHistory, row: CheckpointRow, epoch: int) -> dict[str, int]:
    """Repair what others changed, for a rewind that is committed: each repair also takes its table back.

    A table of one row a key is rebuilt if its history is back already, by a repair or before a crash: the normal step
    changes the keys of rows that leave the history. A sink outside Delta follows its history in the same way.

    Args:
        epoch: of the owner.

    Returns:
        Delta version by table; these need no step of the rewind.

    Raises:
        SplitBrain: ids at or below the rewind's target are lost.
    """
    rewind, version, plan = Rewind.from_row(row), _version(row), RepairPlan(store, history)
    repairs: list[Repair] = []
    try:
        require_sole_writer(store, history, [table.name for table in _managed(store, history)])
    except SplitBrain:
        repairs += plan.repairs()
    versions = repair_tables(store, history, _lossless(repairs), epoch, version)
    tables = [table for table in rewind.tables if table.name not in rewind.former or store.is_own(table)]
    late = {table.name for table in tables if table.name not in versions and _is_overtaken(store, table, version)}
    found = (
        (table, store.foreign_commits.damage(table.name, whatever=True))
        for table in tables
        if table.name in late and table.is_managed
    )
    again = [plan.rebuilt(table, damage) for table, damage in found if damage is not None]
    sinks = outer_sinks.repairs_of(store, history, tables, whatever=late)
    return versions | repair_tables(store, history, _lossless([*again, *sinks]), epoch, version)


def _is_overtaken(store: RegionTables, table: RegionTable, version: int) -> bool:
    """Say whether the history of a table of one row a key has been taken back before the table."""
    if table.role is not TableRole.UPSERT or table.adopted:
        return False
    visible = store.external(table) if table.external else store.table(table.name)
    return (store.table(table.history or "").txn_version() or 0) >= version > (visible.txn_version() or 0)


def _lossless(repairs: Sequence[Repair]) -> Sequence[Repair]:
    """Return the repairs of a rewind that is committed: no later one can come before it, so only a backup helps.

    Raises:
        SplitBrain: one has lost ids.
    """
    for repair in repairs:
        if repair.lost:
            what = "it" if isinstance(repair, SinkRepair) else "its files below _staged"
            msg = f"a rewind cannot go on: {counted(len(repair.lost), 'id')} of {repair.table} cannot be restored"
            remedy = f"restore {what} from a backup"
            raise SplitBrain(f"{msg}, the first is {min(repair.lost)}", remedy=remedy)
    return repairs


def is_withdrawn(row: CheckpointRow, behind: Iterable[CheckpointRow]) -> bool:
    """Say whether a later rewind takes back all ids of a row."""
    first = first_brought(row)
    is_group = row.kind in (RowKind.STATE, RowKind.SKIP)
    return is_group and any(
        later.kind is RowKind.REWIND and later.sequence_id > row.sequence_id and later.detail["to"] < first
        for later in behind
    )


def first_brought(row: CheckpointRow) -> int:
    """Return the first id that a row has files of; it may be before its group, since stages can bring rows late."""
    manifest = manifest_of(row)
    files = [file for found in manifest.files.values() for file in found] if manifest is not None else []
    ids = [file.first_id for file in files if file.first_id is not None]
    return min([row.first_id, *ids])


def lost_before_publishing(store: RegionTables, history: RegionHistory) -> FilesLost | None:
    """Return an error if files of a group that is committed and not published are gone; None if all are here.

    Nothing stands in for these files, but the inputs of the group: a rewind to before it gives them back.
    """
    behind = () if history.rewinding else history.unpublished
    for row, manifest in ((row, manifest_of(row)) for row in behind):
        for name, files in manifest.files.items() if manifest is not None else ():
            try:
                store.verify(name, files)
            except FilesLost as error:
                table = store.table(name)
                if not table.exists() or (table.txn_version() or 0) >= _version(row):
                    continue  # the table is gone, or has the group: that damage is found by its log
                target = target_before(history, min(map(first_brought, behind)))
                back = f"drainmark reset {store.region} --to {target}"
                commands = (f"{back} --yes && {resume_command(store.region)}",)
                remedy = f"{back}, which gives their inputs back"
                return FilesLost(error.message, remedy=remedy, commands=commands, table=name, target=target)
    return None


def _version(row: CheckpointRow) -> int:
    """Return the `txnVersion` of the commits that carry out a row."""
    return txn_version(row.epoch, row.sequence_id)


def _by_others(version: int, operation: str) -> Mapping[str, Any]:
    return {"version": version, "operation": operation, "engine": "unknown", "user": None}


def _managed(store: RegionTables, history: RegionHistory) -> list[RegionTable]:
    return [table for table in own_tables(store, history) if table.is_managed]
