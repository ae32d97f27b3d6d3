"""The operator's desk: for each region and verb a job that people start from Dagster's launchpad.

A verb is an order (`verbs/orders.py`), the same as on the command line. The job logs the plan first, and shows it as
metadata with its digest; it acts only if its config has this digest. Dagster's web page has no users, and launches jobs
for every program that reaches it: a plain `yes` could be sent by one that has never seen a plan, such as a page in an
operator's browser, which can send requests but not read the answers.

The job has no tags of the region, so the limit of the queue, the reaper, the sensors and retries do not treat it as a
run of the region. It claims the region as the command line does.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import Field, ValidationError

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.jobs.printable import markdown_block, printable
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.orchestration.dagster_assets.assets import dagster_name
from drainmark.orchestration.dagster_assets.metadata import DESK_TAG, OUTCOME_TAG
from drainmark.orchestration.dagster_assets.verb_events import show_verb, told_of
from drainmark.orchestration.dagster_jobs.run_config import require_short
from drainmark.orchestration.dagster_jobs.run_endings import MAX_RETRIES_TAG, failure_of, note
from drainmark.orchestration.doctor.registry_repair import repair_order
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.backfill import Wanted
from drainmark.orchestration.verbs.orders import Order, moment
from drainmark.orchestration.verbs.reset_plan import RewindTarget
from drainmark.orchestration.workplace.declaration import load_region
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.home_secret import home_key

PLAN, DONE = "plan", "done"
"""Outputs of a job's op; their metadata are the plan and the outcome."""

PLAN_ONLY, CARRIED_OUT = "plan only", "carried out"
"""Values of the tag `drainmark/outcome`: both runs are a success."""

_DIGITS = 12
"""Hexadecimal digits of a digest. A guess is a run of Dagster's, so a second each: 2^47 of them, on average, take four
million years."""


class Desk(dg.Config):
    """The config of all verbs."""

    plan: str = Field(
        default="", description="Digest of the plan to carry out. Without it the plan is shown, and nothing is changed."
    )


class Reset(Desk):
    """The target of a reset; without a target it drops the work in flight and stays at the last committed id."""

    to: int | None = Field(default=None, ge=0, description="Rewind to this sequence id.")
    by: int | None = Field(default=None, ge=0, description="Rewind by so many states.")
    to_file: str | None = Field(default=None, description="Rewind to right after this file: its path or the end of it.")
    to_time: str | None = Field(
        default=None, description="Rewind to the last state committed by this time: ISO-8601, UTC if it says no offset."
    )
    to_code: str | None = Field(
        default=None, description="Rewind to the last state that this code made, as the history of the region names it."
    )
    to_initial: bool = Field(default=False, description="Rewind to the state before any file.")
    accept_loss: bool = Field(default=False, description="Also where files above the target are gone or changed.")
    cascade: bool = Field(default=False, description="Also take back the regions that read rows which leave.")


class Reason(Desk):
    """The reason, which the history keeps."""

    reason: str = Field(description="Why; the history keeps it.")


class Resume(Desk):
    """The options of `resume`."""

    reason: str = Field(default="resumed by hand", description="Why; the history keeps it.")
    accept_loss: bool = Field(
        default=False, description="Continue after input that its source has lost; the history records it."
    )


class Skip(Reason):
    """The file to skip."""

    file: str = Field(description="A pending file: its path or the end of it.")


class Retract(Desk):
    """The file that leaves."""

    file: str = Field(description="A committed file: its path or the end of it.")
    reason: str = Field(default="", description="Why; the history keeps it.")


class Backfill(Desk):
    """The files to queue that the scan would not take."""

    input: str = Field(
        description="Files to queue: a glob, a folder (all below it) or s3://BUCKET/…; paths count from the project."
    )
    since: str | None = Field(default=None, description="Only files modified at or after this time: ISO-8601.")
    until: str | None = Field(default=None, description="Only files modified before this time: ISO-8601.")
    output: str | None = Field(default=None, description="Output of the source, if it has several.")
    again: bool = Field(default=False, description="Also committed files: their new rows replace the present ones.")


