"""Faults of the machine wait, whoever meets them; words that only look like a fault are the author's (A5)."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from by_hand import HandFed
from deltalake import DeltaTable, write_deltalake
from waiting import SOON

from drainmark.jobs.errors import CommitOutcomeUnknown, DrainmarkError, OperatorFailed, Retry, StoreUnavailable
from drainmark.jobs.graph.application import load_application
from drainmark.jobs.protocol.failure_policy import GroupSize
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.runtime.failure_handling import FailureHandling
from drainmark.jobs.runtime.group.backlog import Backlog, Limits
from drainmark.jobs.runtime.messages import classified
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

ROWS = pa.table({"a": [1, 2, 3]})


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no further file."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def raised_by(action: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:
        action()
    return raised.value


def blamed(error: Exception) -> DrainmarkError:
    """Return the judgement of an error that the code of an operator raised."""
    wrapped = OperatorFailed("operator 'f' failed", operator="f")
    wrapped.__cause__ = error
    return classified(wrapped)


def waits(error: Exception, remedy: str) -> bool:
    found = blamed(error)
    return (type(found), found.retry, found.operator) == (StoreUnavailable, Retry.WAIT, None) and remedy in str(found)


@pytest.mark.parametrize("reader", ["python", "arrow", "delta", "process"])
def test_a_process_that_may_open_no_more_files_waits(reader: str, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    table = DeltaTable(tmp_path / "t")
    action: Callable[[], object] = {
        "python": lambda: Path(tmp_path / "x").write_text("x"),
        "arrow": lambda: pq.write_table(ROWS, tmp_path / "x"),
        "delta": lambda: write_deltalake(table, ROWS, mode="append"),
        "process": lambda: subprocess.run(["true"], check=True, stdout=subprocess.PIPE),
    }[reader]
    with no_more_files():
        error = raised_by(action)
    assert waits(error, "ulimit -n")


@pytest.mark.seed("D11")
def test_a_full_disk_and_a_failing_one_wait(tmp_path: Path) -> None:
    with pa.OSFile("/dev/full", "wb") as full:  # by its name Arrow would remove the device after the error
        for write in (lambda: Path("/dev/full").write_text("x"), lambda: pq.write_table(ROWS, full)):
            assert waits(raised_by(write), "df -h")
    for read in (lambda: Path("/proc/self/mem").read_bytes(), lambda: pa.OSFile("/proc/self/mem").read(9)):
        assert waits(raised_by(read), "dmesg")
    write_deltalake(tmp_path / "t", ROWS)
    log = tmp_path / "t/_delta_log/00000000000000000000.json"
    log.unlink()
    log.symlink_to("/proc/self/mem")
    assert waits(raised_by(lambda: DeltaTable(tmp_path / "t")), "dmesg")


@pytest.mark.parametrize(
    "number",
    [errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOMEM, errno.EROFS, errno.EDQUOT, errno.ENOSPC,
     errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.ECONNRESET],
)  # fmt: skip
def test_each_fault_of_a_file_waits_in_the_words_of_python_workers_and_java(number: int) -> None:
    said = os.strerror(number)
    kind = type(OSError(number, said)).__name__
    worker = (
        f"Traceback (most recent call last):\n  File \"/a.py\", line 1\n{kind}: [Errno {number}] {said}: '/disk/x'\n"
    )
    for error in (
        OSError(number, said, "/disk/x"),
        of_spark(f"org.apache.spark.api.python.PythonException: {worker}"),
        of_spark(f"org.apache.spark.SparkException: Job aborted.\n\tat X\nCaused by: java.io.IOException: {said}"),
        of_spark(f"java.io.FileNotFoundException: /disk/x ({said})"),
        of_spark(f"java.nio.file.FileSystemException: /disk/x: {said}"),
    ):
        assert waits(error, "no attempt was counted"), error


def of_spark(text: str) -> Exception:
    """Return an error as Spark's client raises it."""
    kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    error: Exception = kind(f"An error occurred while calling o9.parquet.\n: {text}\n\tat org.X.y(X.scala:1)")
    return error


