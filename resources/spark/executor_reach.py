"""Executors that are not in this process: can they reach its files, and run its functions? Tried before anything else.

A job on every executor that is there reads what this process wrote, and writes what this process reads. Where a disk is
not shared, groups would else be written to the workers' own disks.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors.environment import SHARE_FOLDERS, ClusterRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS = 16
_PATIENCE_SECONDS = 120.0
_LOOKED_AT = 3
_PYTHON = "set PYSPARK_PYTHON or spark.pyspark.python to a Python of the same version, with pyarrow, on every worker"


def ship_drainmark(session: SparkSession) -> None:
    """Send what functions need of Drainmark to the executors, where it need not be installed."""
    from drainmark.jobs.graph.own_modules import texts_of
    from drainmark.jobs.runtime.analysis.worker_code import ship_modules

    package = Path(__file__).parents[2]
    own = {name: package / name for name in ("__init__.py", "api.py", "jobs")}
    ship_modules("drainmark", {f"drainmark/{path}": text for path, text in texts_of(own).items()}, session)


def require_reach(session: SparkSession, master: str, folders: Sequence[Path], *, has_executors: bool) -> None:
    """Try whether Spark and this process see the same files, and whether functions can run there.

    Args:
        folders: which this process writes to, and executors too.
        has_executors: there are others than the JVM of the driver.

    Raises:
        ClusterRefused: they do not.
    """
    nonce = uuid.uuid4().hex
    trials = [folder / f".reach-{nonce}" for folder in folders]
    try:
        with _patience(session, master):
            for trial in trials:
                (trial / "tasks").mkdir(parents=True)
                (trial / "asked").write_text(nonce)
                _require_copy(session, master, trial, nonce)
            if has_executors:
                _require_tasks(session, master, trials, nonce)
    finally:
        for trial in trials:
            shutil.rmtree(trial, ignore_errors=True)


def _require_tasks(session: SparkSession, master: str, trials: Sequence[Path], nonce: str) -> None:
    """Have Python functions on the executors read and write the same files."""
    wanted = {str(trial / "asked"): len(nonce) for trial in trials}
    answers = _answers(session, master, _task(nonce, [str(trial / "tasks") for trial in trials], wanted))
    _judge(master, answers)
    for trial in trials:
        _require_answers(master, trial / "tasks", nonce, answers)


def require_inputs(session: SparkSession, master: str, folders: Sequence[Path], *, has_executors: bool) -> None:
    """Try whether Spark sees the files that this process sees in some folders; writes nothing there.

    Raises:
        ClusterRefused: it does not.
    """
    wanted = {path: size for folder in folders for path, size in _some_of(folder)}
    for path in wanted:
        try:
            _ = session.read.text(path).columns  # the driver looks for it; no job is started
        except Exception as error:
            raise _not_shared(f"Spark's driver ({master})", path, error) from error
    if has_executors and wanted:
        _judge(master, _answers(session, master, _task("", (), wanted)))


def _require_copy(session: SparkSession, master: str, trial: Path, nonce: str) -> None:
    """Have Spark copy a file that is here to one that this process reads."""
    try:
        session.read.text(str(trial / "asked")).write.text(str(trial / "copy"))
    except Exception as error:
        raise _not_shared(f"Spark ({master})", str(trial), error) from error
    if nonce not in {path.read_text().strip() for path in (trial / "copy").glob("part-*")}:
        raise ClusterRefused(f"what Spark ({master}) writes to {trial.parent} is not here", remedy=SHARE_FOLDERS)


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

            modules = "" if drainmark.jobs.errors else "?"
        except Exception as error:
            modules = f"{type(error).__name__}: {error}"
        python = ".".join(map(str, sys.version_info[:2]))
        facts = {"host": socket.gethostname(), "lacks": lacks, "modules": modules, "python": python,
                 "arrow": pa.__version__.partition(".")[0]}  # fmt: skip
        for number in numbers:
            row = {"number": pa.array([number], pa.int64()), **{name: pa.array([text]) for name, text in facts.items()}}
            yield pa.RecordBatch.from_pydict(row)

    return tried


def _answers(session: SparkSession, master: str, task: Callable[[Iterator[Any]], Iterator[Any]]) -> list[Any]:
    """Run the tasks; return their answers."""
    columns = "number long, host string, lacks string, modules string, python string, arrow string"
    try:
        return list(session.range(0, _TASKS, 1, _TASKS).mapInArrow(task, columns).collect())
    except Exception as error:
        from drainmark.jobs.errors.spark_faults import telling_line

        msg = f"the executors of {master} cannot run Python functions: {telling_line(str(error))}"
        raise ClusterRefused(msg, remedy=_PYTHON) from error


@contextlib.contextmanager
def _patience(session: SparkSession, master: str) -> Iterator[None]:
    """Bound the time of the jobs inside the block: a cluster without free workers never begins one."""
    tag, is_over = f"drainmark-reach-{uuid.uuid4().hex}", threading.Event()

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
        msg = f"{master} did not do a small job within {_PATIENCE_SECONDS:g} s"
        raise ClusterRefused(msg, remedy="look at the cluster: are there workers with free cores?") from error
    finally:
        timer.cancel()
        session.removeTag(tag)


def _judge(master: str, answers: Sequence[Any]) -> None:
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
        if answer["modules"]:
            msg = f"{where} cannot import Drainmark's modules: {answer['modules']}"
            raise ClusterRefused(msg, remedy="install what Drainmark needs for the Python of the workers, too")


def _require_answers(master: str, trial: Path, nonce: str, answers: Sequence[Any]) -> None:
    for answer in answers:
        file = trial / str(answer["number"])
        if not file.is_file() or file.read_text() != nonce:
            msg = f"what the executor on {answer['host']} ({master}) wrote to {trial.parents[1]} is not here"
            raise ClusterRefused(msg, remedy=SHARE_FOLDERS)
