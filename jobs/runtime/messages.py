"""Texts about triggers, failures and halts that rows and errors share, and the error of the tree for any other one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drainmark.jobs.errors import DrainmarkError, Halted, Location, OperatorFailed, SplitBrain, StoreUnavailable
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.triggers import DIGESTS, Trigger, kind_of

PUT_RIGHT = "drainmark doctor --repair --yes"
"""Undoes what others did to tables; without `--yes` it says what it would do."""

ACCEPT_LOSS = "--accept-loss"
"""Stands in the remedy of an error whose source knows a way on behind what is lost (`Replayable.past_loss`)."""


def trigger_columns(trigger: Trigger) -> dict[str, Any]:
    """Return the columns of a checkpoint row that name its trigger."""
    return {
        "trigger_uri": trigger.uri,
        "trigger_kind": kind_of(trigger.identity),
        "trigger_identity": full_identity(trigger),
        "trigger_order": trigger.order_index,
    }


def full_identity(trigger: Trigger) -> dict[str, Any]:
    """Return what a row must hold of a trigger so that the registry can be rebuilt from it."""
    digests = {DIGESTS: dict(trigger.digests)} if trigger.digests else {}
    return {**trigger.identity, **digests, "output": trigger.output, "origin": trigger.origin}


def scanned_identity(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity as a scan found it, of what `full_identity` keeps in a row."""
    return {name: value for name, value in kept.items() if name not in (DIGESTS, "output", "origin")}


def skip_command(region: str, uri: str) -> str:
    """Return the command that skips a trigger."""
    return f"drainmark skip {region} --file '{uri}' --reason '…'"


def halt_remedies(region: str, history: RegionHistory) -> list[str]:
    """Return the commands that end the halt of a region; none where it is not halted."""
    if history.halt is None:
        return []
    halt = history.halt.detail
    commands = [f"drainmark resume {region}"]
    if (halt.get("error") or {}).get("id") == SplitBrain.id:
        commands = [f"{PUT_RIGHT} && drainmark resume {region}"]
    if ACCEPT_LOSS in ((halt.get("error") or {}).get("remedy") or ""):
        commands = [f"drainmark resume {region} {ACCEPT_LOSS} --reason '…'"]
    if halt.get("trigger"):
        trigger = halt["trigger"].replace("'", "'\\''")
        before = _committed_behind(history, halt["trigger"])
        first = "" if before is None else f"drainmark reset {region} --to {before} --yes && "
        commands.append(first + skip_command(region, trigger))
    return commands


def _committed_behind(history: RegionHistory, trigger: str) -> int | None:
    """Return behind which id a trigger is committed that some stages have not done: only what is pending can be
    skipped. None where it is not committed, or all stages have done it."""
    flow = history.flow
    if not flow.channels:
        return None
    above = history.states.above(min(flow.through.values())).values()
    number = next((row.sequence_id for row in above if row.trigger_uri == trigger), None)
    return None if number is None else history.states.ids.at_most(number - 1) or 0


def halted_error(region: str, history: RegionHistory) -> Halted:
    """Return the error that says why a region is halted and what to do."""
    return _halted(region, history, f"region {region!r} is halted: ")


def halt_text(region: str, history: RegionHistory) -> str:
    """Return why a region is halted, where its name is known: reason, file, cause, operator, and what to do."""
    return str(_halted(region, history, ""))


def _halted(region: str, history: RegionHistory, beginning: str) -> Halted:
    detail = history.halt.detail if history.halt else {}
    blame = f" (trigger {detail['trigger']})" if detail.get("trigger") else ""
    error, reason = detail.get("error") or {}, detail.get("reason", "unknown")
    is_told = error.get("message") == reason  # as of what a source has lost: the error says how to get on
    cause = f": {error['message']}" if error.get("message") and not is_told else ""
    remedy = (error.get("remedy") if is_told else None) or "fix the cause"
    then = "then, if no file of the code changed" if detail.get("code") else "then"
    return Halted(
        f"{beginning}{reason}{blame}{cause}",
        operator=detail.get("operator"),
        location=_location(error.get("location")),
        remedy=f"{remedy.replace('REGION', region)}; {then}: {', or: '.join(halt_remedies(region, history))}",
        trigger=detail.get("trigger"),
    )


def _location(text: str | None) -> Location | None:
    """Return the place that a row keeps as `file:line`."""
    file, _, line = (text or "").rpartition(":")
    return Location(file, int(line)) if file and line.isdigit() else None


def classified(error: Exception) -> DrainmarkError:
    """Return the error as one of the tree: what user code, the store or the registry raised is told apart here."""
    if (fault := environment_fault(error)) is not None:
        return fault
    if isinstance(error, DrainmarkError):
        return error
    name = f"{type(error).__module__}.{type(error).__name__}"
    if name.endswith("OperationalError"):
        wrapped: DrainmarkError = StoreUnavailable(f"the registry does not answer: {error}", remedy="try again")
    else:
        wrapped = OperatorFailed(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def described(error: BaseException) -> dict[str, Any]:
    """Return what the table and the registry keep of an error."""
    if isinstance(error, DrainmarkError):
        return {**error.to_json(), "trigger": error.facts.get("trigger")}
    return {
        "id": "ERROR",
        "message": f"{type(error).__name__}: {error}",
        "operator": None,
        "location": None,
        "remedy": None,
        "trigger": None,
    }
