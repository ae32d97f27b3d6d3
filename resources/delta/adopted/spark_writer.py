"""The JVM that writes to an adopted table: the first commit starts it, and no other JVM writes while it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.delta import commits
from drainmark.resources.delta.adopted import spark_commits
from drainmark.resources.delta.adopted.spark_commits import SparkCommit
from drainmark.resources.delta.adopted.writer_lock import WriterProcess, writing
from drainmark.resources.delta.adopted.written_files import require_written
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from drainmark.resources.spark.engine import Engine

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
        opened = commits.open_table(self.folder)
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
