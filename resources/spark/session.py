"""The Spark session adapter: builds the session, tags and cancels its jobs, stops it.

Code above this file uses only the DataFrame, SQL and catalog APIs that Spark Connect has, too. The differences between
an in-process session and a Connect server are handled in here.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.errors import JavaMissing, SparkLost
from drainmark.jobs.errors.spark_faults import lost_engine, telling_line
from drainmark.resources.settings import is_local
from drainmark.resources.spark.session_settings import CORRECTNESS, UTC, SessionSettings, write_properties
from drainmark.resources.spark.unnamed_user import java_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from drainmark.resources.spark.executor_reach import Executors
    from drainmark.resources.storage.folder import Folder


class Engine(Protocol):
    """A Spark session with jobs that can be tagged, cancelled, and put into pools that share the cores fairly."""

    @property
    def master(self) -> str: ...
    @property
    def is_local(self) -> bool: ...
    @property
    def shares_disk(self) -> bool: ...
    @property
    def is_ours(self) -> bool: ...
    @property
    def session(self) -> SparkSession: ...
    def tagged(self, tag: str) -> AbstractContextManager[None]: ...
    def pooled(self, pool: str) -> AbstractContextManager[None]: ...
    def cancel(self, tag: str) -> None: ...
    def require_outputs(self, folders: Sequence[Path]) -> None: ...
    def require_inputs(self, folders: Sequence[Path]) -> None: ...


class SparkEngine:
    """One session of a process, built at first use.

    Args:
        master: `local[*]`, a master URL, or `sc://host:port` for a Connect server.
        conf: the user's settings, passed through.
        scratch: folder for Spark's own temporary files.
        shared: folders that executors must reach as this process does.
        bucket: the folder of the tables, if it is in a bucket: executors must reach it, and then need no `shared`.

    Attributes:
        tell: called with a message before each step that takes seconds.
        is_ours: Spark's workers are of this machine and this user; known once there is a session.

    Raises:
        JavaMissing: at first use, if no Java runtime is found.
        ClusterRefused: at first use, if executors do not reach the folders.
    """

    def __init__(
        self,
        master: str,
        conf: Mapping[str, str],
        scratch: Path,
        shared: Sequence[Path] = (),
        bucket: Folder | None = None,
    ) -> None:
        self.master = master
        self.shared = tuple(shared)
        self.bucket = bucket
        self.settings = SessionSettings(master=master, conf=dict(conf), scratch=scratch)
        self.scratch = scratch
        self.tell: Callable[[str], None] = lambda text: None
        self.is_ours = False
        self._session: SparkSession | None = None
        self._executors: Executors | None = None  # if they are not ours
        self._server = ""  # the master of the server, if there is one
        self._lock = threading.Lock()

    @property
    def is_remote(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def is_local(self) -> bool:
        """Say whether there is only one executor, in the JVM of the driver."""
        return is_local(self._server or self.master)

    @property
    def session(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                executors = self.executors()
                if not executors.are_ours:
                    try:
                        executors.require_stores(self.shared, self.bucket)
                    except BaseException:
                        executors.session.stop()
                        raise
                    self._executors = executors
                self.is_ours, self._session = executors.are_ours, executors.session
            return self._session

    def executors(self) -> Executors:
        """Return the executors of the session, or of a new session; they are not tested here.

        Raises:
            JavaMissing, SparkLost: there is no session.
        """
        from drainmark.resources.spark.executor_reach import Executors

        are_ours = not self.shared or is_local(self.master)  # in this process, or started by us
        if (session := self._session) is None:
            self.tell(f"{'connecting to' if self.is_remote else 'starting'} Spark ({self.master}) …")
            session = self._connect() if self.is_remote else _start(self.master, self.settings, self.scratch)
            _leave_errors_to_us()
        if self.is_remote:
            self._server = session.conf.get("spark.master", None) or ""
        return Executors(session, self.master, are_many=not self.is_local, are_ours=are_ours)

    @property
    def shares_disk(self) -> bool:
        """Say whether the executors reach the folders of this machine that they should share."""
        return bool(self.session) and (self._executors is None or self._executors.shares_disk)

    def require_inputs(self, folders: Sequence[Path]) -> None:
        """Test whether Spark sees the files of some folders, once for each session and folder.

        Raises:
            ClusterRefused: it does not.
        """
        if folders and self.session and self._executors is not None:
            self._executors.require_inputs(folders)

    def require_outputs(self, folders: Sequence[Path]) -> None:
        """Test whether this process finds files that Spark writes to some folders, once for each session and folder.

        Raises:
            ClusterRefused: it does not.
        """
        if self.session and self._executors is not None:
            self._executors.require_outputs(folder for folder in folders if folder.is_dir())

    def prepare(self) -> None:
        """Start the server that a session will need, without waiting for it; an in-process engine needs none."""

    def connect_soon(self) -> None:
        """Connect in the background, if this process need not start a JVM; a failure shows at first use."""

    def _connect(self) -> SparkSession:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.remote(self.master).getOrCreate()
        for key, value in CORRECTNESS.items():
            session.conf.set(key, value)
        return session

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        """Mark the jobs that the calling thread starts inside the block."""
        if self.is_remote:
            self.session.addTag(tag)
        else:
            self.session.sparkContext.addJobTag(tag)
        try:
            yield
        finally:
            if self.is_remote:
                self.session.removeTag(tag)
            else:
                self.session.sparkContext.removeJobTag(tag)

    @contextmanager
    def pooled(self, pool: str) -> Iterator[None]:
        """Put the jobs that the calling thread starts inside the block into a pool; Connect has no pools."""
        if self.is_remote:
            yield
            return
        context = self.session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", pool)
        try:
            yield
        finally:
            context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]  # takes it away

    def cancel(self, tag: str) -> None:
        """Cancel the jobs with a tag, of any thread; it is no error if there are none, or if Spark is gone."""
        if self._session is None:
            return
        try:
            if self.is_remote:
                self._session.interruptTag(tag)
            else:
                self._session.sparkContext.cancelJobsWithTag(tag)
        except Exception as error:
            if lost_engine(error) is None:
                raise

    @property
    def session_id(self) -> str | None:
        """Return the name by which others can end this session; None if it ends with its process anyway."""
        return None

    def end_session(self, session_id: str) -> None:
        """End the jobs of another process's session, and free its memory; do nothing if it is gone."""

    def discard(self) -> None:
        """Forget a session that has lost its Spark, without a call to Spark; the next use connects again."""
        with self._lock:
            session, self._session = self._session, None
            self._executors = None
            if session is not None and self.is_remote:
                session.release_session_on_close = False  # type: ignore[attr-defined]
                session.stop()
            elif not self.is_remote:
                _forget_dead_jvm()

    def stop(self) -> None:
        with self._lock:
            if self._session is not None:
                self._session.stop()
                self._session = None
                self._executors = None