class Redrive(Desk):
    """The file to queue again."""

    file: str = Field(description="A file that was quarantined whole and is fixed: its path or the end of it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb of the desk.

    Attributes:
        config: its fields in the launchpad.
        order: returns its order for a region.
    """

    name: str
    about: str
    config: type[Desk]
    order: Callable[[Workplace, str, Any], Order]


def _reset(workplace: Workplace, region: str, config: Reset) -> Order:
    target = RewindTarget(
        to=config.to,
        by=config.by,
        to_file=config.to_file or None,
        to_time=moment(config.to_time or None, "to_time", to_its_end=True),
        to_code=config.to_code or None,
        to_initial=config.to_initial,
    )
    return orders.reset(workplace, region, target, accept_loss=config.accept_loss, cascade=config.cascade)


def _resume(workplace: Workplace, region: str, config: Resume) -> Order:
    return orders.resume(workplace, region, config.reason, accept_loss=config.accept_loss)


def _backfill(workplace: Workplace, region: str, config: Backfill) -> Order:
    pattern = config.input
    if pattern.strip() and not is_object(pattern):
        pattern = str(workplace.settings.project_root / pattern)
    wanted = Wanted(
        pattern=pattern,
        since=moment(config.since or None, "since"),
        until=moment(config.until or None, "until"),
        output=config.output or None,
        again=config.again,
    )
    return orders.backfill(workplace, region, wanted)


VERBS = (
    Verb(name="reset", about="Return to the last committed state, or rewind.", config=Reset, order=_reset),
    Verb(
        name="resume",
        about="Let a halted region go on; its attempts are counted from zero again.",
        config=Resume,
        order=_resume,
    ),
    Verb(
        name="skip",
        about="Skip a pending file that cannot be fixed.",
        config=Skip,
        order=lambda workplace, region, config: orders.skip(workplace, region, config.file, config.reason),
    ),
    Verb(
        name="retract",
        about="Take a committed file back out of the tables, without reading later files again.",
        config=Retract,
        order=lambda workplace, region, config: orders.retract(workplace, region, [config.file], config.reason),
    ),
    Verb(
        name="halt",
        about="Halt the region until it is resumed; a run ends after its group.",
        config=Reason,
        order=lambda workplace, region, config: orders.halt(workplace, region, config.reason),
    ),
    Verb(name="backfill", about="Queue files that the scan would not take.", config=Backfill, order=_backfill),
    Verb(
        name="redrive",
        about="Queue a fixed file again that was quarantined whole.",
        config=Redrive,
        order=lambda workplace, region, config: orders.redrive(workplace, region, config.file),
    ),
    Verb(
        name="publish",
        about="Bring lagging tables up to the committed state.",
        config=Desk,
        order=lambda workplace, region, config: orders.publish(workplace, region),
    ),
    Verb(
        name="repair",
        about="Rebuild lost rows of the registry, and undo changes that others made to tables.",
        config=Desk,
        order=lambda workplace, region, config: repair_order(workplace, region),
    ),
)


def desk_jobs(workplace: Workplace, region: str, plan: RegionPlan | None) -> list[dg.JobDefinition]:
    """Return the jobs `REGION__VERB` of a region.

    Args:
        plan: of the region, None if its code cannot be loaded: the verbs do not need it.
    """
    return [_job(workplace, region, plan, verb) for verb in VERBS]


def desk_job_name(region: str, verb: str) -> str:
    return f"{dagster_name(region)}__{verb}"


def _job(workplace: Workplace, region: str, plan: RegionPlan | None, verb: Verb) -> dg.JobDefinition:
    name = desk_job_name(region, verb.name)

    def compute(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
        yield from _carried_out(context, workplace, region, plan, verb)

    op = dg.op(
        name=f"{name}__order",
        description=verb.about,
        config_schema=verb.config.to_fields_dict(),
        out={PLAN: dg.Out(dg.Nothing, is_required=False), DONE: dg.Out(dg.Nothing, is_required=False)},
    )(compute)
    graph = dg.GraphDefinition(
        name=name, node_defs=[op], dependencies={dg.NodeInvocation(op.name, alias=verb.name): {}}
    )
    return graph.to_job(
        name=name,
        executor_def=dg.in_process_executor,
        config={"ops": {verb.name: {"config": _blank(verb)}}},
        tags={DESK_TAG: region, MAX_RETRIES_TAG: "0"},
        description=f"{verb.about} Shows its plan; acts on region {region} only with the digest of this plan.",
    )


def _blank(verb: Verb) -> dict[str, Any]:
    """Return all fields of a verb with their defaults: the launchpad begins with them, and would leave out others."""
    return {name: "" if field.is_required() else field.default for name, field in verb.config.model_fields.items()}


def _carried_out(
    context: dg.OpExecutionContext, workplace: Workplace, region: str, plan: RegionPlan | None, verb: Verb
) -> Iterator[dg.Output[None]]:
    """Log the plan, and carry it out if the config has its digest."""
    try:
        config = _config(verb, context.op_config)
        order = verb.order(workplace, region, config)
        digest = digest_of(workplace, order, config)
        context.log.info(printable("\n".join(order.plan)))
        yield dg.Output(None, PLAN, metadata={**_metadata(order.plan, order.remarks, order.facts), "digest": digest})
        if not hmac.compare_digest(config.plan.strip().encode("utf-8", "replace"), digest.encode()):
            _tag(context, PLAN_ONLY)
            _require_unasked(config, digest)
            next_step = f"nothing was done; to carry this plan out, launch it again with {typed(digest)}"
            context.log.info(next_step)
            note(context, f"{order.plan[0]}: {next_step}")
            return
        done = order.act()
    except DrainmarkError as error:
        note(context, str(error))
        raise failure_of(error) from error
    context.log.info(printable("\n".join(done.lines)))
    note(context, done.lines[-1])
    _tag(context, CARRIED_OUT)
    yield dg.Output(None, DONE, metadata=_metadata(done.lines, done.remarks, done.facts))
    try:
        for name, told in told_of(region, verb.name, done.facts, done.lines):
            code = plan if name == region else (load_region(workplace, name) or (None, None))[1]
            show_verb(workplace, name, code, told, instance=context.instance, log=context.log_event)
    except Exception as error:  # the verb is done, and an error of the display must not fail it
        context.log.warning(f"The asset pages were not told: {type(error).__name__}: {error}")


def digest_of(workplace: Workplace, order: Order, config: Desk) -> str:
    """Return the digest of a plan: twelve digits that only a process which can read the home can compute.

    It is of the region, the verb, all options, and what the order is bound to. The dashes keep YAML from reading it as
    a number.
    """
    workplace.settings.make_home()
    options = config.model_dump(exclude={"plan"})
    plan = json.dumps([order.region, order.verb, options, order.bound], sort_keys=True, default=str)
    key = home_key(workplace.settings.home, "desk")
    digits = hmac.new(key.encode(), plan.encode(), hashlib.sha256).hexdigest()[:_DIGITS]
    return "-".join(digits[at : at + 4] for at in range(0, _DIGITS, 4))


def _require_unasked(config: Desk, digest: str) -> None:
    """Raise UsageError if the config has a digest, which is not that of the plan."""
    if config.plan:
        given = printable(config.plan[: 2 * _DIGITS])
        msg = f"this plan is not, or no longer, that of the digest {given!r}: nothing was done"
        raise UsageError(msg, remedy=f"read this plan, then launch it again with {typed(digest)}")


def typed(digest: str) -> str:
    """Return the line of a config that carries a plan out."""
    return f'plan: "{digest}"'


def _tag(context: dg.OpExecutionContext, outcome: str) -> None:
    context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: outcome})


def _config(verb: Verb, given: Mapping[str, Any]) -> Desk:
    """Return the config of a verb from the values of the launchpad.

    Raises:
        UsageError: a value is not valid, or the values are too long.
    """
    require_short(given, verb.name)
    try:
        return verb.config(**given)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(f"{verb.name} was given {found}", remedy="fix the config; nothing was done") from None


def _metadata(lines: Sequence[str], remarks: Sequence[str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata: the lines as text, numbers as values that Dagster can compare, and all facts as JSON."""
    text = "\n".join([*lines, *remarks])
    numbers = {name: value for name, value in facts.items() if isinstance(value, bool | int | float)}
    whole = json.loads(json.dumps(facts, default=str))
    return {
        "what": dg.MetadataValue.md(markdown_block(text)),
        **{f"drainmark/{name}": value for name, value in numbers.items()},
        "json": dg.MetadataValue.json(whole),
    }
