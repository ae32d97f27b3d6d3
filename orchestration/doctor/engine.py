"""Checks of Spark: its start, the versions of its executors, their access to tables and inputs, and a small group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import AccountingError
from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.frames.tags import SEQUENCE_ID, arrow_schema
from drainmark.jobs.tasks.parquet_files import frame_of_files, require_here, write_files
from drainmark.orchestration.doctor.findings import Finding, broken, ok, warn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.spark.executor_reach import Executors, Worker
    from drainmark.resources.storage.folder import Folder


_BY_SPARK = 'under [spark_conf]: "spark.authenticate" = "true"; Spark makes the secret'
_SHARED = "spark.authenticate and spark.authenticate.secret, the same everywhere"
_AUTHENTICATE = {
    "spark": f"{_SHARED}: in conf/spark-defaults.conf of master and workers, and under [spark_conf] here",
    "sc": "set spark.authenticate, and what its master needs with it, where the Connect server is started",
}
"""What turns authentication on, by the kind of master; only a standalone cluster needs a secret from its users."""


def engine(workplace: Workplace, tell: Callable[[str], None] = lambda text: None) -> Iterator[Finding]:
    """Start Spark as a run does, and check that it can do the work of a run; delete the files that this writes."""
    try:
        workplace.engine.tell = tell
        executors = workplace.engine.executors()
        version = executors.session.version
    except Exception as error:
        yield broken("engine", error, remedy="look at spark_master and spark_conf")
        return
    yield ok("engine", f"Spark {version} answers ({workplace.engine.master})")
    yield from _ports(executors.session, workplace.engine.master)
    try:
        workers = executors.workers()
    except ClusterRefused as error:
        yield broken("engine_versions", error)
        return
    misfits = [refusal for worker in workers if (refusal := _refusal(executors.require_fit, worker))]
    yield from (broken("engine_versions", refusal) for refusal in misfits)
    if not misfits:
        yield from _versions(workers)
    lack = _refusal(_require_reach, workplace, executors)
    if lack is not None and lack.message not in {refusal.message for refusal in misfits}:
        yield broken("engine_reach", lack)
    if lack is None:
        yield ok("engine_reach", _reached(workplace, executors, workers))
        yield _group(workplace, executors)


def _ports(session: Any, master: str) -> Iterator[Finding]:
    """Yield a warning if Spark takes messages of anybody on the ports of its driver and executors."""
    if session.conf.get("spark.authenticate", "false") == "true":
        return
    message = f"spark.authenticate is off ({master}): whoever reaches the ports of driver and executors runs code there"
    yield warn("engine_ports", message, _AUTHENTICATE.get(master.partition(":")[0], _BY_SPARK))


def _refusal(requirement: Callable[..., None], *arguments: Any) -> ClusterRefused | None:
    try:
        requirement(*arguments)
    except ClusterRefused as error:
        return error
    return None


def _versions(workers: list[Worker]) -> Iterator[Finding]:
    """Yield findings on the executors' versions: without pandas, or with another, pandas functions fail or differ."""
    from drainmark.resources.spark.executor_reach import own_python

    here = own_python()
    others = [worker for worker in workers if _minor(worker.pandas) != _minor(here.pandas)]
    for worker in others:
        found = f"pandas {worker.pandas}" if worker.pandas else "no pandas"
        message = f"the executor on {worker.host} has {found}, here is {here.pandas}: functions on pandas need it"
        yield warn("engine_versions", message, f"install pandas {_minor(here.pandas)} for the Python of the workers")
    if not others:
        numbers = f"Python {'.'.join(here.numbers[:1])}, pyarrow {here.numbers[1]}, pandas {_minor(here.pandas)}"
        yield ok("engine_versions", f"executors have {numbers} and this Drainmark, as this process")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _require_reach(workplace: Workplace, executors: Executors) -> None:
    from drainmark.orchestration.runs.region_runs import folders_read, region_outside
    from drainmark.orchestration.workplace.declaration import load_region
    from drainmark.orchestration.workplace.spark_choice import stores_of

    executors.require_stores(*stores_of(workplace.settings))
    for name in workplace.known_regions():
        if (found := load_region(workplace, name)) is not None:
            opened, region = found
            outside = region_outside(workplace, name, opened.application)
            executors.require_inputs(folders_read(region, outside, workplace.settings.project_root))


def _reached(workplace: Workplace, executors: Executors, workers: list[Worker]) -> str:
    hosts = sorted({worker.host for worker in workers})
    where = f"executors on {', '.join(hosts)} reach {workplace.tables}"
    return where if executors.shares_disk else f"{where}, and not the disk of this machine, which they need not"


def _group(workplace: Workplace, executors: Executors) -> Finding:
    try:
        try_group(executors.session, workplace.tables)
    except Exception as error:
        return broken("engine_group", error, remedy="look at the logs of Spark's executors")
    return ok("engine_group", "a small group was written by tasks, and read by them and by this process")


_ROWS = 1000
_TASKS = 2


def try_group(session: SparkSession, tables: Folder) -> None:
    """Have tasks write rows like those of a group, compare the rows that all read back, and delete the files.

    Args:
        tables: folder of all tables.

    Raises:
        AccountingError: rows are missing, or differ.
        OSError, StoreUnavailable: a task could not write.
    """
    name = f"_drainmark_probe-{world.token()}"
    folder = tables / name
    wanted = session.range(0, _ROWS, 1, _TASKS).selectExpr(f"id AS {SEQUENCE_ID}", "CAST(id AS string) AS value")
    try:
        files = write_files(wanted, folder.place)
        require_here(folder.stamp, str(folder), files)
        names = [file.name for file in files]
        _require_rows("this process", folder.read(names, arrow_schema(wanted.schema)))
        _require_rows("tasks", frame_of_files(session, folder.place, names, wanted.schema).toArrow())
    finally:
        tables.delete(name)


def _require_rows(who: str, rows: pa.Table) -> None:
    found = sorted(zip(*(rows.column(name).to_pylist() for name in (SEQUENCE_ID, "value")), strict=True))
    if found != [(number, str(number)) for number in range(_ROWS)]:
        msg = f"of {_ROWS} rows that tasks wrote {who} read {rows.num_rows}, or others"
        raise AccountingError(msg, rows=rows.num_rows, expected=_ROWS)
