"""The names of sources, lookups and tables as OpenLineage names datasets: a namespace, and a name within it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drainmark.jobs.operators.sources.database_source import DatabaseSource
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.files.file_source import FileSource
from drainmark.jobs.operators.sources.kafka_source import KafkaSource
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.operators.sources.table_source import TableSource
from drainmark.jobs.protocol.records.addresses import address_of, is_object

if TYPE_CHECKING:
    from drainmark.jobs.graph.operator import Operator
    from drainmark.jobs.protocol.records.manifest import RegionTable
    from drainmark.orchestration.workplace.workplace import Workplace

_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}
_SCHEMES = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "sqlserver"}


class Dataset(NamedTuple):
    """A dataset: `("file", "/data/inbox")`, `("s3://bucket", "inbox")`, `("kafka://host:9092", "clicks")`."""

    namespace: str
    name: str


def input_of(workplace: Workplace, region: str, operator: Operator) -> Dataset:
    """Return the dataset that a source or a lookup reads; of input that a program pushes, the source itself."""
    if isinstance(operator, DirectorySource):
        return place_of(operator.scan.path, workplace.settings.project_root)
    if operator.tables_read:
        return _delta(workplace, operator.tables_read[0])
    found = _sliced(workplace, operator) if isinstance(operator, SlicedSource) else None
    return found or Dataset("drainmark", f"{region}/{operator.name}")


def _sliced(workplace: Workplace, source: SlicedSource) -> Dataset | None:
    reads: Any = source.reads
    if isinstance(reads, KafkaSource):
        servers = reads.bootstrap_servers
        if not servers and reads.cluster:
            options = workplace.settings.kafka.get(reads.cluster, {})
            servers = options.get("bootstrap.servers") or options.get("bootstrap_servers", "")
        return Dataset(f"kafka://{servers.partition(',')[0]}", reads.topic)
    if isinstance(reads, TableSource):
        return _delta(workplace, reads.table)
    if isinstance(reads, DatabaseSource):
        return _database(workplace, reads.database, f"query.{source.name}")
    if isinstance(reads, FileSource):
        return place_of(reads.path, workplace.settings.project_root)
    return None


def output_of(workplace: Workplace, table: RegionTable) -> Dataset:
    """Return the dataset that is a table of a region."""
    if table.external == "database":
        return _database(workplace, table.options["database"], table.options["table"])
    if table.external:
        path = str(table.options["path"]).replace("{home}", str(workplace.home))
        return place_of(path, workplace.settings.files_root or workplace.settings.project_root)
    return place_of((workplace.tables / table.name).uri, workplace.home)


def place_of(path: str, root: Path | str) -> Dataset:
    """Return the dataset that is a file, a folder, an object or a prefix; a relative path starts at `root`."""
    if is_object(path):
        return Dataset(*(part.rstrip("/") for part in address_of(path)))
    return Dataset("file", str(Path(root, path.removeprefix("file://"))))


def _delta(workplace: Workplace, table: str) -> Dataset:
    is_named = "://" not in table and not Path(table).is_absolute()
    return place_of((workplace.tables / "lake" / table).uri if is_named else table, workplace.home)


def _database(workplace: Workplace, database: str, table: str) -> Dataset:
    """Return the dataset of a table; its name never has a user or a password."""
    from drainmark.resources.sinks.databases import given_url

    url = given_url(workplace.settings, database)
    kind = url.get_backend_name()
    if kind == "sqlite":
        return Dataset("file", f"{url.database}/{table}")
    if kind == "postgresql" and "." not in table:
        table = f"public.{table}"
    port = url.port or _PORTS.get(kind)
    host = f"{url.host or 'localhost'}{f':{port}' if port else ''}"  # without a host it is a socket of this machine
    return Dataset(f"{_SCHEMES.get(kind, kind)}://{host}", f"{url.database}.{table}")
