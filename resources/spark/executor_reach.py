"""The test whether executors outside this process reach its files and run its functions; made before all other work.

A job on every available executor reads files that this process wrote, and writes files that this process reads. Else
groups could be written to the workers' own disks. If tables are in a bucket, no disk has to be shared.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors.environment import SHARE_FOLDERS, ClusterRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from drainmark.jobs.tasks.places import Place
    from drainmark.resources.storage.folder import Folder

_TASKS = 16
_CONNECTIONS = (
    *("__init__.py", "variables.py", "inputs/__init__.py", "inputs/task_answers.py", "inputs/task_access.py"),
    *("kafka/__init__.py", "kafka/consumer.py", "kafka/topic.py"),
)
"""Modules of the adapters that tasks need to read the rows of sources."""

_PATIENCE_SECONDS = 120.0
_LOOKED_AT = 3
_CREDENTIALS = (
    "give the workers credentials for the bucket (AWS_*, AZURE_* or GOOGLE_* variables, or a role), and obstore for"
    " their Python; nothing of this machine's is sent to them"
)
_PYTHON = "set PYSPARK_PYTHON or spark.pyspark.python to a Python of the same version, with pyarrow, on every worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The Python of an executor, as it reports itself.

    Attributes:
        python, arrow, pandas: versions; "" if there is no such package.
        modules: `from ` and the path of Drainmark's modules, or the reason that they cannot be imported.
        lacks: the fault in the files that it had to find, or to write; "" if there is none.
        zone: the zone of its clock.
    """

    host: str
    lacks: str
    modules: str
    python: str
    arrow: str
    pandas: str
    zone: str

    @property
    def numbers(self) -> tuple[str, str]:
        """Return the versions that must be the same on both sides: Python's minor version, pyarrow's major one."""
        return ".".join(self.python.split(".")[:2]), self.arrow.partition(".")[0]


