"""The operator's desk: for each region a job that shows what a verb would do, and one that does it.

A verb is an order (`verbs/orders.py`), the same as on the command line. `REGION__plan` shows its plan and the digest of
the plan, and changes nothing. `REGION__desk` takes the same config with this digest, and carries the plan out if it
still is that plan. Dagster's web page has no users, and launches jobs for every program that reaches it: a plain `yes`
could be sent by one that has never seen a plan, such as a page in an operator's browser, which can send requests but
not read the answers.

The jobs have no tags of the region, so the limit of the queue, the reaper, the sensors and retries do not treat their
runs as runs of the region. The desk claims the region as the command line does.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.
import hashlib
import hmac
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, get_args, get_origin

import dagster as dg
from pydantic import Field, ValidationError, create_model

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.jobs.printable import markdown_block, printable
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.orchestration.dagster_assets.instance import remember_instance
from drainmark.orchestration.dagster_assets.metadata import DESK_TAG, MAX_RETRIES_TAG, OUTCOME_TAG, VERB_TAG
from drainmark.orchestration.dagster_assets.verb_events import show_verb, told_of
from drainmark.orchestration.dagster_jobs.run_config import require_short
from drainmark.orchestration.dagster_jobs.run_endings import failure_of, note, tag_begun
from drainmark.orchestration.doctor.registry_repair import repair_order
from drainmark.orchestration.inspection.desk_links import DESK_JOB, ORDER, PLAN_JOB, desk_job, launchpad
from drainmark.orchestration.verbs.operator_verbs import (
    BACKFILL,
    HALT,
    PUBLISH,
    REDRIVE,
    RESET,
    RESUME,
    RETRACT,
    SKIP,
    Verb,
)
from drainmark.orchestration.verbs.orders import Done, Order
from drainmark.orchestration.verbs.removals.table_drops import drop_table
from drainmark.orchestration.workplace.declaration import load_region
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.home_secret import home_key

PLAN, DONE = "plan", "done"
"""Outputs of the op; their metadata are the plan and the outcome."""

PLAN_ONLY, REFUSED, CARRIED_OUT = "plan only", "refused", "carried out"
"""Values of the tag `drainmark/outcome`."""

_DIGITS = 12
"""Hexadecimal digits of a digest. A guess is a run of Dagster's, so a second each: 2^47 of them, on average, take four
million years."""


@wraps(BACKFILL.order)
def _backfill(workplace: Workplace, region: str, *, input: str, **options: Any) -> Order:  # noqa: A002
    """Return the order of `backfill`; paths count from the project, since Dagster may run anywhere."""
    is_path = input.strip() and not is_object(input)
    pattern = str(workplace.settings.project_root / input) if is_path else input
    return BACKFILL.order(workplace, region, input=pattern, **options)


VERBS = (
    RESET,
    RESUME,
    SKIP,
    RETRACT,
    HALT,
    replace(BACKFILL, order=_backfill),
    REDRIVE,
    PUBLISH,
    Verb("repair", "Rebuild lost rows of the registry, and undo changes that others made to tables.", repair_order),
    Verb("drop", "Drop a table that left the code, with its history.", drop_table),
)


@cache
def config_of(verb: Verb) -> type[dg.Config]:
    """Return the options of a verb as the config of a launchpad."""
    fields: dict[str, Any] = {}
    for each in verb.options:
        kind, option = get_args(each.annotation)
        default = ... if each.default is each.empty else each.default
        fields[each.name] = (kind, Field(default, description=option.help, ge=option.min))
    return create_model(verb.name, __base__=dg.Config, **fields)


def desk_jobs(workplace: Workplace, region: str, plan: RegionPlan | None) -> list[dg.JobDefinition]:
    """Return the jobs `REGION__plan` and `REGION__desk` of a region.

    Args:
        plan: of the region, None if its code cannot be loaded: the verbs do not need it.
    """

    def show(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
        with _failures_told(context):
            planned = yield from _planned(context, workplace, region)
            next_step = f"nothing was done; {planned.next_step}"
            context.log.info(next_step)
            _end(context, PLAN_ONLY, f"{planned.order.plan[0]}: {next_step}")

    def carry_out(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
        with _failures_told(context):
            planned = yield from _planned(context, workplace, region)
            _require_digest(context, planned)
            if planned.order.notice:
                context.log.info(printable(planned.order.notice))
            done = planned.order.act()
            context.log.info(printable("\n".join(done.lines)))
            _end(context, CARRIED_OUT, done.lines[-1])
            yield dg.Output(None, DONE, metadata=_metadata(done.lines, done.remarks, done.facts))
        _tell(context, workplace, plan, planned.verb, done)

    digest = dg.Field(dg.String, default_value="", description=f"The digest that {desk_job(region)} showed for this.")
    shows = f"Shows what a verb would do to {region}, and the digest of this plan. It changes nothing."
    does = f"Does to {region} what {desk_job(region)} has shown, with the digest of that plan."
    return [
        _job(region, PLAN_JOB, show, {}, f"{shows}\n\n{_table(region)}"),
        _job(region, DESK_JOB, carry_out, {"digest": digest}, does),
    ]


def _job(
    region: str, end: str, compute: Callable[..., Any], more: Mapping[str, dg.Field], about: str
) -> dg.JobDefinition:
    """Return a job whose launchpad begins with the first verb, and with all fields of it."""
    name, verb = desk_job(region, end), VERBS[0]
    op = dg.op(
        name=f"{name}__{ORDER}",
        config_schema={**more, "verb": dg.Selector({each.name: _field(each) for each in VERBS})},  # type: ignore[no-untyped-call]
        out={PLAN: dg.Out(dg.Nothing, is_required=False), DONE: dg.Out(dg.Nothing, is_required=False)},
    )(compute)
    begins = {**dict.fromkeys(more, ""), "verb": {verb.name: blank(verb)}}
    graph = dg.GraphDefinition(name=name, node_defs=[op], dependencies={dg.NodeInvocation(op.name, alias=ORDER): {}})
    return graph.to_job(
        name=name,
        executor_def=dg.in_process_executor,
        config={"ops": {ORDER: {"config": begins}}},
        tags={DESK_TAG: region, MAX_RETRIES_TAG: "0"},
        description=about,
    )


@cache
def _field(verb: Verb) -> dg.Field:
    shape = dg.Shape(config_of(verb).to_fields_dict())  # type: ignore[no-untyped-call]
    return dg.Field(shape, is_required=False, description=verb.about)


def blank(verb: Verb) -> dict[str, Any]:
    """Return all fields of a verb with their defaults: a launchpad that begins without them would not show them."""
    fields = config_of(verb).model_fields.items()
    return {name: _empty(field.annotation) if field.is_required() else field.default for name, field in fields}


def _empty(kind: Any) -> Any:
    """Return the value with which a launchpad begins where one is needed: an empty text, or a list of one."""
    return [""] if get_origin(kind) is list else ""


def _table(region: str) -> str:
    """Return the verbs as Markdown, each with a link to a launchpad that has all of its fields."""
    rows = (f"| [{verb.name}]({launchpad(region, verb.name, blank(verb))}) | {verb.about} |" for verb in VERBS)
    return "\n".join(("| verb | |", "|---|---|", *rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The order of a run, with the digest of its plan and the one that the config has."""

    verb: Verb
    order: Order
    digest: str
    given: str

    @property
    def next_step(self) -> str:
        return f"to carry this plan out, launch {desk_job(self.order.region, DESK_JOB)} with {typed(self.digest)}"


