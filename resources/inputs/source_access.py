"""Access of sources to the outside (`sources.contract.SourceAccess`): files, tables, databases, topics, buffers, lists.

Addresses and credentials are in the settings; a source stores none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import (
    FormatTooNew,
    InputMissing,
    SplitBrain,
    StoreRefused,
    StoreUnavailable,
    UsageError,
)
from drainmark.jobs.operators.sources.files.directory_source import queue_of
from drainmark.jobs.operators.sources.slices import ANEW, HighestIds
from drainmark.jobs.protocol.chains import Upstream
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.resources.inputs.task_access import TaskAccess, engine_at, references, with_paths
from drainmark.resources.inputs.task_answers import told_to_tasks
from drainmark.resources.storage.bucket_folder import folder_of
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.operators.sources.contract import ChangesById
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.protocol.records.manifest import StagedFile
    from drainmark.jobs.protocol.records.triggers import Trigger
    from drainmark.jobs.tasks.parquet_shares import RowFile
    from drainmark.resources.kafka.topic import KafkaTopic
    from drainmark.resources.registry.registry import Registry
    from drainmark.resources.settings import Settings

_MOST_FILES = 50_000
_READABLE = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint", "deletionVectors", "invariants"})
"""Features of a Delta table that leave its added files readable without changes; the log shows deletion vectors."""


@dataclass(frozen=True, slots=True)
class RegionAccess:
    """The access of one region's starts to the outside.

    Args:
        tables: the folder of `checkpoints/`, `state/`, `lake/` and, for lists of slices' files, `slices/`.
    """

    region: str
    settings: Settings
    tables: Folder
    registry: Registry = field(repr=False)
    ids_read: HighestIds = field(default_factory=HighestIds, repr=False, compare=False)
    _makers: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def path(self, path: str) -> Path:
        return self.settings.project_root / path

    def table(self, name: str) -> Folder:
        if "://" not in name and not Path(name).is_absolute():
            return self.tables / f"lake/{name}"
        return folder_of(name, self.settings)

    def newest_version(self, name: str) -> tuple[int, str, pa.Schema]:
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        from drainmark.resources.delta.delta_tables import is_table, open_table
        from drainmark.resources.delta.lookup_tables import require_readable

        folder = self.table(name)
        try:
            table = open_table(folder, is_ours=False) if is_object(folder.uri) else DeltaTable(folder.uri)
        except (TableNotFoundError, SplitBrain) as error:
            if is_table(folder):
                raise
            raise _no_table(self, name, self._tables_with(name)) from error
        except DeltaError as error:  # entries of its log are gone or cut off
            msg = f"the log of the Delta table {folder} cannot be read: {str(error).strip().partition(chr(10))[0]}"
            remedy = f"put its entries back from a backup; or read a copy of the table {ANEW}"
            raise InputMissing(msg, remedy=remedy, triggers=(), trigger=folder.uri) from error
        require_readable(table, folder, _READABLE, "a TableSource", "read a copy without it")
        self._makers[name] = table.metadata().description or ""
        return int(table.version()), str(table.metadata().id), pa.schema(table.schema())

    def upstream(self, name: str) -> Upstream | None:
        if name not in self._makers:
            self.newest_version(name)
        mark, mine = self._makers[name], app_id("")
        if not mark.startswith(mine):
            return None
        region, tables = mark.removeprefix(mine), self._tables_with(name)
        home = tables.uri if tables is not None else name
        return Upstream(
            region=region,
            home="" if self._is_home(home) else home,
            facts=lambda: _facts_of(tables, region) if tables is not None else None,
        )

    def _is_home(self, address: str) -> bool:
        """Say whether an address is that of this home's tables, also by another way to the same folder."""
        own = self.tables.uri
        is_local = "://" not in address and "://" not in own
        return address == own or (is_local and Path(address).resolve() == Path(own).resolve())

    def _tables_with(self, name: str) -> Folder | None:
        """Return the tables of the home that a table belongs to; None if its address does not tell."""
        if "://" not in name and not Path(name).is_absolute():
            return self.tables
        root, lake, _ = name.rpartition("/lake/")
        return folder_of(root, self.settings) if lake else None

    def live_files(self, name: str, version: int | None = None) -> Sequence[StagedFile]:
        from drainmark.resources.delta.delta_tables import open_table
        from drainmark.resources.delta.file_lists import live_files

        folder = self.table(name)
        table = open_table(folder, is_ours=False)
        if version is not None and version != table.version():
            table.load_as_version(version)
        return live_files(table, folder)

    def changes_by_id(self, name: str) -> ChangesById | None:
        from drainmark.resources.checkpoints.as_of import RegionReader
        from drainmark.resources.checkpoints.change_feed import RegionFeed
        from drainmark.resources.checkpoints.region_store import RegionTables

        upstream, tables = self.upstream(name), self._tables_with(name)
        if upstream is None or tables is None or upstream.facts() is None:
            return None
        reader = RegionReader.of(RegionTables(self.settings.home, upstream.region, tables))
        return RegionFeed(reader, reader.named(f"lake/{name.rpartition('/lake/')[2]}"))

    def has_feed(self, name: str, version: int) -> bool:
        found = _opened_at(self.table(name), name, version).metadata().configuration.get("delta.enableChangeDataFeed")
        return str(found).lower() == "true"

    def files_at(self, name: str, version: int) -> Sequence[RowFile]:
        from drainmark.resources.delta.lookup_tables import files_of

        table = _opened_at(self.table(name), name, version)
        if "deletionVectors" in (table.protocol().reader_features or ()):
            msg = f"the table {self.table(name)} has deletion vectors, so its files do not tell which rows it has"
            raise UsageError(
                msg, remedy="starting_version=… at the source reads changes alone, without the whole table"
            )
        return files_of(table)

    def database(self, name: str) -> Any:
        from drainmark.resources.sinks.databases import given_url

        return engine_at(given_url(self.settings, name))

    def kafka(self, topic: str, *, servers: str, cluster: str | None) -> KafkaTopic:
        from drainmark.resources.kafka.topic import KafkaTopic, client_settings, kafka_library

        kafka_library()
        return KafkaTopic(topic, client_settings(self.settings, servers=servers, cluster=cluster))

    @contextmanager
    def of_tasks(self, *, are_ours: bool) -> Iterator[TaskAccess]:
        if not are_ours:
            yield TaskAccess(region=self.region, clusters=references(self.settings.kafka_written))
            return
        with told_to_tasks(self._told) as address:
            yield TaskAccess(region=self.region, address=address)

    def _told(self, kind: str, name: str) -> Any:
        """Return the answer to workers of this machine and user: a database's URL, or a cluster's settings."""
        from drainmark.resources.kafka.topic import cluster_of
        from drainmark.resources.sinks.databases import given_url

        if kind == "kafka":
            return with_paths(cluster_of(self.settings.kafka, name))
        url = given_url(self.settings, name)
        texts = {key: value for key, value in url.query.items() if isinstance(value, str)}
        return url.update_query_dict(with_paths(texts)).render_as_string(hide_password=False)

    def buffer(self, source: str) -> Path:
        return self.settings.home.joinpath("buffers", *self.region.split("/"), source)

    def queued(self, source: str, after: int, max_bytes: int | None) -> list[Trigger]:
        return self.registry.triggers.pending(queue_of(self.region, source), _MOST_FILES, max_bytes, after=after)

    def keep_list(self, source: str, number: int, text: str) -> str:
        import pyarrow as pa

        content = text.encode()
        name = f"{self.region}/{source}/{number:012d}-{_digest(content)}.jsonl"
        for _ in range(2):
            try:
                self._lists.write(name, pa.py_buffer(content))
                break
            except FileExistsError:  # the name has a digest of the content, but an earlier version may have cut it off
                if self._read_list(name) == content:
                    break
                self._lists.remove([name])
        return name

    def kept_list(self, name: str) -> str:
        try:
            content = self._read_list(name)
        except FileNotFoundError as error:
            msg = f"the list of a slice's files is gone: slices/{name}"
            raise InputMissing(msg, remedy="restore it from a backup", triggers=()) from error
        if not name.endswith(f"-{_digest(content)}.jsonl"):
            msg = f"the list of a slice's files differs from the kept one: slices/{name} has {len(content)} bytes"
            raise InputMissing(msg, remedy="restore it from a backup", triggers=())
        return content.decode()

    @property
    def _lists(self) -> Folder:
        return self.tables / "slices"

    def _read_list(self, name: str) -> bytes:
        source = self._lists.source(name)
        content: bytes = Path(source).read_bytes() if isinstance(source, str) else source.read()
        return content


