"""The rows of one person leave a region, under its claim: tables, all that rewinds need of them, sinks, notes, logs.

Every step finds by itself what is left to do, so the same erasure, begun again after a crash at any place, goes on.
What it found is noted before anything changes: once the rows have left, nobody could find out where they were.

The order matters. Files are written again beside the old ones; then the checkpoint table names the new files; then each
table shows them, histories before the tables that are made from them; only then do the old files go, and the logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, StoreUnavailable, UsageError
from drainmark.jobs.errors.environment import EraseRefused
from drainmark.jobs.failpoints import ErasePoint
from drainmark.jobs.frames.arrow import delta_schema, typed
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.history import manifest_of
from drainmark.jobs.protocol.persons import Person, attempt_of
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.protocol.rewind_steps import Rewind
from drainmark.jobs.protocol.stage_flow import channels_folder
from drainmark.jobs.runtime.commit.publish import outer_sinks
from drainmark.jobs.runtime.commit.removal.keyed_retraction import in_their_place
from drainmark.jobs.runtime.commit.rewind_contents import own_tables
from drainmark.jobs.runtime.commit.table_damage import RepairPlan
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.merge import arrow_schema
from drainmark.resources.erasure import buffers, checkpoints, files, purge
from drainmark.resources.erasure.conditions import columns_of, condition_of, opaque_columns
from drainmark.resources.erasure.notes import BlockedInput, Notes
from drainmark.resources.erasure.search import SURE
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner
    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.managed_table import ManagedTable

BLOCKED = ("", SURE)
"""What is known of inputs that no run may read again while they are as they are: they held rows, or hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One table, and the rows of the person in it.

    Attributes:
        where: the condition for these rows; None if no row of the table can be the person's.
        live: files that the table shows; of a sink outside Delta, None.
        others: files that rows of the checkpoint table name and that the table does not show.
        images: paths of those among `others` that are files of a state written whole.
        shown, kept: the rows in `live` and in `others`; for a sink outside Delta only `shown`.
        dead: the rows in files on disk that nothing names any more.
        is_opaque: it lacks the columns, and has others that may hold rows in a form that no condition reaches.
        is_away: it is outside Delta, and cannot be asked.
    """

    table: RegionTable
    where: pa.compute.Expression | None = None
    live: tuple[StagedFile, ...] = ()
    others: tuple[StagedFile, ...] = ()
    images: frozenset[str] = frozenset()
    shown: files.Found = field(default_factory=files.Found)
    kept: files.Found = field(default_factory=files.Found)
    dead: files.Found = field(default_factory=files.Found)
    is_opaque: bool = False
    is_away: bool = False

    @property
    def ids(self) -> Counter[int]:
        return self.shown.ids + self.kept.ids + self.dead.ids

    @property
    def state(self) -> str:
        """Return what an erasure does with the table."""
        if self.is_opaque or self.is_away:
            return "cannot be searched"
        return "skipped" if self.where is None else "searched"


def tables_of(store: RegionTables, history: RegionHistory) -> list[RegionTable]:
    """Return the tables that a region has or had, those of sinks that left the code included."""
    others = [table for table in history.former if not table.is_managed]
    return [*own_tables(store, history), *others]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a table: those that the code writes, and those that only older rows have.

    Attributes:
        are_opaque: some of them may hold rows in a form that no condition reaches.
    """

    table: str
    names: frozenset[str]
    are_opaque: bool = False


def columns_of_tables(store: RegionTables, tables: Iterable[RegionTable]) -> list[Columns]:
    """Return the columns of tables of a region, by which a person is looked for."""
    return [_columns(store, table) for table in tables]


def _columns(store: RegionTables, table: RegionTable) -> Columns:
    names = frozenset((*table.column_names, *table.columns))
    if table.adopted:
        return Columns(table=table.name, names=names, are_opaque=bool(opaque_columns(_declared(table))))
    if not table.is_managed or not store.table(table.name).is_own():
        return Columns(table=table.name, names=names)
    schema = arrow_schema(delta_tables.open_table(store.table(table.name).folder))
    return Columns(table=table.name, names=names.union(schema.names), are_opaque=bool(opaque_columns(schema)))


