"""`on_halt`: a command of the user, which reports that a region waits for a person.

`halt_for_input` halts a region whose input is gone or changed.

The command gets one JSON object on its standard input (`halt_event`). The process that halts the region runs it when
the halt is committed, and then makes a note in the registry. If the process dies in between, a later tick of Dagster's
sensor or the next `run` runs it. So it runs at least once for each halt, and only rarely more than once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, Halted
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.messages import described, halt_remedies

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner
    from drainmark.orchestration.workplace.workplace import Workplace

LIMIT_SECONDS = 30.0
"""The command and its children are killed after this time: a pager that hangs must not keep the region's lease."""

TOLD = "@on_halt"
"""Name of the registry's cursor that holds the attempt of the last reported halt row; no operator can have it."""

_LATE_SECONDS = 2 * LIMIT_SECONDS
_KEPT_CHARACTERS = 2000

_told_here: set[str] = set()
"""Attempts of halts that this process has reported, so that each pages once even if a full disk keeps no note."""

logger = logging.getLogger(__name__)


def halt_for_input(owner: RegionOwner, region: RegionPlan, error: DrainmarkError) -> Halted:
    """Halt a region because input is lost or has changed, and its sources require a halt then."""
    return owner.halts.halt(error.message, operator=region.starts[0].name, error=described(error))


def halt_event(workplace: Workplace, region: str, history: RegionHistory) -> dict[str, Any]:
    """Return the input of the command; all keys are always present, times are ISO-8601 in UTC.

    `remedies` are the commands that end the halt; `run_id` is the id of the run, for a run of Dagster that of Dagster.
    """
    from drainmark.orchestration.inspection.status import iso

    row = history.halt
    detail = row.detail if row else {}
    return {
        "event": "halted",
        "region": region,
        "reason": detail.get("reason"),
        "trigger": detail.get("trigger"),
        "operator": detail.get("operator"),
        "error": detail.get("error"),
        "committed_sequence_id": history.committed_id,
        "epoch": history.epoch,
        "consecutive_reset_attempts": history.attempts,
        "halted_at": iso(row.recorded_at) if row else None,
        "run_id": row.run_id if row else None,
        "home": str(workplace.home),
        "remedies": halt_remedies(region, history),
    }


def tell(workplace: Workplace, region: str, history: RegionHistory) -> None:
    """Run the command of the setting `on_halt`, if there is one; its errors are logged, never raised."""
    row = history.halt
    if row is None or not workplace.settings.on_halt:
        return
    try:
        event = halt_event(workplace, region, history)
        _run(workplace.settings.on_halt, event, str(workplace.settings.project_root))
    except Exception as error:
        logger.warning("on_halt of %s failed: %s: %s", region, type(error).__name__, error)
    _told_here.add(row.attempt)
    try:
        workplace.registry.save_cursor(region, TOLD, row.attempt)
    except Exception as error:
        logger.warning("on_halt of %s may run again: %s", region, error)


def teller(workplace: Workplace, region: str) -> Callable[[RegionHistory], None]:
    """Return the function for `Outside.on_halt`: it runs the command, and reports the halt to Dagster."""

    def halted(history: RegionHistory) -> None:
        _show(workplace, region, history)
        tell(workplace, region, history)

    return halted


def _show(workplace: Workplace, region: str, history: RegionHistory) -> None:
    from drainmark.orchestration.dagster_assets.runless_events import report_halt

    try:
        report_halt(region, history, workplace)
    except Exception as error:  # an event for display must not fail the halt
        logger.warning("Dagster was not told that %s is halted: %s: %s", region, type(error).__name__, error)


def make_up(workplace: Workplace, region: str, history: RegionHistory) -> bool:
    """Run the command for a halt whose own process died before it; return whether it was run.

    A halt younger than twice the time limit of the command is left to its own process.
    """
    row = history.halt
    if row is None or not workplace.settings.on_halt or world.now() - row.recorded_at.timestamp() < _LATE_SECONDS:
        return False
    if row.attempt in _told_here or workplace.registry.load_cursor(region, TOLD) == row.attempt:
        return False
    tell(workplace, region, history)
    return True


def _run(command: tuple[str, ...], event: dict[str, Any], folder: str) -> None:
    """Run the command without a shell, in a session of its own, so that it can be killed with its children."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(json.dumps(event).encode(), timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()  # do not read its pipes to the end: a child that left the session may hold them open
        logger.warning("on_halt (%s) took longer than %g s and was killed", command[0], LIMIT_SECONDS)
        return
    text = said.decode(errors="replace").strip()[-_KEPT_CHARACTERS:]
    if process.returncode:
        logger.warning("on_halt (%s) ended with %d: %s", command[0], process.returncode, text)
    else:
        logger.info("on_halt (%s): %s", command[0], text or "done")
