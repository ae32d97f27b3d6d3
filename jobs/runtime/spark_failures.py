"""Failures of Spark jobs, attributed to the operator that caused them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.graph.blame import blamed_operator, failure_of
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.plan import RegionPlan

Found = TypeVar("Found")


def blaming(region: RegionPlan, operator: Operator, action: Callable[[], Found]) -> Found:
    """Run an action that starts Spark jobs for an operator; an error blames that operator, or one upstream.

    Raises:
        OperatorFailed, EnvironmentFailed: the error names the operator, or the fault of the environment.
    """
    try:
        return action()
    except (DrainmarkError, InjectedFailure, KeyboardInterrupt):
        raise
    except BaseException as error:
        blamed = blamed_operator(error, region.run_order, operator)
        raise environment_fault(error) or failure_of(blamed, error) from error