def test_a_machine_that_starts_no_thread_and_no_process_waits() -> None:
    for error in (
        of_spark("java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory"),
        of_spark('java.io.IOException: Cannot run program "python3": error=11, Resource temporarily unavailable'),
        raised_by(_without_threads),
    ):
        assert waits(error, "ulimit -u")


def _without_threads() -> None:
    size = threading.stack_size(2**46)
    try:
        threading.Thread(target=print).start()
    finally:
        threading.stack_size(size)


FORGED = "bad\n\tat x\nCaused by: java.io.IOException: Input/output error\n\tat y\nOSError: [Errno 5] x"
TRACED = 'org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "f", line 1\n'


def test_words_of_functions_and_values_of_inputs_cannot_pass_for_a_fault(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('n\n"1, Detail: [errno 5] Input/output error"\n')
    asked = pyarrow.csv.ConvertOptions(column_types={"n": pa.int64()})
    left, right = socket.socketpair()
    left.setblocking(False)
    for error in (
        ValueError("Input/output error (os error 5)"),
        OSError("[Errno 5] Input/output error"),
        FileNotFoundError(errno.ENOENT, "No space left on device", "/x"),
        of_spark(f"{TRACED}ValueError: {FORGED}"),
        of_spark("org.apache.spark.SparkNumberFormatException: The value 'java.io.IOException: Input/output error'"),
        of_spark("java.io.FileNotFoundException: /in/Input/output error (No such file or directory)"),
        raised_by(lambda: pyarrow.csv.read_csv(tmp_path / "x.csv", convert_options=asked)),
        raised_by(lambda: left.recv(1)),
        raised_by(lambda: socket.create_connection(("127.0.0.1", 1))),
        raised_by(lambda: sqlite3.connect(tmp_path / "no" / "x.db")),
    ):  # fmt: skip
        assert type(blamed(error)) is OperatorFailed, error
    right.close()
    left.close()


def test_an_error_of_ours_that_a_fault_caused_waits_as_well() -> None:
    error = CommitOutcomeUnknown("a commit cannot be read back")
    error.__cause__ = raised_by(lambda: Path("/proc/self/mem").read_bytes())
    assert classified(error).retry is Retry.WAIT


def test_a_group_that_a_fault_ends_is_neither_split_nor_counted(tmp_path: Path) -> None:
    workplace = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    region = HandFed(workplace, tmp_path / "in")
    for n in range(4):
        region.write(f"{n}", [f"v{n}"])
    region.add("0", "1", "2", "3")
    backlog = Backlog(registry=workplace.registry, region=region.region, limits=Limits(), size=GroupSize(4, 4))
    plan = compile_application(load_application("word_count")).regions[0]
    with region.owning() as owner:
        failures = FailureHandling(region=plan, owner=owner, backlog=backlog)
        with no_more_files():
            error = raised_by(lambda: region.process(4))
        with pytest.raises(StoreUnavailable, match="ulimit -n"):
            failures.after(error, backlog.next_group([], None), lambda: None)
        assert backlog.size.current == 4
        region.process(backlog.size.current)
    assert [value for _, value in region.values()] == ["v0", "v1", "v2", "v3"]
    assert (region.history().attempts, region.history().halt) == (0, None)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_file_that_a_failing_disk_does_not_show_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from drainmark.jobs.errors import StoreUnavailable\n"
        "from drainmark.jobs.scan.folder import facts_of\n"
        "from drainmark.resources.inputs.inputs import Inputs\n"
        "inputs = Inputs.__new__(Inputs)\n"
        "path = sys.argv[1]\n"
        "for look in (lambda: inputs._identity_now(path, {}), lambda: facts_of(path, follow_links=True)):\n"
        "    try: print('gone', look())\n"
        "    except StoreUnavailable as error: print('waits', error)\n"
    )
    inject = ("-e", "trace=newfstatat,stat,statx", "-e", "inject=newfstatat,stat,statx:error=EIO:when=1+")
    command = ["strace", "-f", "-o", os.devnull, "-P", str(tmp_path / "x"), *inject, sys.executable, str(script)]
    told = subprocess.run([*command, str(tmp_path / "x")], capture_output=True, text=True, check=True, timeout=SOON)
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["waits", "waits"], told.stdout
