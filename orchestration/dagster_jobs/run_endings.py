"""The end of a Dagster run after an error: success without work, cancelled, failed with retry, or failed for good."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from drainmark.jobs.errors import DrainmarkError, Fenced, Halted, Interrupted, Retry
from drainmark.jobs.printable import printable
from drainmark.orchestration.dagster_assets.metadata import (
    BEGUN_TAG,
    MAX_RETRIES_TAG,
    NOTE_TAG,
    OF_AN_END,
    desk_metadata,
    plain_metadata,
)
from drainmark.orchestration.dagster_jobs.run_slot import RunSlot

_NOTE_LENGTH = 500


def end_with(context: dg.OpExecutionContext, region: str, slot: RunSlot, error: BaseException) -> None:
    """Hand the region over and end the Dagster run as the error requires.

    It returns normally if another owner has the region: the run ends with SUCCESS, and a note names the owner.

    Raises:
        dg.DagsterExecutionInterruptedError: the run was interrupted.
        dg.Failure: the run failed. If a retry cannot help, the run has the tag `dagster/max_retries=0`, because
            `allow_retries=False` does not prevent run retries.
    """
    if not isinstance(error, Exception):
        error = Interrupted(str(error) or "the run was interrupted")
    try:
        slot.finish(error)
    except Fenced as fenced:
        error = fenced
    if isinstance(error, Interrupted):
        raise dg.DagsterExecutionInterruptedError(str(error)) from error
    note(context, str(error))
    retry = error.retry if isinstance(error, DrainmarkError) else Retry.ATTEMPT
    if retry is Retry.QUIET:
        context.log.warning(f"Nothing done: {error}")
        return
    if isinstance(error, Halted) or retry in (Retry.PERMANENT, Retry.REFUSE):
        context.instance.add_run_tags(context.run_id, {MAX_RETRIES_TAG: "0"})
    raise failure_of(error, region) from error


def failure_of(error: Exception, region: str) -> dg.Failure:
    """Return the failure for the run's page: the message, and as metadata operator, trigger and remedy.

    The remedy is also there as an order of the region's desk.
    """
    if not isinstance(error, DrainmarkError):
        return dg.Failure(description=printable(f"{type(error).__name__}: {error}"))
    facts = {**error.to_json(), "trigger": error.facts.get("trigger")}
    metadata = {f"drainmark/{name}": str(value) for name, value in facts.items() if value is not None}
    orders = desk_metadata(region, [error.remedy or ""])
    return dg.Failure(description=str(error), metadata=plain_metadata(metadata) | orders)


def note(context: dg.OpExecutionContext, text: str) -> None:
    """Tag the run with a sentence, so that lists of runs and skip reasons can show it."""
    context.instance.add_run_tags(context.run_id, {NOTE_TAG: printable(text)[:_NOTE_LENGTH]})


def tag_begun(context: dg.OpExecutionContext, tags: Mapping[str, str]) -> None:
    """Tag a run whose op begins; the first op empties the tags with which the run that this one repeats has ended."""
    copied = [tag for tag in OF_AN_END if context.run.tags.get(tag)]
    if copied and (run := context.instance.get_run_by_id(context.run_id)) is not None:
        is_first = run.tags.get(BEGUN_TAG) != context.run_id  # else they may be those of another op of this run
        copied = copied if is_first else []
    if copied or tags:
        begun = {**dict.fromkeys(copied, ""), BEGUN_TAG: context.run_id}
        context.instance.add_run_tags(context.run_id, {**begun, **tags})
