"""Failures from outside a group: a lost Spark, executor or machine, or a missing file of Drainmark's own.

No input and no operator is to blame for them.
"""

from __future__ import annotations

import re
import traceback

from drainmark.jobs.errors import DrainmarkError, OperatorFailed, Retry, SparkLost, StoreUnavailable
from drainmark.jobs.errors.environment import DAMAGED, RESTORE, EnvironmentFailed, FileDamaged, WorkerDied
from drainmark.jobs.errors.machine_faults import chain, is_of_spark, machine_fault

_GONE = ("UNAVAILABLE", "UNAUTHENTICATED")
"""gRPC's codes for a server that died, and for one that was started anew, with another token."""

_SESSION_GONE = ("INVALID_HANDLE.SESSION_", "INVALID_HANDLE.OPERATION_NOT_FOUND", "NO_ACTIVE_SESSION")
_CONTEXT_GONE = ("SparkContext was shut down", "SparkContext has been shutdown", "on a stopped SparkContext")
_JVM_GONE = ("Py4JNetworkError",)

_EXECUTOR_GONE = re.compile(
    r"ExecutorLostFailure|ExecutorDeadException|FetchFailedException|MetadataFetchFailedException"
    r"|Checkpoint block \S+ not found|Unable to find (?:\w+ )*block|Could not find CoarseGrainedScheduler"
)
_WORKER_GONE = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back")
"""The worker was killed, usually for lack of memory; or a function ends it at some row."""

_NOT_FOUND = re.compile(r"FILE_NOT_EXIST|FileNotFoundException|PATH_NOT_FOUND|NoSuchFileException|does not exist")
_NOT_WRITTEN = re.compile(r"Mkdirs failed to create|Permission denied|AccessDeniedException")
_OUR_FILES = re.compile(r"/inbox/\S*?/\d+-[\w-]{32,}/|/_staged/")
"""Links to inputs and staged files; only Drainmark puts them there and removes them."""

_NOT_THERE = "a file of Drainmark's own is not where it was put"

NOT_REACHED = "a task cannot read a file of Drainmark's own"
"""The text of a task's error if the store fails; the next attempt may reach it."""


def environment_fault(error: BaseException) -> DrainmarkError | None:
    """Return the error that blames no operator, None if an operator may be to blame."""
    if isinstance(error, DrainmarkError) and not isinstance(error, OperatorFailed):
        # It is judged already, but whoever raised it may not have asked why a read or a write failed.
        return machine_fault(error) if error.retry in (Retry.ATTEMPT, Retry.PERMANENT) else None
    return lost_engine(error) or machine_fault(error) or _away(error) or _lost_part(error)


def _away(error: BaseException) -> StoreUnavailable | None:
    """Return the error for a store that a task did not reach."""
    for link in chain(error):
        line = next((line for line in str(link).splitlines() if NOT_REACHED in line and is_of_spark(link)), None)
        if line is not None:
            said = line[line.index(NOT_REACHED) :][:400]
            return StoreUnavailable(said, remedy="look at the store, and at the credentials where Spark's workers run")
    return None


def _lost_part(error: BaseException) -> EnvironmentFailed | None:
    """Return the error for a lost executor, or for a file of our own that is missing."""
    for link in chain(error):
        if isinstance(link, FileDamaged):
            return link
        if isinstance(link, FileNotFoundError) and _OUR_FILES.search(str(link.filename or link)):
            return _failed(error, f"{_NOT_THERE}: {link}")
        lines = [line.strip() for line in str(link).splitlines()]
        for line in lines if is_of_spark(link) else ():
            if DAMAGED in line:
                return _failed(error, line[line.index(DAMAGED) :].partition(" → ")[0][:400], FileDamaged)
            if (what := _lost_in(line)) is not None:
                kind = WorkerDied if _WORKER_GONE.search(line) else EnvironmentFailed
                return _failed(error, f"{what}: {line.removeprefix(': ').removeprefix('Caused by: ')[:400]}", kind)
    return None


def _lost_in(line: str) -> str | None:
    """Return the loss that a line of Spark's reports, None if it reports none."""
    if _EXECUTOR_GONE.search(line):
        return "an executor was lost"
    if _WORKER_GONE.search(line):
        return "a Python worker of Spark died"
    if not _OUR_FILES.search(line):
        return None
    if _NOT_WRITTEN.search(line):
        return "a file of Drainmark's own cannot be written"
    return _NOT_THERE if _NOT_FOUND.search(line) else None


def _failed(error: BaseException, message: str, kind: type[EnvironmentFailed] = EnvironmentFailed) -> EnvironmentFailed:
    remedy = "look at the machine and the cluster; the whole group is tried again"
    if kind is FileDamaged:
        remedy = RESTORE
    if kind is WorkerDied:
        remedy = "check the machine's memory; if a function ends its worker, fix the function or skip the file"
    failed = kind(message, remedy=remedy)
    failed.__cause__ = error
    return failed


def lost_engine(error: BaseException) -> SparkLost | None:
    """Return the error as `SparkLost` if the server or the JVM died under it, else None.

    It checks names and codes, so neither gRPC nor py4j need be installed or loaded.
    """
    if isinstance(error, SparkLost):
        return error
    if isinstance(error, DrainmarkError) and not isinstance(error, OperatorFailed):
        return None
    if not any(_says_so(link) for link in chain(error)):
        return None
    remedy = "nothing is lost: the next attempt gets a new one; see drainmark doctor"
    lost = SparkLost(f"Spark is gone: {_telling(error)}", remedy=remedy)
    lost.__cause__ = error
    return lost


def _says_so(error: BaseException) -> bool:
    if type(error).__name__ in _JVM_GONE or _is_of_the_gateway(error):
        return True
    module = type(error).__module__.partition(".")[0]
    if is_of_spark(error) and any(text in str(error) for text in _CONTEXT_GONE):
        return True
    if module == "grpc":
        code = getattr(error, "code", lambda: None)()
        return getattr(code, "name", "") in _GONE
    if module != "pyspark":
        return False
    status = getattr(error, "_grpc_status_code", None)
    text = str(error)
    return getattr(status, "name", "") in _GONE or any(name in text for name in _SESSION_GONE)


def _is_of_the_gateway(error: BaseException) -> bool:
    """Say whether no process listens at the JVM's address: py4j passes on that error of the socket unchanged."""
    frames = traceback.walk_tb(error.__traceback__ if isinstance(error, ConnectionError) else None)
    return any(frame.f_globals.get("__name__", "").startswith("py4j.") for frame, _ in frames)


def _telling(error: BaseException) -> str:
    """Return the details of a gRPC error, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    details = (line for line in lines if line.startswith("details = "))
    return next(details, lines[0] if lines else type(error).__name__).removeprefix("details = ")[:300]


def telling_line(text: str) -> str:
    """Return the line of a JVM's error that names the exception, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = (line for line in lines if "Exception" in line and not line.startswith("at "))
    return next(named, lines[0] if lines else "").removeprefix(": ")[:300]