def _planned(
    context: dg.OpExecutionContext, workplace: Workplace, region: str
) -> Generator[dg.Output[None], None, _Planned]:
    """Log the plan of the run's verb, yield it as an output with its digest, and return it.

    The metadata of the output have a link to the desk's launchpad with the digest filled in.
    """
    verb, options = _asked(context, region)
    remember_instance(workplace.settings, context.instance)
    order = verb.order(workplace, region, **_chosen(options))
    digest = digest_of(workplace, order, options)
    found = _Planned(verb=verb, order=order, digest=digest, given=context.op_config.get("digest", ""))
    context.instance.add_run_tags(context.run_id, {VERB_TAG: verb.name})
    context.log.info(printable("\n".join(order.plan)))
    link = launchpad(region, verb.name, options.model_dump(), digest=digest)
    to_do = dg.MetadataValue.md(f"[{desk_job(region, DESK_JOB)}]({link}) with this digest carries it out")
    told = _metadata(order.plan, order.remarks, order.facts)
    yield dg.Output(None, PLAN, metadata={**told, "digest": digest, "drainmark/desk": to_do})
    return found


def _asked(context: dg.OpExecutionContext, region: str) -> tuple[Verb, Any]:
    """Return the verb of a config, and its options.

    Raises:
        UsageError: a value is not valid, or the values are too long.
    """
    require_short(context.op_config, desk_job(region, DESK_JOB))
    ((name, given),) = context.op_config["verb"].items()
    verb = next(each for each in VERBS if each.name == name)
    try:
        return verb, config_of(verb)(**given)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(f"{name} was given {found}", remedy="fix the config; nothing was done") from None


