"""The verb for the resident Spark: sparks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked

_COLUMNS = ("pid", "state", "since (UTC)", "memory", "master", "used by", "kept for", "")


def sparks(
    asked: Asked,
    *,
    stop: Annotated[bool, typer.Option("--stop", help="Stop those that no run uses; with --yes all.")] = False,
) -> None:
    """List the resident Sparks of this home on this machine, or stop them; the next run that needs one starts it."""
    from drainmark.orchestration.verbs import residents

    found = residents.resident_sparks(asked.workplace.home)
    used = [entry for entry in found if entry["users"] and not asked.yes] if stop else []
    ended = [entry for entry in found if entry not in used] if stop else []
    residents.stop(ended)
    if asked.as_json:
        output.emit([{**entry, "stopped": entry in ended} for entry in found])
    elif not found:
        output.say("no resident Spark is here; a run that needs one starts it")
    else:
        output.table(_COLUMNS, [_row(entry, is_stopped=entry in ended) for entry in found])
    if used:
        pids = ", ".join(str(pid) for entry in used for pid in entry["users"])
        raise UsageError(f"still there: runs use it, pid {pids}", remedy="wait for them, or repeat it with --yes")


def _row(entry: dict[str, Any], *, is_stopped: bool) -> tuple[Any, ...]:
    from drainmark.jobs.regions.formatting import counted

    memory = f"{entry['memory_bytes'] / 2**20:,.0f} MB" if entry["memory_bytes"] else ""
    remarks = [f"restarted {counted(entry['starts'] - 1, 'time')}"] if entry["starts"] > 1 else []
    remarks += [entry["failure"].splitlines()[-1]] if entry["failure"] else []
    users, owners = (" ".join(f"pid {pid}" for pid in entry[key]) for key in ("users", "owners"))
    since, state = output.short_time(entry["since"]), "stopped" if is_stopped else entry["state"]
    return (entry["pid"], state, since, memory, entry["master"], users, owners, "; ".join(remarks))
