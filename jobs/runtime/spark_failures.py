"""Failures of Spark jobs, attributed to the operator that caused them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from drainmark.jobs.errors import DrainmarkError, OperatorFailed
from drainmark.jobs.errors.machine_faults import is_of_spark
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.graph.blame import blamed_operator, failure_of
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.tasks.places import TooLarge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Found = TypeVar("Found")


def blaming(region: RegionPlan, operator: Operator, action: Callable[[], Found]) -> Found:
    """Run an action that starts Spark jobs for an operator; an error blames that operator, or one upstream.

    Spark fuses operators, so the operator of the computed output is only a guess; see `blamed_upstream`.

    Raises:
        OperatorFailed, EnvironmentFailed: the error names the operator, or the fault of the environment.
    """
    try:
        return action()
    except (DrainmarkError, InjectedFailure, TooLarge, KeyboardInterrupt):
        raise
    except BaseException as error:
        blamed = blamed_operator(error, region.run_order) or operator
        raise environment_fault(error) or failure_of(blamed, error) from error


def blamed_upstream(error: OperatorFailed, region: RegionPlan, streams: Mapping[str, DataFrame]) -> OperatorFailed:
    """Return the error that blames the first operator whose own rows cannot be computed.

    An error in an expression has no traceback, so it blames the operator that computed its output. Those before it are
    asked one by one: this computes rows again, once a failure.

    Args:
        streams: what the operators gave, by stream; those that were computed before cannot fail.
    """
    cause = error.__cause__
    if cause is None or not is_of_spark(cause) or blamed_operator(cause, region.run_order) is not None:
        return error
    before = _before(region, error.operator)
    for operator in (operator for operator in region.run_order if operator.name in before):
        for name in (operator.name, *map(operator.stream, operator.outputs)):
            if (frame := streams.get(name)) is None:
                continue
            try:
                frame.write.format("noop").mode("overwrite").save()
            except Exception as again:
                if environment_fault(again) is None:
                    found = failure_of(operator, again)
                    found.__cause__ = cause
                    return found
    return error


def _before(region: RegionPlan, name: str | None) -> set[str]:
    """Return the operators that an operator's rows come from."""
    known = {operator.name: operator for operator in region.run_order}
    found: set[str] = set()
    waiting = [name or ""]
    while waiting:
        operator = known.get(waiting.pop())
        more = {port.upstream for port in operator.inputs} - found if operator is not None else set()
        found |= more
        waiting += more
    return found