_LOOKS = 3
"""How often a table is searched in which files leave meanwhile."""


def search(
    store: RegionTables, rows: Sequence[CheckpointRow], tables: Sequence[RegionTable], person: Person
) -> list[Searched]:
    """Return all tables of a region with what they hold of a person; nothing changes.

    Args:
        rows: all rows of the checkpoint table.
        tables: those that the region has or had and still owns.
    """
    named = _named(rows)
    found = []
    for table in tables:
        if table.external:
            try:
                found.append(_outside(store, table, person))
            except (StoreUnavailable, UsageError):
                found.append(Searched(table=table, is_away=True))
        elif table.adopted:
            found.append(_adopted(store, table, person))
        elif store.table(table.name).is_own():
            found.append(_while_files_leave(partial(_managed, store, table, named.get(table.name, {}), person)))
    return found


def _while_files_leave(look: Callable[[], Searched]) -> Searched:
    """Look once more if a file left on the way: a collector that lost the region since may be at its last files."""
    for _ in range(_LOOKS):
        with suppress(FileNotFoundError):
            return look()
    return look()


def _named(rows: Sequence[CheckpointRow]) -> dict[str, dict[str, tuple[StagedFile, bool]]]:
    """Return the files that rows name, by table and path, each with whether it is of a state written whole."""
    found: dict[str, dict[str, tuple[StagedFile, bool]]] = {}

    def add(name: str, some: Sequence[StagedFile], *, is_image: bool = False) -> None:
        found.setdefault(name, {}).update({file.path: (file, is_image) for file in some})

    for row in rows:
        manifest = manifest_of(row)
        images = manifest.images if manifest is not None else ()
        replaced = [manifest.replaced] if manifest is not None and manifest.replaced is not None else []
        if "tables" in row.detail and "to" in row.detail:
            rewind = Rewind.from_row(row)
            images, replaced = (*images, *rewind.images), [*replaced, *rewind.restored]
        for name, some in manifest.files.items() if manifest is not None else ():
            add(name, some)
        for part in replaced:
            for name, some in part.files.items():
                add(name, some)
        for image in images:
            add(image.table, image.files, is_image=True)
    return found


def _managed(
    store: RegionTables, table: RegionTable, named: Mapping[str, tuple[StagedFile, bool]], person: Person
) -> Searched:
    target, (epoch, _) = store.table(table.name), store.checkpoint.txn()
    opened = delta_tables.open_table(target.folder)
    schema, live = arrow_schema(opened), file_lists.live_files(opened, target.folder)
    where, columns = condition_of(person, schema), columns_of(person, schema)
    if where is None:
        return Searched(table=table, is_opaque=bool(opaque_columns(schema)))
    shown = {file.path for file in live}
    others = [(file, image) for path, (file, image) in named.items() if path not in shown]
    there = [(file, image) for file, image in others if target.files.holds((file,))]
    return Searched(
        table=table,
        where=where,
        live=live,
        others=tuple(file for file, _ in there),
        images=frozenset(file.path for file, is_image in there if is_image),
        shown=files.search(target.folder, live, where, columns),
        kept=files.search(target.folder, [file for file, _ in there], where, columns),
        dead=_dead(target.folder, epoch, shown | {file.path for file, _ in there}, where, columns),
    )


def _dead(folder: Folder, epoch: int, kept: Set[str], where: pa.compute.Expression, columns: pa.Schema) -> files.Found:
    """Return the rows of the person in files that nothing names any more."""
    paths = [path for path in purge.unneeded(folder, kept, through=epoch) if path.endswith(".parquet")]
    dead = [StagedFile(path=path, size=folder.size(path), rows=0, first_id=None, last_id=None) for path in paths]
    return files.search(folder, dead, where, columns)


def _is_by_key(person: Person, table: RegionTable) -> bool:
    """Say whether the keys of a table tell the person: then all rows of a key are the person's, or none."""
    return bool(table.keys) and set(person.columns_in(table.columns or table.column_names)) <= set(table.keys)


