"""Errors of a run's environment: Spark's executors, disks, and the connections between them."""

from __future__ import annotations

from drainmark.jobs.errors import AccountingError, DrainmarkError, Retry, UsageError

SHARE_FOLDERS = (
    "put DRAINMARK_HOME, the tables' folder, tables of others that are read or adopted, and the inputs on a folder that"
    " all machines have under the same path"
    ' (NFS, EFS, …), or run on this machine: spark_master = "local[*]"'
)
"""Remedy if executors write to other disks than this process reads."""


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


class WorkerDied(EnvironmentFailed):
    """A Python worker of Spark died: it had too little memory, or a function ends it at some row.

    The group is tried again, whole and then in groups of one: so a file at which the worker dies each time is alone in
    its group. The halt names the file, and the operators with functions in the worker.
    """

    id = "WORKER_DIED"
