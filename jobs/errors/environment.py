"""Errors of a run's environment: executors, disks, connections, catalogues, channels, and the loading of its code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drainmark.jobs.errors import AccountingError, DrainmarkError, Retry, UsageError

SHARE_FOLDERS = (
    "put DRAINMARK_HOME, the tables' folder, tables of others that are read or adopted, and the inputs on a folder that"
    " all machines have under the same path"
    ' (NFS, EFS, …), or run on this machine: spark_master = "local[*]"'
)
"""Remedy if executors write to other disks than this process reads."""


@contextmanager
def extra(name: str, without: str) -> Iterator[None]:
    """Import packages of an extra of Drainmark's in the body.

    Args:
        without: says what is missing if they are not installed.

    Raises:
        UsageError: they cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise UsageError(without, remedy=f"pip install 'drainmark[{name}]'") from error


class ClusterRefused(UsageError):
    """Spark's executors do not reach the files of this process, or cannot run its functions; nothing was claimed."""

    id = "CLUSTER_REFUSED"


class EnvironmentFailed(DrainmarkError):
    """An executor was lost, or a file of Drainmark's own is gone: no input and no function is to blame.

    The group is not split; a new attempt processes it again.
    """

    id = "ENVIRONMENT_FAILED"
    retry = Retry.RENEW


class FilesLost(AccountingError):
    """Files that an attempt wrote are not here, or are others now: executors wrote to other disks, or somebody did.

    No input can cause this, so the group is never split: groups that need no executors would hide it.
    """

    id = "FILES_LOST"
    retry = Retry.RENEW


class FileDamaged(EnvironmentFailed):
    """A file of Drainmark's own cannot be read as it was written: a disk lost a part, or somebody changed the file.

    No input can cause this, so the group is never split. Files that are put back are read again.
    """

    id = "FILE_DAMAGED"
    retry = Retry.ATTEMPT


DAMAGED = "a file of Drainmark's own is damaged"
RESTORE = "restore it from a backup; drainmark doctor lists the files of tables that are gone or cut off"


def damaged(path: object, error: BaseException | str) -> FileDamaged:
    """Return the error for a file that cannot be read as it was written, with the first line of the reason."""
    return FileDamaged(f"{DAMAGED}: {path}: {str(error).strip().partition(chr(10))[0]}", remedy=RESTORE)


class WorkerDied(EnvironmentFailed):
    """A Python worker of Spark died: it had too little memory, or a function ends it at some row.

    The group is tried again, whole and then in groups of one: so a file at which the worker dies each time is alone in
    its group. The halt names the file, and the operators with functions in the worker.
    """

    id = "WORKER_DIED"


class CatalogueFailed(DrainmarkError):
    """A catalogue cannot be reached, or refuses a name; Drainmark tries again later."""

    id = "CATALOGUE_FAILED"


class NameTaken(CatalogueFailed):
    """Another table, or a view, has the name already; it stays unchanged."""

    id = "NAME_TAKEN"


class OutOfOrder(DrainmarkError):
    """A batch would enter a channel, or leave it, out of order: rows could be lost or doubled.

    It is never a fault of the author. The region is reset, and the batches in flight come again.
    """

    id = "CHANNEL_ORDER"


class ChannelFull(DrainmarkError):
    """A batch found no room in its channel in time: the reading stage is too slow, or hangs."""

    id = "CHANNEL_FULL"


class ApplicationBroken(DrainmarkError):
    """An application cannot be imported: its file, or a package that it needs, fails; `location` is the line."""

    id = "APPLICATION_BROKEN"


class AnalysisTimeout(DrainmarkError):
    """The import, the analysis or the first trial of an application took longer than analysis_timeout_seconds."""

    id = "ANALYSIS_TIMEOUT"


class SchemaUnknown(UsageError):
    """A source declares no schema, and there is no input yet from which its columns could be inferred."""

    id = "SCHEMA_UNKNOWN"


class RunDied(DrainmarkError):
    """A run of Dagster ended before its claim and reported no error: it was killed, or it never began."""

    id = "RUN_DIED"


class EraseRefused(UsageError):
    """A person cannot be erased as asked: rows are in flight, or in tables in which nobody can look for a person."""

    id = "ERASE_REFUSED"


class ErasedInput(DrainmarkError):
    """A run would read an input again that held rows of a person who was erased since, and that did not change."""

    id = "ERASED_INPUT"
    retry = Retry.PERMANENT
