"""Faults of the environment are told apart from faults of functions and inputs, and summed up in one line (DX3)."""

from __future__ import annotations

import errno
import socket

import pytest

from drainmark.jobs.errors import AccountingError, DrainmarkError, OperatorFailed, SparkLost, StoreUnavailable
from drainmark.jobs.errors.environment import EnvironmentFailed
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.graph.blame import summary_of
from drainmark.jobs.protocol.failure_policy import EndRun, after_failure
from drainmark.jobs.runtime.messages import classified

LINK = "/srv/words/.drainmark/inbox/words/lines/3-0123456789abcdef0123456789abcdef/all/0000000000000000007.data"
GONE = f"Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] file:{LINK} File does not exist."
LOST = "org.apache.spark.SparkException: Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)"
UNWRITABLE = "java.io.IOException: Mkdirs failed to create file:/lake/left/_staged/1-abc/rows"


def of_spark(text: str) -> Exception:
    """Return an error as Spark's client raises it."""
    kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    error: Exception = kind(
        f"An error occurred while calling o9.parquet.\n: {text}\n\tat org.apache.spark.X.y(X.scala:1)"
    )
    return error


@pytest.mark.seed("DX3")
@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (of_spark(GONE), EnvironmentFailed, LINK),
        (of_spark(LOST), EnvironmentFailed, "ExecutorLostFailure (executor 1 exited)"),
        (of_spark(UNWRITABLE), EnvironmentFailed, "Mkdirs failed"),
        (of_spark("org.apache.spark.SparkException: Could not find CoarseGrainedScheduler."), EnvironmentFailed, ""),
        (of_spark("java.io.IOException: No space left on device"), StoreUnavailable, "No space left on device"),
        (of_spark("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."), SparkLost, ""),
        (FileNotFoundError(errno.ENOENT, "No such file", LINK), EnvironmentFailed, LINK),
        (of_spark("java.io.FileNotFoundException: /srv/rates.csv does not exist"), None, ""),
        (of_spark("org.apache.spark.SparkException: ten is no number"), None, ""),
        (ValueError(f"{LINK} does not exist"), None, ""),
        (FileNotFoundError(errno.ENOENT, "No such file", "/srv/rates.csv"), None, ""),
    ],
)
def test_the_environment_is_told_from_a_function(
    error: Exception, kind: type[DrainmarkError] | None, told: str
) -> None:
    found = environment_fault(error)
    assert type(found) is (kind or type(None))
    wrapped = OperatorFailed("operator 'f' failed", operator="f")
    wrapped.__cause__ = error
    judged = classified(wrapped)
    if kind is None or found is None:
        assert judged is wrapped
        return
    assert type(judged) is kind
    assert judged.operator is None
    assert told in found.message


@pytest.mark.seed("DX3")
def test_a_jvm_that_nobody_reaches_any_more_is_lost() -> None:
    """Py4j passes the socket's error on unchanged; the same error from a function is a fault of the function."""
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        gateway = ClientServer(JavaParameters(port=port), PythonParameters(port=0, eager_load=False))
        with pytest.raises(ConnectionRefusedError) as raised:
            gateway.jvm.java.lang.System.nanoTime()
        with pytest.raises(ConnectionRefusedError) as own:
            socket.create_connection(("127.0.0.1", port))
    gateway.shutdown()
    assert type(classified(raised.value)) is SparkLost
    assert type(classified(own.value)) is OperatorFailed


def test_what_is_judged_already_stays_so() -> None:
    error = AccountingError("3 rows were written, and 2 are there")
    error.__cause__ = of_spark(LOST)
    assert environment_fault(error) is None
    assert classified(error) is error


@pytest.mark.seed("DX3", "H31")
def test_a_group_that_the_environment_failed_is_not_split() -> None:
    assert after_failure(EnvironmentFailed.retry, group_size=2000, attempts=0, max_attempts=5) == EndRun()


def test_an_error_of_the_jvm_is_summed_up_by_its_cause() -> None:
    error = of_spark(
        "org.apache.spark.SparkException: Task failed.\nCaused by: java.lang.ArithmeticException: / by zero"
    )
    assert summary_of(error) == "java.lang.ArithmeticException: / by zero"
    assert summary_of(of_spark("java.lang.Exception: no")) == "java.lang.Exception: no"