def _opened_at(folder: Folder, name: str, version: int) -> Any:
    """Return an open `DeltaTable` at a version.

    Raises:
        InputMissing: its log does not go back so far.
    """
    from deltalake.exceptions import DeltaError

    from drainmark.jobs.operators.sources.table_log import missing_version
    from drainmark.resources.delta.delta_tables import open_table

    table = open_table(folder, is_ours=False)
    try:
        if version != table.version():
            table.load_as_version(version)
    except DeltaError as error:
        raise missing_version(name, version, "its log does not go back so far") from error
    return table


def _no_table(access: RegionAccess, name: str, home: Folder | None) -> UsageError:
    """Return the error of a table that is not there; `home` are the tables of the home that it would belong to."""
    from drainmark.resources.delta.lookup_tables import no_such_table

    folder = access.table(name)
    region = _maker(home, name.rpartition("/lake/")[2]) if home is not None else None
    if region is None:
        return no_such_table(name, folder.uri, access.tables, access.settings)
    remedy = "restore it from a backup; or see how the region gets its rows back: drainmark doctor"
    return UsageError(f"the Delta table {folder}, which {region} made, is gone", remedy=remedy, table=folder.uri)


def _maker(tables: Folder, name: str) -> str | None:
    """Return the region of a home that committed rows to a table; None if there is none."""
    from drainmark.resources.checkpoints.checkpoint_table import regions_of

    for region in regions_of(tables):
        history = _facts_of(tables, region)
        known = () if history is None else (*history.tables, *history.former)
        if history is not None and history.states and any(table.name == f"lake/{name}" for table in known):
            return region
    return None


def _facts_of(tables: Folder, region: str) -> RegionHistory | None:
    """Return the history of a region of any home; None if its checkpoint table is out of reach."""
    from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable, checkpoint_name

    checkpoint = CheckpointTable(tables / checkpoint_name(region), region)
    try:
        return checkpoint.history() if checkpoint.exists() else None
    except (StoreRefused, StoreUnavailable, SplitBrain, FormatTooNew, PermissionError):
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
