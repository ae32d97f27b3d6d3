"""Executors that are not in this process: can they reach its files, and run its functions? Tried before anything else.

A job on every executor that is there reads what this process wrote, and writes what this process reads. Where a disk is
not shared, groups would else be written to the workers' own disks. Where tables are in a bucket none has to be.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors.environment import SHARE_FOLDERS, ClusterRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from drainmark.jobs.runtime.outside import TaskFiles
    from drainmark.jobs.tasks.places import Place

_TASKS = 16
_PATIENCE_SECONDS = 120.0
_LOOKED_AT = 3
_CREDENTIALS = (
    "give the workers credentials for the bucket (AWS_* variables or a role), and obstore for their Python; nothing of"
    " this machine's is sent to them"
)
_PYTHON = "set PYSPARK_PYTHON or spark.pyspark.python to a Python of the same version, with pyarrow, on every worker"


class Executors:
    """The executors of one session, as a run asks them; Drainmark's modules are sent to them.

    Args:
        master: what messages call them.
        are_many: there are others than the JVM of the driver; what is tried is tried on each that is there.
    """

    def __init__(self, session: SparkSession, master: str, *, are_many: bool) -> None:
        self._session = session
        self._master = master
        self._tasks = _TASKS if are_many else 1
        self._archive = ship_drainmark(session)
        self._not_shared: ClusterRefused | None = None
        self._reached: set[Path] = set()
        self._written: set[Path] = set()

    @property
    def shares_disk(self) -> bool:
        """Do they reach what was tried with `try_disk`?"""
        return self._not_shared is None

    def try_disk(self, folders: Iterable[Path]) -> None:
        """Find out whether they reach folders as this process does; they need not."""
        try:
            self.require_outputs(folders)
        except ClusterRefused as error:
            self._not_shared = error

    def require_outputs(self, folders: Iterable[Path]) -> None:
        """Try whether Spark and this process write to the same folders, and whether functions can run there.

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

    def require_bucket(self, files: TaskFiles) -> None:
        """Try whether tasks read and write in a bucket.

        Args:
            files: a folder there.

        Raises:
            ClusterRefused: they do not.
        """
        nonce = uuid.uuid4().hex
        try:
            with files.place.new_file(f"{nonce}/asked") as asked:
                asked.write(nonce.encode())
            with self._patience():
                self._answers(_task("", (), {}))
                answers = self._collected(_bucket_task(nonce, files.place), "number long, host string, lost string")
            for answer in answers:
                if answer["lost"]:
                    where = f"the executor on {answer['host']} ({self._master})"
                    raise ClusterRefused(f"{where} does not reach {files.place}: {answer['lost']}", remedy=_CREDENTIALS)
                files.place.stamp(f"{nonce}/{answer['number']}")
        finally:
            files.delete(nonce)

    def require_inputs(self, folders: Iterable[Path]) -> None:
        """Try whether Spark sees the files that this process sees in some folders; writes nothing there.

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
                _ = self._session.read.text(path).columns  # the driver looks for it; no job is started
            except Exception as error:
                raise _not_shared(f"Spark's driver ({self._master})", path, error) from error
        if wanted:
            with self._patience():
                self._answers(_task("", (), wanted))
        self._reached.update(new)

    def _require_copy(self, trial: Path, nonce: str) -> None:
        """Have Spark copy a file that is here to one that this process reads."""
        try:
            self._session.read.text(str(trial / "asked")).write.text(str(trial / "copy"))
        except Exception as error:
            raise _not_shared(f"Spark ({self._master})", str(trial), error) from error
        if nonce not in {path.read_text().strip() for path in (trial / "copy").glob("part-*")}:
            msg = f"what Spark ({self._master}) writes to {trial.parent} is not here"
            raise ClusterRefused(msg, remedy=SHARE_FOLDERS)

    def _require_tasks(self, trials: Sequence[Path], nonce: str) -> None:
        """Have Python functions on the executors read and write the same files."""
        wanted = {str(trial / "asked"): len(nonce) for trial in trials}
        answers = self._answers(_task(nonce, [str(trial / "tasks") for trial in trials], wanted))
        for trial in trials:
            _require_answers(self._master, trial / "tasks", nonce, answers)

    def _answers(self, task: Callable[[Iterator[Any]], Iterator[Any]]) -> list[Any]:
        """Run the tasks; return their answers, which are as they should be."""
        columns = "number long, host string, lacks string, modules string, python string, arrow string"
        answers = self._collected(task, columns)
        _judge(self._master, answers, self._archive)
        return answers

    def _collected(self, task: Callable[[Iterator[Any]], Iterator[Any]], columns: str) -> list[Any]:
        tasks = self._session.range(0, self._tasks, 1, self._tasks)
        try:
            return list(tasks.mapInArrow(task, columns).collect())
        except Exception as error:
            from drainmark.jobs.graph.blame import summary_of

            msg = f"the executors of {self._master} cannot run Python functions: {summary_of(error)}"
            raise ClusterRefused(msg, remedy=_PYTHON) from error

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """Bound the time of the jobs inside the block: a cluster without free workers never begins one."""
        session, is_over = self._session, threading.Event()
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


def tried_executors(
    session: SparkSession, master: str, are_many: bool, shared: Sequence[Path], bucket: TaskFiles | None
) -> Executors:
    """Return the executors of a session, which is stopped where they do not reach what they have to.

    Args:
        shared: folders that they are to reach.
        bucket: a folder where tables are, if that is a bucket: then they need not reach `shared`.

    Raises:
        ClusterRefused: they do not reach it, or cannot run functions.
    """
    try:
        executors = Executors(session, master, are_many=are_many)
        if bucket is None:
            executors.require_outputs(shared)
        else:
            executors.require_bucket(bucket)
            executors.try_disk(shared)
    except BaseException:
        session.stop()
        raise
    return executors


def ship_drainmark(session: SparkSession) -> str:
    """Send what functions need of Drainmark to the workers, where it need not be installed; return what it is called.

    It comes before what is installed there, so that both sides run the same version.
    """
    from drainmark.jobs.graph.own_modules import texts_of
    from drainmark.jobs.runtime.analysis.worker_code import ship_modules

    package = Path(__file__).parents[2]
    own = {name: package / name for name in ("__init__.py", "api.py", "jobs")}
    return ship_modules("drainmark", {f"drainmark/{path}": text for path, text in texts_of(own).items()}, session)


def _not_shared(who: str, path: str, error: Exception) -> ClusterRefused:
    from drainmark.jobs.errors.spark_faults import telling_line

    why = telling_line(str(error))
    return ClusterRefused(f"{who} does not share this machine's files: {path}: {why}", remedy=SHARE_FOLDERS)


def _some_of(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield a folder, and some of its files with their sizes; of a Delta table the newest entry of its log."""
    if not folder.is_dir():
        return
    yield str(folder), -1
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith((".", "_")))
    entries = sorted((folder / "_delta_log").glob("*.json"))
    for path in entries[-1:] or itertools.islice(files, _LOOKED_AT):  # others may take a table's files away meanwhile
        with contextlib.suppress(OSError):
            yield str(path), path.stat().st_size


