"""Texts about triggers, failures and halts for rows and errors, and the conversion of any error to `DrainmarkError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drainmark.jobs.errors import (
    DrainmarkError,
    Halted,
    Location,
    OperatorFailed,
    SourceRewound,
    SplitBrain,
    StoreUnavailable,
)
from drainmark.jobs.errors.environment import ErasedInput
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.failure_policy import FINAL
from drainmark.jobs.protocol.history import RegionHistory, target_before
from drainmark.jobs.protocol.records.triggers import DIGESTS, Trigger, kind_of

PUT_RIGHT = "drainmark doctor --repair --yes"
"""Command that undoes changes by others to tables; without `--yes` it only shows the plan."""


def trigger_columns(trigger: Trigger) -> dict[str, Any]:
    """Return the columns of a checkpoint row that name its trigger."""
    return {
        "trigger_uri": trigger.uri,
        "trigger_kind": kind_of(trigger.identity),
        "trigger_identity": full_identity(trigger),
        "trigger_order": trigger.order_index,
    }


def full_identity(trigger: Trigger) -> dict[str, Any]:
    """Return the facts about a trigger that a row needs so that the registry can be rebuilt from it."""
    digests = {DIGESTS: dict(trigger.digests)} if trigger.digests else {}
    return {**trigger.identity, **digests, "output": trigger.output, "origin": trigger.origin}


def scanned_identity(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity from the scan, extracted from the `full_identity` in a row."""
    return {name: value for name, value in kept.items() if name not in (DIGESTS, "output", "origin")}


def resume_command(region: str) -> str:
    """Return the command that ends the halt of a region."""
    return f"drainmark resume {region}"


def skip_command(region: str, *uris: str) -> str:
    """Return the command that skips some triggers."""
    files = " --file ".join(map(shell_word, uris))
    return f"drainmark skip {region} --file {files} --reason '…'"


def halt_remedies(region: str, history: RegionHistory) -> list[str]:
    """Return the commands that end the halt of a region; none if it is not halted."""
    if history.halt is None:
        return []
    halt = history.halt.detail
    error = halt.get("error") or {}
    resume = resume_command(region)
    usual = f"{PUT_RIGHT} && {resume}" if error.get("id") == SplitBrain.id else resume
    commands = [*error.get("commands", [usual])]
    # To skip a slice would leave withdrawn rows where they are, and that of an erased person may be one of many.
    if halt.get("trigger") and error.get("id") not in (SourceRewound.id, ErasedInput.id):
        before = _committed_behind(history, halt["trigger"])
        first = "" if before is None else f"drainmark reset {region} --to {before} --yes && "
        commands.append(first + skip_command(region, halt["trigger"]))
    return commands


def _committed_behind(history: RegionHistory, trigger: str) -> int | None:
    """Return the id to which a rewind must go so that a committed trigger is pending again, and can be skipped.

    None if the trigger is not committed, or if all stages have finished it.
    """
    flow = history.flow
    if not flow.channels:
        return None
    above = history.states.above(min(flow.through.values())).values()
    number = next((row.sequence_id for row in above if row.trigger_uri == trigger), None)
    return None if number is None else target_before(history, number)


def halted_error(region: str, history: RegionHistory) -> Halted:
    """Return the error that says why a region is halted and how to continue."""
    return _halted(region, history, f"region {region!r} is halted: ")


def halt_text(region: str, history: RegionHistory) -> str:
    """Return why a region is halted, without its name: reason, file, cause, operator, and remedy."""
    return str(_halted(region, history, ""))


def _halted(region: str, history: RegionHistory, beginning: str) -> Halted:
    detail = history.halt.detail if history.halt else {}
    blame = f" (trigger {detail['trigger']})" if detail.get("trigger") else ""
    error, reason = detail.get("error") or {}, detail.get("reason", "unknown")
    is_told = error.get("message") == reason  # for example lost input of a source: the error has the remedy
    cause = f": {error['message']}" if error.get("message") and not is_told else ""
    is_final = is_told or reason in FINAL  # else the remedy may be to wait for the next attempt, and there is none
    remedy = (error.get("remedy") if is_final else None) or "fix the cause"
    then = "then, if no file of the code changed" if detail.get("code") else "then"
    commands = (each for each in halt_remedies(region, history) if each.removesuffix(" --yes") not in remedy)
    further = ", or: ".join(commands)
    remedy = f"{remedy}; {then}: {further}" if further else remedy
    return Halted(
        f"{beginning}{reason}{blame}{cause}",
        operator=detail.get("operator"),
        location=_location(error.get("location")),
        remedy=remedy,
        trigger=detail.get("trigger"),
        cause=None if is_told else error.get("message"),
    )


def _location(text: str | None) -> Location | None:
    """Return the location that a row keeps as `file:line`; None if the text is not of that form."""
    file, _, line = (text or "").rpartition(":")
    return Location(file, int(line)) if file and line.isdigit() else None


def classified(error: Exception) -> DrainmarkError:
    """Return the error as a `DrainmarkError`, which tells apart errors of user code, the store and the registry."""
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
    """Return the fields of an error for the checkpoint table and the registry."""
    if isinstance(error, DrainmarkError):
        commands = {"commands": list(error.commands)} if error.commands else {}
        return {**error.to_json(), "trigger": error.facts.get("trigger"), **commands}
    return {
        "id": "ERROR",
        "message": f"{type(error).__name__}: {error}",
        "operator": None,
        "location": None,
        "remedy": None,
        "trigger": None,
    }