def _outside(store: RegionTables, table: RegionTable, person: Person) -> Searched:
    sink = store.external(table)
    if not sink.exists():
        return Searched(table=table)
    from drainmark.resources.sinks.database_columns import arrow_schema as schema_of

    schema = schema_of(table.schema_json, table.columns)
    where = condition_of(person, schema)
    if where is None:
        return Searched(table=table)
    sink.txn_version()  # this notes it: the rows leave a sink that has not changed since; no claim asks one that left
    rows = sink.read([*dict.fromkeys([*columns_of(person, schema).names, SEQUENCE_ID])], where)
    return _with_rows(table, where, rows)


def _declared(table: RegionTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(delta_schema(table.schema_json))


def _with_rows(table: RegionTable, where: pa.compute.Expression, rows: pa.Table) -> Searched:
    ids = Counter(number for number in rows[SEQUENCE_ID].to_pylist() if number is not None)
    return Searched(table=table, where=where, shown=files.Found(ids=ids))


def _adopted(store: RegionTables, table: RegionTable, person: Person) -> Searched:
    schema = _declared(table)
    where = condition_of(person, schema)
    target = store.adopted(table.name)
    if where is None or not target.exists():
        return Searched(table=table, is_opaque=where is None and bool(opaque_columns(schema)))
    rows = target.read([SEQUENCE_ID], where)
    return _with_rows(table, where, rows)


# --- carrying it out ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class RegionErasure:
    """The erasure of a person from one region whose owner has claimed it, and has published all that is committed.

    Attributes:
        passed: names of tables that stay as they are.
        notes: what was found and removed, for the certificate.
        together: the regions from which the person is erased: what they wrote may be read again.
    """

    owner: RegionOwner
    person: Person
    notes: Notes
    passed: frozenset[str] = frozenset()
    together: frozenset[str] = frozenset()
    _found: list[Searched] = field(default_factory=list)
    _pushed: Mapping[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Find the rows of the person; nothing changes yet.

        Raises:
            EraseRefused: batches are in flight between stages, or a table cannot be searched.
        """
        owner, store = self.owner, self.owner.outside.store
        require_still(owner)
        owner.visible.bring_up_all()
        owner.ledger.note_published()
        found = search(store, store.checkpoint.rows(), tables_of(store, owner.history), self.person)
        self._found = [each for each in found if each.table.name not in self.passed]
        require_erasable(self._found, owner.region)

    def note(self, inputs: Callable[[Collection[int]], Sequence[BlockedInput]]) -> None:
        """Note where the rows are, before any of them leaves.

        Args:
            inputs: returns the inputs of some ids, and others that hold the person.
        """
        owner, store = self.owner, self.owner.outside.store
        ids = sorted({number for each in self._found for number in each.ids})
        self._pushed = buffers.held(store.home, owner.region, self.person)
        held = [each for each in inputs(ids) if not self._is_cleaned(each)]
        self.notes.block(each for each in held if each.state in BLOCKED)
        tables = [
            {
                "table": each.table.name,
                "rows": each.shown.rows,
                "copies": each.kept.rows + each.dead.rows,
                "state": each.state,
            }
            for each in self._found
        ]
        tables += [
            {"table": f"{buffers.BUFFERS}/{owner.region}/{name}", "rows": rows, "copies": 0, "state": "searched"}
            for name, rows in self._pushed.items()
        ]
        self.notes.write("found", {"ids": ids, "inputs": [each.to_json() for each in held], "tables": tables})
        world.pass_point(ErasePoint.NOTED)

    def _is_cleaned(self, given: BlockedInput) -> bool:
        """Say whether an input is cleaned by this erasure: pushed rows, and rows of tables of these regions."""
        sources = buffers.sources(self.owner.outside.store.home, self.owner.region)
        return bool(given.starts) and all(
            upstream in self.together if upstream else name in sources for name, upstream in given.starts.items()
        )

    def carry_out(self) -> None:
        """Let the rows leave; this repeats what an earlier attempt did, without effect."""
        owner, store, found = self.owner, self.owner.outside.store, self._found
        of_rows = [each for each in found if each.table.is_managed and not each.table.is_derived]
        renamed = {each.table.name: self._written(each) for each in of_rows if each.shown.files or each.kept.files}
        erased = checkpoints.Erased(self.person, renamed, passed=self.passed, pushed=self._pushed)
        checkpoints.rewrite(store.checkpoint, checkpoints.without(erased))
        buffers.erase(store.home, owner.region, self.person)
        for each in of_rows:
            self._show(each, renamed.get(each.table.name, {}))
        store.checkpoint.forget()
        owner.ledger.refresh()
        for each in found:
            if each.table.is_managed and each.table.is_derived:
                self._make_again(each)
            elif each.table.external:
                self._erase_outside(each)
        self._purge([each for each in found if each.table.is_managed and each.where is not None])

    def _written(self, found: Searched) -> dict[str, tuple[StagedFile, ...]]:
        """Write the files that hold rows of the person again; return the new files by path of the old one."""
        store, target = self.owner.outside.store, self.owner.outside.store.table(found.table.name)
        schema = arrow_schema(delta_tables.open_table(target.folder))
        staging = store.staging(found.table, self.owner.epoch, attempt_of(world.token()))
        images = [file for file in found.kept.files if file.path in found.images]
        plain = [*found.shown.files, *(file for file in found.kept.files if file.path not in found.images)]
        where = found.where
        if where is None:
            return {}
        written = files.rewrite(target.folder, staging, plain, schema, where)
        if found.table.role is TableRole.CHANGES and found.shown.files:
            rows = in_their_place(store, self.owner.history, found.table, found.shown.files, where, schema=schema)
            if rows is not None:
                last = found.shown.files[-1].path
                written[last] = (*written[last], *staging.write(typed(rows, schema), "kept"))
        staging = store.staging(found.table, self.owner.epoch, attempt_of(world.token()))
        return written | files.rewrite(target.folder, staging, images, schema, where, as_they_are=True)

    def _show(self, found: Searched, renamed: files.Renamed) -> None:
        """Let a table of rows show the files that were written again."""
        target = self.owner.outside.store.table(found.table.name)
        if found.shown.files:
            self._swap(target, found.shown.files, [new for file in found.shown.files for new in renamed[file.path]])

    def _swap(self, target: ManagedTable, old: Sequence[StagedFile], new: Sequence[StagedFile]) -> None:
        """Replace files of a table.

        Raises:
            Fenced: another owner changed the table meanwhile.
        """
        version = target.txn_version() or 0
        is_done = commits.replace(
            target.folder, self.owner.region, version, replaced=old, rewritten=new, writer=target.writer, verb="erase"
        )
        if not is_done:
            raise Fenced(f"another owner changed {target.folder} during the erasure")

    def _make_again(self, found: Searched) -> None:
        """Make a visible table from its history again: where the last row of a key left, the one before it comes back.

        If the columns are keys, all rows of these keys left, so only the files that hold them are written again.
        """
        if not found.shown.files or found.where is None:
            return
        store, target = self.owner.outside.store, self.owner.outside.store.table(found.table.name)
        opened = delta_tables.open_table(target.folder)
        staging = store.staging(found.table, self.owner.epoch, world.token())
        is_by_key = found.table.role is TableRole.UPSERT and _is_by_key(self.person, found.table)
        is_left = found.table.name in {table.name for table in self.owner.history.former}
        if is_by_key or is_left or self._has_lost_image(found.table.history or ""):
            written = files.rewrite(target.folder, staging, found.shown.files, arrow_schema(opened), found.where)
            old, new = found.shown.files, [file for some in written.values() for file in some]
        else:
            rows = RepairPlan(store, self.owner.history).rows_for(found.table.name)
            old, new = list(found.live), list(rows.written(opened, staging))
        self._swap(target, old, new)

    def _has_lost_image(self, name: str) -> bool:
        """Say whether a history dropped changes, and the image in their place is gone: it does not tell all keys."""
        history, files_of = self.owner.history, self.owner.outside.store.table(name).files
        return name in history.dropped and history.image_held(name, None, files_of.holds) is None

    # --- outside Delta ---------------------------------------------------------------------------------------------

    def _erase_outside(self, found: Searched) -> None:
        """Let rows leave a database or files; a key whose last row left gets the one before it.

        If an earlier attempt was killed behind that, what it left where no reader looks leaves now.
        """
        noted = (table for attempt in self.notes.read("found") for table in attempt["tables"] if table["rows"])
        if found.where is None or found.table.name not in {table["table"] for table in noted}:
            return
        owner, store, table = self.owner, self.owner.outside.store, found.table
        sink, where = store.external(table, owner.epoch), found.where
        version = txn_version(owner.epoch, owner.history.next_id - 1)
        world.pass_point(ErasePoint.SINK)
        from drainmark.resources.sinks.file_tables import FileTable

        if not found.shown.rows:
            pass
        elif isinstance(sink, FileTable):
            sink.erase(version, list(found.shown.ids), where)
        elif table.keys and not _is_by_key(self.person, table):
            for repair in outer_sinks.repairs_of(store, owner.history, [table], whatever={table.name}):
                outer_sinks.put_right(store, owner.history, repair, owner.epoch, version)
        else:
            ids = sorted(found.shown.ids)
            sink.put_right(version, lambda some: [sink.read_ids(some).filter(~where)], written=ids, leaving=())
        sink.forget_removed()

    # --- what is left on disk ---------------------------------------------------------------------------------------

    def _purge(self, found: Sequence[Searched]) -> None:
        """Delete the files that nothing names any more, and the entries of logs that tell of them."""
        owner, store = self.owner, self.owner.outside.store
        named = _named(store.checkpoint.rows())
        for each in found:
            target = store.table(each.table.name)
            owner.ledger.refresh()  # a fenced owner deletes nothing
            kept = file_lists.kept_paths(delta_tables.open_table(target.folder), target.folder)
            kept |= named.get(each.table.name, {}).keys()
            self._delete(target.folder, each.table.name, purge.unneeded(target.folder, kept, through=owner.epoch))
            purge.forget_log(target.folder, owner.region, writer=target.writer)
        checkpoint = store.checkpoint
        kept = file_lists.live_paths(delta_tables.open_table(checkpoint.folder))
        self._delete(
            checkpoint.folder, store.checkpoint_name, purge.unneeded(checkpoint.folder, kept, through=owner.epoch)
        )
        channels = store.tables / channels_folder(owner.region)
        self._delete(
            channels, channels_folder(owner.region), purge.unneeded(channels, frozenset(), through=owner.epoch)
        )
        spools = store.leftovers.dead_spools(below_epoch=owner.epoch, before=world.now())
        store.leftovers.discard_spools(spools)
        world.pass_point(ErasePoint.PURGED)

    def _delete(self, folder: Any, name: str, paths: Sequence[str]) -> None:
        if paths:
            self.notes.removed(name, files.digests(folder, paths))
            folder.remove(paths)


def require_still(owner: RegionOwner) -> None:
    """Refuse while batches are in flight between stages: their rows are in no table.

    Raises:
        EraseRefused: the remedy lets them arrive.
    """
    if any(batch.files for batch in owner.history.flow.batches):
        application = owner.region.partition("/")[0]
        msg = f"{owner.region} has batches in flight between its stages, and their rows are in no table yet"
        raise EraseRefused(msg, remedy=f"let them arrive, and repeat it: drainmark run {application}", tables=())


def require_erasable(found: Sequence[Searched], region: str) -> None:
    """Refuse tables in which a person cannot be found, unless they were named to stay as they are.

    Raises:
        EraseRefused: names them.
    """
    hidden = [each.table for each in found if each.is_opaque]
    away = [each.table for each in found if each.is_away]
    adopted = [each.table for each in found if each.table.adopted and each.shown.rows]
    if not hidden and not adopted and not away:
        return
    said = []
    if hidden:
        said.append(
            f"{', '.join(table.name for table in hidden)} may keep rows inside of values, as handlers' states and"
            " lists of windows, where nobody can look for a person"
        )
    if adopted:
        said.append(f"{', '.join(table.name for table in adopted)} is a table of others, who may write to it")
    if away:
        said.append(f"{', '.join(table.name for table in away)} does not answer, or no setting says where it is")
    names = tuple(table.name for table in (*hidden, *adopted, *away))
    flags = " ".join(f"--except {name}" for name in names)
    msg = f"{region}: {'; '.join(said)}"
    raise EraseRefused(msg, remedy=f"erase there by your own code; then leave them out with {flags}", tables=names)