def _chosen(options: dg.Config) -> dict[str, Any]:
    """Return the values of options; an empty text, with which a launchpad begins, is no value where none is needed."""
    fields = type(options).model_fields
    given = options.model_dump().items()
    return {name: None if value == "" and fields[name].default is None else value for name, value in given}


def _require_digest(context: dg.OpExecutionContext, planned: _Planned) -> None:
    """Raise UsageError if the config does not have the digest of the plan."""
    given = planned.given.strip()
    if hmac.compare_digest(given.encode("utf-8", "replace"), planned.digest.encode()):
        return
    context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: REFUSED})
    wrong = printable(given[: 2 * _DIGITS])
    msg = f"this plan is not, or no longer, that of the digest {wrong!r}" if given else "the config has no digest"
    raise UsageError(f"{msg}: nothing was done", remedy=f"read this plan; {planned.next_step}")


@contextmanager
def _failures_told(context: dg.OpExecutionContext) -> Iterator[None]:
    """Let the run fail with the error and the remedy of the command line."""
    tag_begun(context, {})
    try:
        yield
    except DrainmarkError as error:
        note(context, str(error))
        raise failure_of(error, context.run.tags[DESK_TAG]) from error


def _end(context: dg.OpExecutionContext, outcome: str, said: str) -> None:
    note(context, said)
    context.instance.add_run_tags(context.run_id, {OUTCOME_TAG: outcome})


def _tell(
    context: dg.OpExecutionContext, workplace: Workplace, plan: RegionPlan | None, verb: Verb, done: Done
) -> None:
    """Show what a verb has done on the asset pages of the regions that it changed."""
    region = context.run.tags[DESK_TAG]
    try:
        for name, told in told_of(region, verb.name, done.facts, done.lines):
            code = plan if name == region else (load_region(workplace, name) or (None, None))[1]
            show_verb(workplace, name, code, told, instance=context.instance, log=context.log_event)
    except Exception as error:  # the verb is done, and an error of the display must not fail it
        context.log.warning(f"The asset pages were not told: {type(error).__name__}: {error}")


def digest_of(workplace: Workplace, order: Order, options: dg.Config) -> str:
    """Return the digest of a plan: twelve digits that only a process which can read the home can compute.

    It is of the region, the verb, all options, and what the order is bound to. The dashes keep YAML from reading it as
    a number.
    """
    workplace.settings.make_home()
    bound = [order.region, order.verb, options.model_dump(), order.bound]
    plan = json.dumps(bound, sort_keys=True, default=str)
    key = home_key(workplace.settings.home, "desk")
    digits = hmac.new(key.encode(), plan.encode(), hashlib.sha256).hexdigest()[:_DIGITS]
    return "-".join(digits[at : at + 4] for at in range(0, _DIGITS, 4))


def typed(digest: str) -> str:
    """Return the line of a config that carries a plan out."""
    return f'digest: "{digest}"'


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
