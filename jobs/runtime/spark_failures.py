"""Failures of Spark jobs, told of the operator that is to blame for them."""

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
    """Run something that starts Spark jobs for an operator; its failure names that one, or one above it.

    Raises:
        OperatorFailed, EnvironmentFailed: with whom or what is to blame.
    """
    try:
        return action()
    except (DrainmarkError, InjectedFailure, KeyboardInterrupt):
        raise
    except BaseException as error:
        blamed = blamed_operator(error, region.run_order, operator)
        raise environment_fault(error) or failure_of(blamed, error) from error
