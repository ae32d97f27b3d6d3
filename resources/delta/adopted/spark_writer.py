"""The JVM that writes to an adopted table: the first commit starts it, and no other JVM writes while it commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import AccountingError
from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.adopted import spark_commits
from drainmark.resources.delta.adopted.spark_commits import SparkCommit
from drainmark.resources.delta.adopted.writer_lock import WriterProcess, writing
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.delta.log.commit_log import LogCommit, commits_back
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from drainmark.resources.spark.session import Engine

_BY_ARROW_BYTES = 32 * 2**20


class SparkWriter:
    """Commits of one region to one table, through delta-spark.

    Args:
        folder: of the table.
        region: the region that commits.
        engine: gives the session, at the first commit.
    """

    def __init__(self, folder: Folder, region: str, engine: Callable[[], Engine]) -> None:
        self.folder = folder
        self._region = region
        self._engine = engine

    @property
    def session(self) -> SparkSession:
        """Return the session; start Spark if it is not started.

        Raises:
            ClusterRefused: files that its executors write to the table are not on this machine.
        """
        engine = self._engine()
        engine.require_outputs([Path(self.folder.uri)])
        return engine.session

    @contextmanager
    def alone(self, session: SparkSession) -> Iterator[None]:
        """Keep other JVMs from writing to the table inside the block.

        Raises:
            WriterBusy: another JVM is writing.
        """
        writer = WriterProcess(jvm=session.conf.get("spark.app.id") or "", master=self._engine().master)
        with writing(Path(self.folder.uri), writer):
            yield

    def commit(
        self,
        verb: str,
        version: int,
        prepare: Callable[[Any, SparkCommit], Act],
        *,
        staged: Sequence[StagedFile] | None = None,
    ) -> Published:
        """Commit unless the table's version is at or above `version`; see `spark_commits.commit`.

        Then check that the files of the commit are on this disk, also if an earlier owner made it.

        Args:
            staged: the files with the rows of an append.

        Raises:
            AccountingError: see `require_written`.
        """
        opened = delta_tables.open_table(self.folder)
        if commits.is_done(opened, self._region, version):  # then no session is needed
            done = Published(delta_version=opened.version(), done_before=True)
        else:
            spark = SparkCommit(session=self.session, folder=self.folder, region=self._region, version=version)
            with self.alone(spark.session):
                done = spark_commits.commit(spark, verb=verb, prepare=prepare)
        require_written(self.folder, self._region, version, done.delta_version, staged)
        return done

    def staged(self, session: SparkSession, files: Sequence[StagedFile]) -> DataFrame:
        """Return the rows of staged files as a frame: small files are read by Arrow, large ones by Spark."""
        import pyarrow as pa

        if not files:
            return spark_commits.no_rows(session, self.folder)
        if sum(file.size for file in files) <= _BY_ARROW_BYTES:
            tables = self.folder.read_each([file.path for file in files])
            return frame_of(session, pa.concat_tables(tables, promote_options="permissive")).coalesce(1)
        return session.read.parquet(*(f"{self.folder.uri}/{file.path}" for file in files))


def require_written(
    folder: Folder, region: str, version: int, newest: int, staged: Sequence[StagedFile] | None = None
) -> None:
    """Check that the files which a region's commit added are here, with the rows that were staged if it appended.

    The log lists them, even if they are on another disk. The check runs before the staged files, which have the same
    rows, are deleted. An owner that finds the commit done repeats it. Files that others removed or rewrote since then
    are not checked. Only the region's last commit is checked: each earlier one was checked before the next one was
    made.

    Args:
        version: `txnVersion` of the commit.
        newest: Delta version from which the log is read backwards.
        staged: the files with the rows that were appended; None if the number of rows is not known.

    Raises:
        AccountingError: a file is missing or has another size, or the number of rows differs.
    """
    is_live: dict[str, bool] = {}
    for commit in commits_back(folder, region, newest):
        if commit.transaction == version:
            live = [path for path in commit.added if is_live.get(path, True)]
            _require_files(folder, commit, live, _after_a_loss(folder, staged))
            if staged and len(live) == len(commit.added):
                _require_rows(folder, live, staged)
        if commit.transaction is not None:
            return
        is_live = {**dict.fromkeys(commit.removed, False), **dict.fromkeys(commit.added, True), **is_live}


def _require_files(folder: Folder, commit: LogCommit, paths: Collection[str], remedy: str) -> None:
    for path in paths:
        try:
            found = folder.size(path)
        except FileNotFoundError:
            found = -1
        if found != commit.added[path]:
            here = f"has {found} bytes here" if found >= 0 else "is not here"
            msg = f"{path} was committed to {folder} with {commit.added[path]} bytes, and {here}"
            raise AccountingError(msg, remedy=remedy, path=path, size=found, expected=commit.added[path])


def _require_rows(folder: Folder, live: Sequence[str], staged: Sequence[StagedFile]) -> None:
    import pyarrow.parquet as pq

    wanted = sum(file.rows for file in staged)
    first, last = min(file.first_id or 0 for file in staged), max(file.last_id or 0 for file in staged)
    found = sum(pq.read_metadata(folder.source(path)).num_rows for path in live)
    if found != wanted:
        msg = f"{wanted} rows of ids {first} to {last} were written for {folder}, and {found} are in it"
        remedy = f"delete those that are in it, append {_named(folder, staged)}"
        raise AccountingError(msg, remedy=remedy, rows=found, expected=wanted)


def _after_a_loss(folder: Folder, staged: Sequence[StagedFile] | None) -> str:
    put_back = "put it back from the disk of the worker that wrote it"
    if not staged:
        return put_back
    return f"{put_back}; where it is lost, first restore the version before and append {_named(folder, staged)}"


def _named(folder: Folder, staged: Sequence[StagedFile]) -> str:
    return f"the rows of {', '.join(str(folder / file.path) for file in staged)}"
