"""A run of an autonomous part: plain micro-batches, as in a job without any region.

Files are taken once, by a cursor in the registry that moves before they are read. Operators, reading and staging are
the same as in a region; each table gets one plain commit. There are no epochs, no checkpoint table and no consistent
states, and nothing is replayed: the files of a failed batch are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.regions.formatting import counted
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.autonomous.tables import Outlets
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.group.group_work import GroupWork
from drainmark.jobs.runtime.group.stream_passing import Border
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.state.keyed_rows import last_per_key

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.delta.autonomous_tables import AutonomousTable

_NO_EPOCH = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The numbers of one micro-batch; `lost` files were gone or changed, `rows_out` and `versions` are by table."""

    part: str
    files: int
    lost: int
    rows_in: int
    rows_quarantined: int
    bytes_in: int
    rows_out: Mapping[str, int]
    versions: Mapping[str, int]
    seconds: float

    @property
    def line(self) -> str:
        """Return the numbers as a line for people."""
        lost = f", {counted(self.lost, 'file')} lost" if self.lost else ""
        read = f"{counted(self.files, 'file')}, {counted(self.rows_in, 'row')}"
        return f"{self.part}: {read}, {self.seconds:.2f} s{lost}"


@dataclass(slots=True, kw_only=True)
class AutonomousRun:
    """A run of one autonomous part, used once.

    Attributes:
        blueprint: of the part's plan, see `jobs.regions.plan.as_plan`.
        take: moves the cursor of the source over at most so many files, 0 for the settings' limit, and returns them.
        numbers: returns the first of so many consecutive numbers that no earlier batch had.
    """

    blueprint: Blueprint
    outside: Outside
    states: RegionStates
    take: Callable[[DirectorySource, int], Sequence[Trigger]]
    numbers: Callable[[DirectorySource, int], int]
    run_id: str
    _tables: dict[str, AutonomousTable] = field(default_factory=dict)

    def begin(self) -> None:
        """Become the only run of the part, and load the states of its operators.

        Raises:
            Owned: another run has it.
        """
        self.outside.lease.acquire(self.blueprint.region.name, self.run_id)
        for name in self.blueprint.states():
            self._made(self.blueprint.table(name))
        self.states.reset(RegionHistory())

    def batches(self) -> Iterator[BatchReport]:
        """Take and process new files until none are left.

        Raises:
            DrainmarkError: a batch failed; its files are not read again.
        """
        source = next(operator for operator in self.blueprint.region.operators if isinstance(operator, DirectorySource))
        limit = 1 if self.blueprint.region.forced_single else 0
        while triggers := self.take(source, limit):
            yield self._batch(source, triggers)

    def end(self) -> None:
        """Release the part."""
        self.outside.lease.release(clean=True)

    def _batch(self, source: DirectorySource, triggers: Sequence[Trigger]) -> BatchReport:
        started, taken = world.monotonic(), len(triggers)
        staged: StagedGroup | None = None
        while triggers and staged is None:
            try:
                staged = self._staged(self._group(source, triggers))
            except (InputMissing, InputChanged) as error:
                gone = {trigger.id for trigger in error.facts["triggers"]}
                triggers = [trigger for trigger in triggers if trigger.id not in gone]
        versions, rows = self._publish(staged) if staged is not None else ({}, {})
        if staged is not None:
            self.states.checkpointed(staged)
        return BatchReport(
            part=self.blueprint.region.name,
            files=taken,
            lost=taken - len(triggers),
            rows_in=sum(staged.rows_in.values()) if staged is not None else 0,
            rows_quarantined=sum(staged.rows_quarantined.values()) if staged is not None else 0,
            bytes_in=sum(trigger.size_bytes for trigger in triggers),
            rows_out=rows,
            versions=versions,
            seconds=world.monotonic() - started,
        )

    def _group(self, source: DirectorySource, triggers: Sequence[Trigger]) -> Group:
        first = self.numbers(source, len(triggers))
        members = tuple(Assigned(sequence_id=first + i, trigger=trigger) for i, trigger in enumerate(triggers))
        return Group(members=members, epoch=_NO_EPOCH, attempt=world.token())

    def _staged(self, group: Group) -> StagedGroup:
        work = GroupWork.of(self.states, group, size=group.bytes_to_read, outlets=Outlets(), border=Border())
        frozen = self.states.freeze(work.stage())
        return self.states.write(frozen, frozen.frozen)

    # --- tables -----------------------------------------------------------------------------------------------------

    def _publish(self, staged: StagedGroup) -> tuple[dict[str, int], dict[str, int]]:
        """Commit a batch table by table; return Delta's versions and the rows written, by table.

        The changes of a history that is no state are used for the merge only, and not committed.
        """
        versions: dict[str, int] = {}
        written: dict[str, int] = {}
        for table in self.blueprint.tables:
            rows = staged.tables.get(table.name)
            if rows is not None:
                written[table.name] = sum(file.rows for file in rows.files)
            if table.role is TableRole.UPSERT:
                changed = self._merged_rows(staged, table)
                written[table.name] = changed.num_rows if changed is not None else 0
                if changed is not None and changed.num_rows:
                    versions[table.name] = self._made(table).upsert(changed, table.keys, table.schema_json)
            elif rows is not None and rows.image is not None:
                versions[table.name] = self._made(table).add(rows.image.files, whole=True)
            elif rows is not None and rows.files and self._is_kept(table):
                versions[table.name] = self._made(table).add(self._gathered(table, rows.files))
        return versions, written

    def _gathered(self, table: RegionTable, files: Sequence[StagedFile]) -> Sequence[StagedFile]:
        """Return the files of a batch, gathered into few if tasks wrote many; files of a state stay unchanged."""
        if table.role is not TableRole.APPEND:
            return files
        staging = self.outside.store.staging(table, _NO_EPOCH, world.token())
        return self._made(table).gathered(files, staging)

    def _is_kept(self, table: RegionTable) -> bool:
        return table.role is TableRole.APPEND or table.name in self.states.states

    def _merged_rows(self, staged: StagedGroup, table: RegionTable) -> pa.Table | None:
        """Return the last row of each key that the batch changed; None if it changed none."""
        found = self._changes(staged, table)
        return None if found is None else last_per_key(found.select(list(table.columns)), table.keys)

    def _changes(self, staged: StagedGroup, table: RegionTable) -> pa.Table | None:
        import pyarrow as pa

        history = staged.tables[table.history or ""]
        if history.rows is not None or not history.files:
            return history.rows
        stored = self.outside.store.table(table.history or "")
        return pa.concat_tables(stored.files.read_each(history.files, list(table.columns)))

    def _made(self, table: RegionTable) -> AutonomousTable:
        if table.name not in self._tables:
            self._tables[table.name] = self.outside.store.autonomous(table.name)
            self._tables[table.name].create(table.schema_json)
        return self._tables[table.name]
