"""Access of a warm run to Dagster's internals: the one module of the product that names them.

Dagster has public names for making a run and for launching it, and none for executing one that is made: that is
`dagster api execute_run`, and the order which its own launchers give to it. The launcher imports this module when it
launches; where Dagster has changed inside, it notices that here and has the default launcher do the work.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import dagster as dg
from dagster._cli.api import execute_run_command
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._grpc.types import ExecuteRunArgs

if TYPE_CHECKING:
    from dagster._core.launcher.base import LaunchRunContext

__all__ = ["DEFINITIONS", "LaunchRunContext", "execute", "order_for"]

DEFINITIONS = "drainmark.orchestration.definitions"
"""Not imported before the run is known: it loads the applications, which may change until then."""

_LOOPBACK = ("localhost", "127.0.0.1")


def order_for(run: dg.DagsterRun, instance: dg.DagsterInstance) -> str | None:
    """Return the order to execute a run; None if its code is not our code location, as this Python would load it."""
    python, remote = run.job_code_origin, run.remote_job_origin
    if python is None or remote is None:
        return None
    repository = python.repository_origin
    location = remote.repository_origin.code_location_origin
    if isinstance(location, GrpcServerCodeLocationOrigin):
        is_near = location.socket is not None or location.host in _LOOPBACK
    else:  # its server is a child of a process of Dagster's
        is_near = isinstance(location, ManagedGrpcPythonEnvCodeLocationOrigin)
    is_alike = repository.executable_path == sys.executable and not repository.container_image
    if not (is_near and is_alike and getattr(repository.code_pointer, "module", None) == DEFINITIONS):
        return None
    return dg.serialize_value(ExecuteRunArgs(job_origin=python, run_id=run.run_id, instance_ref=instance.get_ref()))


def execute(order: str) -> None:
    """Execute the run, as `dagster api execute_run` does."""
    execute_run_command.main(args=[order], prog_name="execute_run", standalone_mode=False)
