"""Access of a warm run, and of `drainmark dev`, to Dagster's internals; no other module uses them.

Dagster has public functions that make and launch a run, but none that executes a run that is made: its own launchers
pass an order to `dagster api execute_run`. Our launcher imports this module when it launches a run. If Dagster's
internals have changed, that import fails, and the default launcher does the work.

`dagster dev` starts the web server by its name, and has no option for another one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._cli.api import execute_run_command
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._grpc.types import ExecuteRunArgs

if TYPE_CHECKING:
    from dagster._core.launcher.base import LaunchRunContext

__all__ = ["DEFINITIONS", "LaunchRunContext", "dev", "execute", "order_for"]

DEFINITIONS = "drainmark.orchestration.definitions"
"""Module that is imported only for a known run: it loads the applications, which may change until then."""

_LOOPBACK = ("localhost", "127.0.0.1")


def order_for(run: dg.DagsterRun, instance: dg.DagsterInstance) -> str | None:
    """Return the order to execute a run; None if its code is not our code location, or not loaded by this Python.

    Or not in this folder: a code server that runs in another one has the settings of the project there.
    """
    python, remote = run.job_code_origin, run.remote_job_origin
    if python is None or remote is None:
        return None
    repository = python.repository_origin
    location = remote.repository_origin.code_location_origin
    if isinstance(location, GrpcServerCodeLocationOrigin):
        is_near = location.socket is not None or location.host in _LOOPBACK
    else:  # its server is a child of one of Dagster's processes
        is_near = isinstance(location, ManagedGrpcPythonEnvCodeLocationOrigin)
    is_alike = repository.executable_path == sys.executable and not repository.container_image
    pointer: Any = repository.code_pointer
    is_ours = getattr(pointer, "module", None) == DEFINITIONS and pointer.working_directory in (None, os.getcwd())
    if not (is_near and is_alike and is_ours):
        return None
    return dg.serialize_value(ExecuteRunArgs(job_origin=python, run_id=run.run_id, instance_ref=instance.get_ref()))


def execute(order: str) -> None:
    """Execute a run, as `dagster api execute_run` does."""
    execute_run_command.main(args=[order], prog_name="execute_run", standalone_mode=False)


def dev(arguments: Sequence[str], web_server: str) -> None:
    """Do what `dagster dev` does, with another module as its web server. It ends the process with Dagster's exit code.

    Raises:
        RuntimeError: this version of Dagster starts its web server in another way: nothing is served.
    """
    from dagster._cli import dev as dagster_dev

    names: Any = dagster_dev
    start, started = names.open_ipc_subprocess, list[str]()

    def start_guarded(parts: Sequence[str], **options: Any) -> Any:
        started.extend(part for part in parts if part == "dagster_webserver")
        if not started:
            raise RuntimeError("this version of Dagster starts its web server in another way: it would have no guard")
        return start([web_server if part == "dagster_webserver" else part for part in parts], **options)

    names.open_ipc_subprocess = start_guarded
    dagster_dev.dev_command.main(args=list(arguments), prog_name="dagster dev", auto_envvar_prefix="DAGSTER_CLI_DEV")