class Executors:
    """The executors of one session, with the tests that a run needs.

    Args:
        master: their name in messages.
        are_many: there are executors besides the JVM of the driver; each test runs on all that are available.
        are_ours: they have this process's Drainmark; else its modules are sent to them.
    """

    def __init__(self, session: SparkSession, master: str, *, are_many: bool, are_ours: bool = False) -> None:
        self.session = session
        self.are_ours = are_ours
        self._master = master
        self._tasks = _TASKS if are_many else 1
        self._archive = str(Path(__file__).parents[2]) if are_ours else ship_drainmark(session)
        self._not_shared: ClusterRefused | None = None
        self._reached: set[Path] = set()
        self._written: set[Path] = set()

    @property
    def shares_disk(self) -> bool:
        """Say whether they reach the folders that `try_disk` tested."""
        return self._not_shared is None

    def workers(self) -> list[Worker]:
        """Return the Python of each available executor, also if it does not fit.

        Raises:
            ClusterRefused: they cannot run Python functions.
        """
        with self._patience():
            return sorted({worker for _, worker in self._answers(_task("", (), {}))}, key=astuple)

    def require_stores(self, shared: Sequence[Path], bucket: Folder | None) -> None:
        """Test whether they reach the places of a home's tables.

        Args:
            shared: folders that they must reach.
            bucket: the folder of the tables, if it is in a bucket: then they need not reach `shared`.

        Raises:
            ClusterRefused: they do not reach it, or cannot run functions.
        """
        if bucket is None:
            self.require_outputs(shared)
        else:
            self.require_bucket(bucket)
            self.try_disk(shared)

    def try_disk(self, folders: Iterable[Path]) -> None:
        """Find out whether they reach folders as this process does; it is no error if they do not."""
        try:
            self.require_outputs(folders)
        except ClusterRefused as error:
            self._not_shared = error

    def require_outputs(self, folders: Iterable[Path]) -> None:
        """Test whether Spark and this process write to the same folders, and whether executors can run functions.

        Raises:
            ClusterRefused: they do not.
        """
        new = sorted(set(folders) - self._written)
        if not new:
            return
        nonce = uuid.uuid4().hex
        trials = [folder / f".reach-{nonce}" for folder in new]
        try:
            with self._patience():
                for trial in trials:
                    (trial / "tasks").mkdir(parents=True)
                    (trial / "asked").write_text(nonce)
                    self._require_copy(trial, nonce)
                self._require_tasks(trials, nonce)
        finally:
            for trial in trials:
                shutil.rmtree(trial, ignore_errors=True)
        self._written.update(new)

    def require_bucket(self, files: Folder) -> None:
        """Test whether tasks can read and write in a bucket.

        Args:
            files: a folder there.

        Raises:
            ClusterRefused: they cannot.
        """
        nonce = uuid.uuid4().hex
        try:
            with files.place.new_file(f"{nonce}/asked") as asked:
                asked.write(nonce.encode())
            with self._patience():
                self._require_fit(_task("", (), {}))
                answers = self._collected(_bucket_task(nonce, files.place), "number long, host string, lost string")
            for answer in answers:
                if answer["lost"]:
                    where = f"the executor on {answer['host']} ({self._master})"
                    raise ClusterRefused(f"{where} does not reach {files.place}: {answer['lost']}", remedy=_CREDENTIALS)
                files.place.stamp(f"{nonce}/{answer['number']}")
        finally:
            files.delete(nonce)

    def require_inputs(self, folders: Iterable[Path]) -> None:
        """Test whether Spark sees the files that this process sees in some folders; write nothing there.

        Raises:
            ClusterRefused: it does not.
        """
        if self._not_shared is not None:
            msg = f"{next(iter(folders), '')} is read through DRAINMARK_HOME: {self._not_shared.message}"
            raise ClusterRefused(msg, remedy=f"{self._not_shared.remedy}; or put it into a bucket")
        new = sorted(set(folders) - self._reached)
        wanted = {path: size for folder in new for path, size in _some_of(folder)}
        for path in wanted:
            try:
                _ = self.session.read.text(path).columns  # the driver looks for it; no job is started
            except Exception as error:
                raise _not_shared(f"Spark's driver ({self._master})", path, error) from error
        if wanted:
            with self._patience():
                self._require_fit(_task("", (), wanted))
        self._reached.update(new)

    def _require_copy(self, trial: Path, nonce: str) -> None:
        """Have Spark copy a file of this process, and check that this process finds the copy."""
        try:
            self.session.read.text(str(trial / "asked")).write.text(str(trial / "copy"))
        except Exception as error:
            raise _not_shared(f"Spark ({self._master})", str(trial), error) from error
        if nonce not in {path.read_text().strip() for path in (trial / "copy").glob("part-*")}:
            msg = f"a file that Spark ({self._master}) wrote to {trial.parent} is not here"
            raise ClusterRefused(msg, remedy=SHARE_FOLDERS)

    def _require_tasks(self, trials: Sequence[Path], nonce: str) -> None:
        """Have Python functions on the executors read and write the same files."""
        wanted = {str(trial / "asked"): len(nonce) for trial in trials}
        answers = self._require_fit(_task(nonce, [str(trial / "tasks") for trial in trials], wanted))
        for trial in trials:
            _require_answers(self._master, trial / "tasks", nonce, answers)

    def _require_fit(self, task: Callable[[Iterator[Any]], Iterator[Any]]) -> list[tuple[int, Worker]]:
        """Run the tasks, and check their workers; return the number of each task with its worker."""
        answers = self._answers(task)
        for _, worker in answers:
            if worker.lacks:
                msg = f"{self._name(worker)} does not share this machine's files: {worker.lacks}"
                raise ClusterRefused(msg, remedy=SHARE_FOLDERS)
            self.require_fit(worker)
        return answers

    def _answers(self, task: Callable[[Iterator[Any]], Iterator[Any]]) -> list[tuple[int, Worker]]:
        columns = "number long, " + ", ".join(f"{fact.name} string" for fact in fields(Worker))
        found = (answer.asDict() for answer in self._collected(task, columns))
        return [(answer.pop("number"), Worker(**answer)) for answer in found]

    def _collected(self, task: Callable[[Iterator[Any]], Iterator[Any]], columns: str) -> list[Any]:
        tasks = self.session.range(0, self._tasks, 1, self._tasks)
        try:
            return list(tasks.mapInArrow(task, columns).collect())
        except Exception as error:
            from drainmark.jobs.graph.blame import summary_of

            msg = f"the executors of {self._master} cannot run Python functions: {summary_of(error)}"
            raise ClusterRefused(msg, remedy=_PYTHON) from error

    def _name(self, worker: Worker) -> str:
        return f"the executor on {worker.host} ({self._master})"

    def require_fit(self, worker: Worker) -> None:
        """Check that a worker can run the functions of this process.

        Raises:
            ClusterRefused: it has another Python, pyarrow, Drainmark or zone.
        """
        where, here = self._name(worker), own_python()
        if worker.numbers != here.numbers:
            (python, arrow), own = worker.numbers, " and ".join(here.numbers)
            msg = f"{where} has Python {python} and pyarrow {arrow}, here are {own}"
            raise ClusterRefused(msg, remedy=_PYTHON)
        if not worker.modules.startswith("from "):
            msg = f"{where} cannot import Drainmark's modules: {worker.modules}"
            raise ClusterRefused(msg, remedy="install the dependencies of Drainmark for the Python of the workers, too")
        if self._archive not in worker.modules:
            msg = f"{where} has loaded another Drainmark, {worker.modules}, before the one that was sent"
            raise ClusterRefused(msg, remedy="uninstall it there, or have nothing import it when Python starts")
        if worker.zone != here.zone:  # only on a server that others started: ours, and contexts, give UTC to workers
            msg = f"{where} has its Python in the zone {worker.zone}: functions would change times in the repeated hour"
            raise ClusterRefused(
                msg, remedy="start that Spark with TZ=UTC in its environment, and --conf spark.executorEnv.TZ=UTC"
            )

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """Limit the time of the jobs inside the block: a cluster without free workers never starts one."""
        session, is_over = self.session, threading.Event()
        tag = f"drainmark-reach-{uuid.uuid4().hex}"

        def end() -> None:
            is_over.set()
            session.interruptTag(tag)

        timer = threading.Timer(_PATIENCE_SECONDS, end)
        timer.daemon = True
        timer.start()
        session.addTag(tag)
        try:
            yield
        except Exception as error:
            if not is_over.is_set():
                raise
            msg = f"{self._master} did not do a small job within {_PATIENCE_SECONDS:g} s"
            raise ClusterRefused(msg, remedy="look at the cluster: are there workers with free cores?") from error
        finally:
            timer.cancel()
            session.removeTag(tag)