def _bucket_task(nonce: str, place: Place) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what one task does in a bucket: it reads what the driver wrote, and writes a file of its own."""

    def tried(batches: Iterator[Any]) -> Iterator[Any]:
        import socket

        import pyarrow as pa

        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            lost = ""
            try:
                with place.new_file(f"{nonce}/{number}") as sink:
                    sink.write(nonce.encode())
                if place.opened(f"{nonce}/asked").read() != nonce.encode():
                    lost = "what is there is another object"
            except Exception as error:
                lost = f"{type(error).__name__}: {error}"
            row = {"number": pa.array([number], pa.int64()), "host": [socket.gethostname()], "lost": [lost]}
            yield pa.RecordBatch.from_pydict(row)

    return tried


def _task(nonce: str, trials: Sequence[str], wanted: Mapping[str, int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what one task does; it goes to the executors by value, so it uses nothing of this module."""

    def tried(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import socket
        import sys
        import time

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
        python = ".".join(map(str, sys.version_info[:2]))
        facts = {"host": socket.gethostname(), "lacks": lacks, "modules": modules, "python": python,
                 "arrow": pa.__version__.partition(".")[0]}  # fmt: skip
        for number in numbers:
            row = {"number": pa.array([number], pa.int64()), **{name: pa.array([text]) for name, text in facts.items()}}
            yield pa.RecordBatch.from_pydict(row)

    return tried


def _judge(master: str, answers: Sequence[Any], archive: str) -> None:
    import pyarrow as pa

    here = (".".join(map(str, sys.version_info[:2])), pa.__version__.partition(".")[0])
    for answer in answers:
        where = f"the executor on {answer['host']} ({master})"
        if answer["lacks"]:
            msg = f"{where} does not share this machine's files: {answer['lacks']}"
            raise ClusterRefused(msg, remedy=SHARE_FOLDERS)
        if (answer["python"], answer["arrow"]) != here:
            msg = f"{where} has Python {answer['python']} and pyarrow {answer['arrow']}, here are {' and '.join(here)}"
            raise ClusterRefused(msg, remedy=_PYTHON)
        modules = answer["modules"]
        if not modules.startswith("from "):
            msg = f"{where} cannot import Drainmark's modules: {modules}"
            raise ClusterRefused(msg, remedy="install what Drainmark needs for the Python of the workers, too")
        if archive not in modules:
            msg = f"{where} has loaded another Drainmark, {modules}, before the one that was sent"
            raise ClusterRefused(msg, remedy="uninstall it there, or have nothing import it when Python starts")


def _require_answers(master: str, trial: Path, nonce: str, answers: Sequence[Any]) -> None:
    for answer in answers:
        file = trial / str(answer["number"])
        if not file.is_file() or file.read_text() != nonce:
            msg = f"what the executor on {answer['host']} ({master}) wrote to {trial.parents[1]} is not here"
            raise ClusterRefused(msg, remedy=SHARE_FOLDERS)
