"""Dagster's code location: every application with a region, compiled and handed to the factory. No logic here.

The definitions are made when Dagster asks for them, so importing this module opens nothing and reads no environment.
"""

from __future__ import annotations

import dagster as dg

from drainmark.orchestration.cli.terminal.output import printable_logs
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.resources.settings import load_settings


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of this project's applications, which run in the process of their run."""
    printable_logs()
    return dg.Definitions.merge(dg.Definitions(executor=dg.in_process_executor), build_definitions(load_settings()))