def own_python() -> Worker:
    """Return the Python of this process, in the form in which workers report theirs."""
    import pandas as pd
    import pyarrow as pa

    python = ".".join(map(str, sys.version_info[:3]))
    return Worker(host="", lacks="", modules="", python=python, arrow=pa.__version__, pandas=pd.__version__, zone="UTC")


def ship_drainmark(session: SparkSession) -> str:
    """Send the modules of Drainmark that functions need to the workers; return the name of the archive.

    Workers import it before a Drainmark that is installed there, so that both sides run the same version. None has to
    be installed.
    """
    from drainmark.jobs.graph.own_modules import texts_of
    from drainmark.resources.spark.worker_code import ship_modules

    package = Path(__file__).parents[2]
    own = {name: package / name for name in ("__init__.py", "api.py", "jobs")}
    connections = [package / "resources" / path for path in _CONNECTIONS]
    texts = {f"drainmark/{path}": text for path, text in texts_of(own).items()}
    texts |= {f"drainmark/{path.relative_to(package).as_posix()}": path.read_bytes() for path in connections}
    return ship_modules("drainmark", texts, session)


def _not_shared(who: str, path: str, error: Exception) -> ClusterRefused:
    from drainmark.jobs.errors.spark_faults import telling_line

    why = telling_line(str(error))
    return ClusterRefused(f"{who} does not share this machine's files: {path}: {why}", remedy=SHARE_FOLDERS)


def _some_of(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield a folder, and some of its files with their sizes; for a Delta table, only the newest entry of its log."""
    if not folder.is_dir():
        return
    yield str(folder), -1
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith((".", "_")))
    entries = sorted((folder / "_delta_log").glob("*.json"))
    for path in entries[-1:] or itertools.islice(files, _LOOKED_AT):  # others may delete a table's files meanwhile
        with contextlib.suppress(OSError):
            yield str(path), path.stat().st_size


def _bucket_task(nonce: str, place: Place) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function of a task in a bucket: it reads the file of this process, and writes a file of its own."""

    def tried(batches: Iterator[Any]) -> Iterator[Any]:
        import socket

        import pyarrow as pa

        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            lost = ""
            try:
                with place.new_file(f"{nonce}/{number}") as sink:
                    sink.write(nonce.encode())
                if place.opened(f"{nonce}/asked").read() != nonce.encode():
                    lost = "another object is there"
            except Exception as error:
                lost = f"{type(error).__name__}: {error}"
            row = {"number": pa.array([number], pa.int64()), "host": [socket.gethostname()], "lost": [lost]}
            yield pa.RecordBatch.from_pydict(row)

    return tried


def _task(nonce: str, trials: Sequence[str], wanted: Mapping[str, int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function of a task; it goes to the executors by value, so it uses nothing of this module."""

    def tried(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import socket
        import sys
        import time
        from importlib.metadata import distributions

        import pyarrow as pa

        numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
        time.sleep(0.05)  # so that others get tasks, too
        lacks = ""
        for path, size in wanted.items():
            try:
                found = os.stat(path).st_size
                if size >= 0 and found != size:
                    lacks = lacks or f"{path} is another file there"
            except OSError as error:
                lacks = lacks or f"{path}: {error.strerror}"
        for trial in trials if not lacks else ():
            try:
                for number in numbers:
                    with open(os.path.join(trial, str(number)), "w") as file:
                        file.write(nonce)
            except OSError as error:
                lacks = lacks or f"{trial} cannot be written to: {error.strerror}"
        try:
            import drainmark.jobs.errors

            modules = f"from {drainmark.jobs.errors.__file__}"
        except Exception as error:
            modules = f"{type(error).__name__}: {error}"
        python = ".".join(map(str, sys.version_info[:3]))
        facts = {
            "host": socket.gethostname(),
            "lacks": lacks,
            "modules": modules,
            "python": python,
            "arrow": pa.__version__,
            "pandas": next((found.version for found in distributions(name="pandas")), ""),
            "zone": "UTC" if time.tzname == ("UTC", "UTC") else "/".join(time.tzname),
        }
        for number in numbers:
            row = {"number": pa.array([number], pa.int64()), **{name: pa.array([text]) for name, text in facts.items()}}
            yield pa.RecordBatch.from_pydict(row)

    return tried


def _require_answers(master: str, trial: Path, nonce: str, answers: Sequence[tuple[int, Worker]]) -> None:
    for number, worker in answers:
        file = trial / str(number)
        if not file.is_file() or file.read_text() != nonce:
            msg = f"a file that the executor on {worker.host} ({master}) wrote to {trial.parents[1]} is not here"
            raise ClusterRefused(msg, remedy=SHARE_FOLDERS)
