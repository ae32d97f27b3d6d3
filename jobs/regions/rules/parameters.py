"""Rules on the parameters of `@consistent`, and on the author's functions."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import wraps

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.annotations import Alignment, Channels, Checkpoints, Consistent, Runs, TriggerKind
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.graph.code_digests import UserFunction, attributes_used
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.regions.merging import Draft, broken, starts_of

_CRON = re.compile(
    r"@(hourly|daily|midnight|weekly|monthly|yearly|annually)"
    r"|[0-9A-Za-z*/,#?-]+( +[0-9A-Za-z*/,#?-]+){4}"
)


Fault = tuple[str, str]
"""What is wrong at a start, after its name; and the remedy."""

_DURATION = "give seconds as a number from 0 up, or a datetime.timedelta"


def _of_starts(find: Callable[[Consistent], Iterator[Fault]]) -> Callable[[Draft], Iterator[Violation]]:
    """Return the rule that finds faults in the parameters of each start; its name is that of the function."""

    @wraps(find)
    def rule(draft: Draft) -> Iterator[Violation]:
        for operator in draft.application.operators:
            if operator.consistent is not None:
                for message, remedy in find(operator.consistent):
                    yield broken(find.__name__.upper(), operator, f"{operator.name!r} {message}", remedy)

    return rule


@_of_starts
def trigger_unknown(given: Consistent) -> Iterator[Fault]:
    """The trigger is neither periodic nor operator-driven."""
    yield from _unknown("trigger", given.trigger, TriggerKind)


@_of_starts
def period_missing(given: Consistent) -> Iterator[Fault]:
    """A periodic region has no period."""
    if given.trigger == TriggerKind.PERIODIC and given.period is None:
        yield "starts a periodic region without a period", "add period=10.0, the seconds between states"


@_of_starts
def period_forbidden(given: Consistent) -> Iterator[Fault]:
    """An operator-driven region has a period."""
    if given.trigger == TriggerKind.OPERATOR_DRIVEN and given.period is not None:
        yield "starts an operator-driven region, which has no period: the operator says when", "drop period="


@_of_starts
def nonpositive_timeout(given: Consistent) -> Iterator[Fault]:
    """A period or time-out is not a duration above zero; a period of 0 means one state at the end."""
    for name in ("period", "group_timeout", "reset_timeout", "alignment_timeout"):
        value = getattr(given, name)
        absent = (name == "period" and value in (None, dt.timedelta(0))) or (
            name == "alignment_timeout" and value is None
        )
        if not absent and not (isinstance(value, dt.timedelta) and value > dt.timedelta(0)):
            remedy = "give seconds as a number above 0, or a datetime.timedelta"
            yield f"has {name}={value!r}, which is no duration above zero", remedy


@_of_starts
def linger_invalid(given: Consistent) -> Iterator[Fault]:
    """`linger` is no duration, or the region has one run for each trigger, and such a run never lingers."""
    if _is_no_duration(given.linger):
        yield f"has linger={given.linger!r}, which is no duration", _DURATION
    elif given.linger and given.runs == Runs.PER_TRIGGER:
        yield "has a run a trigger, which cannot linger for others", 'drop linger=, or make it runs="backlog"'


@_of_starts
def negative_limit(given: Consistent) -> Iterator[Fault]:
    """A number of attempts or ids is not a whole number from 0 up."""
    for name in ("max_consecutive_reset_attempts", "rewind_horizon"):
        value = getattr(given, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            yield (
                f"has {name}={value!r}, which is no whole number from 0 up",
                "give a whole number, or leave it out",
            )


@_of_starts
def runs_unknown(given: Consistent) -> Iterator[Fault]:
    """`runs` is neither backlog nor per_trigger."""
    yield from _unknown("runs", given.runs, Runs)


@_of_starts
def checkpoints_unknown(given: Consistent) -> Iterator[Fault]:
    """`checkpoints` is neither non-blocking nor blocking."""
    yield from _unknown("checkpoints", given.checkpoints, Checkpoints)


@_of_starts
def alignment_unknown(given: Consistent) -> Iterator[Fault]:
    """`alignment` is neither aligned nor unaligned."""
    yield from _unknown("alignment", given.alignment, Alignment)


@_of_starts
def alignment_timeout_forbidden(given: Consistent) -> Iterator[Fault]:
    """A region that is unaligned from the beginning has a time after which it would become unaligned."""
    if given.alignment == Alignment.UNALIGNED and given.alignment_timeout is not None:
        yield (
            "has alignment='unaligned' and a time after which it would become unaligned",
            'drop alignment_timeout=, or make it alignment="aligned"',
        )


@_of_starts
def channels_unknown(given: Consistent) -> Iterator[Fault]:
    """`channels` is neither memory nor durable."""
    yield from _unknown("channels", given.channels, Channels)


@_of_starts
def inflight_bound(given: Consistent) -> Iterator[Fault]:
    """`max_inflight_bytes` is no size."""
    if not given.inflight_bytes_bound:
        remedy = 'give bytes, or a text such as "256 MB"'
        yield f"has max_inflight_bytes={given.max_inflight_bytes!r}, which is no size", remedy


@_of_starts
def checkpoint_interval_invalid(given: Consistent) -> Iterator[Fault]:
    """`checkpoint_interval` is no duration; 0 means one commit at the end."""
    if _is_no_duration(given.checkpoint_interval):
        yield f"has checkpoint_interval={given.checkpoint_interval!r}, which is no duration", _DURATION


@_of_starts
def schedule_forbidden(given: Consistent) -> Iterator[Fault]:
    """A periodic region has a cron schedule besides its period."""
    if given.trigger == TriggerKind.PERIODIC and given.schedule is not None:
        yield (
            "starts a periodic region, which has its period and takes no schedule",
            "drop schedule=, or make the trigger operator-driven",
        )


@_of_starts
def schedule_malformed(given: Consistent) -> Iterator[Fault]:
    """A schedule is not cron text."""
    schedule = given.schedule
    if schedule is not None and not (isinstance(schedule, str) and _CRON.fullmatch(schedule.strip())):
        remedy = 'five fields, such as "*/5 * * * *", or "@daily"'
        yield f"has schedule={schedule!r}, which is no cron text", remedy


def thread_without_run(draft: Draft) -> Iterator[Violation]:
    """A start has a thread, which lives in a run that stays, and Dagster never gives its region such a run."""
    for region in draft.regions:
        starts = starts_of(draft.graph, region)
        for start, annotation in starts:
            has_thread = isinstance(start, Source) and start.has_thread
            if has_thread and (never := _never_stays([each for _, each in starts], annotation)):
                why, remedy = never
                yield broken(
                    "THREAD_WITHOUT_RUN",
                    start,
                    f"{start.name!r} has a thread, which lives in a run that lingers, and its region has {why}",
                    remedy,
                )


def _never_stays(annotations: Sequence[Consistent], own: Consistent) -> tuple[str, str] | None:
    """Return why no run of a region lingers, and the remedy; a merged region has the longest `linger` of its starts."""
    if own.runs == Runs.PER_TRIGGER:
        return 'runs="per_trigger"', 'make it runs="backlog"'
    if own.schedule is not None:
        return f"schedule={own.schedule!r}", "drop schedule=: the sensor starts the run, and the thread says when"
    if all(annotation.linger == dt.timedelta(0) for annotation in annotations):
        return "linger=0", "drop linger=, or give it seconds: the run stays while the thread lives, whatever they are"
    return None


def _unknown(name: str, value: object, kinds: type[StrEnum]) -> Iterator[Fault]:
    """Yield the fault that a parameter has a value that is none of the kinds."""
    known = [kind.value for kind in kinds]
    if value not in known:
        yield f"has {name}={value!r}", nearest(str(value), known)


def _is_no_duration(given: object) -> bool:
    return given is not None and not (isinstance(given, dt.timedelta) and given >= dt.timedelta(0))


_VIEWS = ("createOrReplaceTempView", "createTempView", "createOrReplaceGlobalTempView", "createGlobalTempView")
"""Spark Connect looks a view up by its name each time that a plan runs, so a later file's view takes its place."""

_INSTEAD = {
    **dict.fromkeys(_VIEWS, 'frame.sparkSession.sql("select … from {rows}", rows=frame) needs no view; so does dm.sql'),
    "rdd": "mapInPandas, applyInPandas or a udf does it on frames",
    "sparkContext": "the session is `frame.sparkSession`; a udf closes over what you would broadcast",
    **dict.fromkeys(("_jdf", "_jvm", "_jsc", "_jsparkSession"), "use pyspark's public functions"),
}


def classic_only(draft: Draft) -> Iterator[Violation]:
    """A function uses an attribute that Spark Connect, and so the resident Spark, lacks or treats differently."""
    for operator in draft.application.operators:
        function: UserFunction | None = getattr(operator, "function", None)
        places = attributes_used(function.function) if function is not None else ()
        found = {(name, location) for name, location in places if name in _INSTEAD}
        for name, location in sorted(found, key=lambda use: (use[1].file, use[1].line)):
            other = "means other rows there" if name in _VIEWS else "is not there"
            yield Violation(
                rule="CLASSIC_ONLY",
                message=f"{operator.name}: .{name} is not for the resident Spark, nor for sc://: it {other}",
                operator=operator.name,
                location=location,
                remedy=_INSTEAD[name],
            )