def _start(master: str, settings: SessionSettings, scratch: Path) -> SparkSession:
    check_java()
    from pyspark.sql import SparkSession

    if (python := settings.conf.get("spark.pyspark.python")) is not None:
        os.environ["PYSPARK_PYTHON"] = python  # a session that Python starts does not look at the setting
    elif master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the python3 on the PATH
    told = {**settings.of_start(), "spark.app.name": "drainmark", "spark.master": master}
    builder = SparkSession.builder
    for key, value in told.items():
        builder = builder.config(key, value)
    log = scratch / "driver.log"
    before = log.stat().st_size if log.is_file() else 0
    try:
        with _stderr_to(log):
            _launch(told, scratch)
            session = builder.getOrCreate()
    except Exception as error:
        has_ended = "JAVA_GATEWAY_EXITED" in str(error)  # the error says nothing else
        logged = log.read_bytes()[before:].decode(errors="replace").strip()
        said = _reason(logged if has_ended else str(error))
        raise SparkLost(f"Spark did not start: {said}", remedy=f"look at spark_conf and {log}") from error
    session.sparkContext.environment.update(UTC)  # also if the context is one of the author's, with other settings
    _look_up_once(session)
    return session


def _reason(text: str) -> str:
    """Return the exception that a JVM names and its first cause, which alone tells an address; else the last words."""
    causes = [line.strip() for line in text.splitlines() if line.startswith("Caused by: ")]
    return "; ".join([telling_line(text), *causes[:1]]) if "Exception" in text else text[-500:]


def _launch(settings: Mapping[str, str], scratch: Path) -> None:
    """Start the JVM of this process if there is none: a session would put all settings on its command line."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        return
    scratch.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    with tempfile.TemporaryDirectory(prefix="driver-", dir=scratch) as folder:  # containers of a home have equal pids
        path = Path(folder, "driver.conf")
        write_properties(path, settings)
        of_file = f"--properties-file {shlex.quote(str(path))} --load-spark-defaults"
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{of_file} {before or 'pyspark-shell'}"
        try:
            SparkContext._ensure_initialized()
        finally:
            os.environ.pop("PYSPARK_SUBMIT_ARGS")
            if before is not None:
                os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _forget_dead_jvm() -> None:
    """Let the next session start a JVM if that of this process has ended: PySpark would go on calling the dead one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    if gateway is None or getattr(gateway, "proc", None) is None or gateway.proc.poll() is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _leave_errors_to_us() -> None:
    """Keep Spark from printing each failed query as a page of JSON, twice: it raises the same, and we report it."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


_CLASSES = (
    "PythonRDD", "PythonSQLUtils", "PythonUtils", "SerDeUtil", "SimplePythonFunction", "functions",
    "org.apache.spark.sql.classic.SparkSession", "org.apache.spark.sql.expressions.Window",
    "org.apache.spark.sql.functions",
)  # fmt: skip


def _look_up_once(session: SparkSession) -> None:
    """Cache the classes that PySpark looks up for each column: the JVM searches hundreds of jars for each name."""
    view = session.sparkContext._jvm
    for name in _CLASSES:
        setattr(view, name, getattr(view, name))


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Send the standard error of a JVM that starts inside the block to a file: it does not help the user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def check_java() -> None:
    """Fail at once if Spark could not start.

    Raises:
        JavaMissing: neither JAVA_HOME nor the PATH leads to a Java runtime.
    """
    if java_program() is None:
        msg = "Spark needs a Java runtime and none was found"
        raise JavaMissing(msg, remedy="install Java 17 (Debian: apt install openjdk-17-jre-headless)")
