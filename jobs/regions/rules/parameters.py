"""Rules on the parameters of `@consistent`, and on the author's functions."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.annotations import Alignment, Channels, Checkpoints, Consistent, Runs, TriggerKind
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.graph.code_digests import UserFunction, attributes_used
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.merging import Draft, broken, starts_of

_CRON = re.compile(
    r"@(hourly|daily|midnight|weekly|monthly|yearly|annually)"
    r"|[0-9A-Za-z*/,#?-]+( +[0-9A-Za-z*/,#?-]+){4}"
)


def trigger_unknown(draft: Draft) -> Iterator[Violation]:
    """The trigger is neither periodic nor operator-driven."""
    yield from _unknown(draft, "TRIGGER_UNKNOWN", "trigger", TriggerKind)


def period_missing(draft: Draft) -> Iterator[Violation]:
    """A periodic region has no period."""
    for start, annotation in _starts(draft):
        if annotation.trigger == TriggerKind.PERIODIC and annotation.period is None:
            yield broken(
                "PERIOD_MISSING",
                start,
                f"{start.name!r} starts a periodic region without a period",
                "add period=10.0, the seconds between states",
            )


def period_forbidden(draft: Draft) -> Iterator[Violation]:
    """An operator-driven region has a period."""
    for start, annotation in _starts(draft):
        if annotation.trigger == TriggerKind.OPERATOR_DRIVEN and annotation.period is not None:
            yield broken(
                "PERIOD_FORBIDDEN",
                start,
                f"{start.name!r} starts an operator-driven region, which has no period: the operator says when",
                "drop period=",
            )


def nonpositive_timeout(draft: Draft) -> Iterator[Violation]:
    """A period or time-out is not a duration above zero; a period of 0 means one state at the end."""
    for start, annotation in _starts(draft):
        for name in ("period", "group_timeout", "reset_timeout", "alignment_timeout"):
            value = getattr(annotation, name)
            absent = (name == "period" and value in (None, dt.timedelta(0))) or (
                name == "alignment_timeout" and value is None
            )
            if not absent and not (isinstance(value, dt.timedelta) and value > dt.timedelta(0)):
                yield broken(
                    "NONPOSITIVE_TIMEOUT",
                    start,
                    f"{start.name!r} has {name}={value!r}, which is no duration above zero",
                    "give seconds as a number above 0, or a datetime.timedelta",
                )


def linger_invalid(draft: Draft) -> Iterator[Violation]:
    """`linger` is no duration, or the region has one run for each trigger, and such a run never lingers."""
    for start, annotation in _starts(draft):
        value = annotation.linger
        if value is None:
            continue
        if not isinstance(value, dt.timedelta) or value < dt.timedelta(0):
            yield broken(
                "LINGER_INVALID",
                start,
                f"{start.name!r} has linger={value!r}, which is no duration",
                "give seconds as a number from 0 up, or a datetime.timedelta",
            )
        elif value and annotation.runs == Runs.PER_TRIGGER:
            yield broken(
                "LINGER_INVALID",
                start,
                f"{start.name!r} has a run a trigger, which cannot linger for others",
                'drop linger=, or make it runs="backlog"',
            )


def negative_limit(draft: Draft) -> Iterator[Violation]:
    """A number of attempts or ids is not a whole number from 0 up."""
    for start, annotation in _starts(draft):
        for name in ("max_consecutive_reset_attempts", "rewind_horizon"):
            value = getattr(annotation, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                yield broken(
                    "NEGATIVE_LIMIT",
                    start,
                    f"{start.name!r} has {name}={value!r}, which is no whole number from 0 up",
                    "give a whole number, or leave it out",
                )


def runs_unknown(draft: Draft) -> Iterator[Violation]:
    """`runs` is neither backlog nor per_trigger."""
    yield from _unknown(draft, "RUNS_UNKNOWN", "runs", Runs)


def checkpoints_unknown(draft: Draft) -> Iterator[Violation]:
    """`checkpoints` is neither non-blocking nor blocking."""
    yield from _unknown(draft, "CHECKPOINTS_UNKNOWN", "checkpoints", Checkpoints)


def alignment_unknown(draft: Draft) -> Iterator[Violation]:
    """`alignment` is neither aligned nor unaligned."""
    yield from _unknown(draft, "ALIGNMENT_UNKNOWN", "alignment", Alignment)


def alignment_timeout_forbidden(draft: Draft) -> Iterator[Violation]:
    """A region that is unaligned from the beginning has a time after which it would become unaligned."""
    for start, annotation in _starts(draft):
        if annotation.alignment == Alignment.UNALIGNED and annotation.alignment_timeout is not None:
            yield broken(
                "ALIGNMENT_TIMEOUT_FORBIDDEN",
                start,
                f"{start.name!r} has alignment='unaligned' and a time after which it would become unaligned",
                'drop alignment_timeout=, or make it alignment="aligned"',
            )


def channels_unknown(draft: Draft) -> Iterator[Violation]:
    """`channels` is neither memory nor durable."""
    yield from _unknown(draft, "CHANNELS_UNKNOWN", "channels", Channels)


def inflight_bound(draft: Draft) -> Iterator[Violation]:
    """`max_inflight_bytes` is no size."""
    for start, annotation in _starts(draft):
        if not annotation.inflight_bytes_bound:
            yield broken(
                "INFLIGHT_BOUND",
                start,
                f"{start.name!r} has max_inflight_bytes={annotation.max_inflight_bytes!r}, which is no size",
                'give bytes, or a text such as "256 MB"',
            )


def checkpoint_interval_invalid(draft: Draft) -> Iterator[Violation]:
    """`checkpoint_interval` is no duration; 0 means one commit at the end."""
    for start, annotation in _starts(draft):
        value = annotation.checkpoint_interval
        if value is not None and (not isinstance(value, dt.timedelta) or value < dt.timedelta(0)):
            yield broken(
                "CHECKPOINT_INTERVAL_INVALID",
                start,
                f"{start.name!r} has checkpoint_interval={value!r}, which is no duration",
                "give seconds as a number from 0 up, or a datetime.timedelta",
            )


def schedule_forbidden(draft: Draft) -> Iterator[Violation]:
    """A periodic region has a cron schedule besides its period."""
    for start, annotation in _starts(draft):
        if annotation.trigger == TriggerKind.PERIODIC and annotation.schedule is not None:
            yield broken(
                "SCHEDULE_FORBIDDEN",
                start,
                f"{start.name!r} starts a periodic region, which has its period and takes no schedule",
                "drop schedule=, or make the trigger operator-driven",
            )


def schedule_malformed(draft: Draft) -> Iterator[Violation]:
    """A schedule is not cron text."""
    for start, annotation in _starts(draft):
        schedule = annotation.schedule
        if schedule is not None and not (isinstance(schedule, str) and _CRON.fullmatch(schedule.strip())):
            yield broken(
                "SCHEDULE_MALFORMED",
                start,
                f"{start.name!r} has schedule={schedule!r}, which is no cron text",
                'five fields, such as "*/5 * * * *", or "@daily"',
            )


def thread_without_run(draft: Draft) -> Iterator[Violation]:
    """A start has a thread, which lives in a run that stays, and Dagster never gives its region such a run."""
    for region in draft.regions:
        starts = starts_of(draft.graph, region)
        for start, annotation in starts:
            if start.has_thread and (never := _never_stays([each for _, each in starts], annotation)):
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


def _unknown(draft: Draft, rule: str, name: str, kinds: type[StrEnum]) -> Iterator[Violation]:
    """Yield a violation for each annotation with a value that is none of the kinds."""
    known = [kind.value for kind in kinds]
    for start, annotation in _starts(draft):
        value = getattr(annotation, name)
        if value not in known:
            yield broken(rule, start, f"{start.name!r} has {name}={value!r}", nearest(str(value), known))


def _starts(draft: Draft) -> Iterator[tuple[Operator, Consistent]]:
    for operator in draft.application.operators:
        if operator.consistent is not None:
            yield operator, operator.consistent


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
