"""Rules on what `@consistent` says (V34–V39, E1)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

from jobs.errors import Violation
from jobs.graph.annotations import Checkpoints, Consistent, Runs, Trigger
from jobs.graph.application import nearest
from jobs.graph.operator import Operator
from jobs.regions.rules.draft import Draft, broken

_CRON = re.compile(
    r"@(hourly|daily|midnight|weekly|monthly|yearly|annually)"
    r"|[0-9A-Za-z*/,#?-]+( +[0-9A-Za-z*/,#?-]+){4}"
)


def trigger_unknown(draft: Draft) -> Iterator[Violation]:
    """The trigger is neither periodic nor operator-driven (V34)."""
    known = [trigger.value for trigger in Trigger]
    for start, annotation in _starts(draft):
        if annotation.trigger not in known:
            yield broken(
                "TRIGGER_UNKNOWN",
                start,
                f"{start.name!r} has trigger={annotation.trigger!r}",
                nearest(str(annotation.trigger), known),
            )


def period_missing(draft: Draft) -> Iterator[Violation]:
    """A periodic region has no period (V35)."""
    for start, annotation in _starts(draft):
        if annotation.trigger == Trigger.PERIODIC and annotation.period is None:
            yield broken(
                "PERIOD_MISSING",
                start,
                f"{start.name!r} starts a periodic region without a period",
                "add period=10.0, the seconds between states",
            )


def period_forbidden(draft: Draft) -> Iterator[Violation]:
    """An operator-driven region has a period (V35)."""
    for start, annotation in _starts(draft):
        if annotation.trigger == Trigger.OPERATOR_DRIVEN and annotation.period is not None:
            yield broken(
                "PERIOD_FORBIDDEN",
                start,
                f"{start.name!r} starts an operator-driven region, which has no period: the operator says when",
                "drop period=",
            )


def nonpositive_timeout(draft: Draft) -> Iterator[Violation]:
    """A period or time-out is not a duration above zero (E1); a period of 0 means one state at the end (K8)."""
    for start, annotation in _starts(draft):
        for name in ("period", "drain_timeout", "reset_timeout"):
            value = getattr(annotation, name)
            absent = name == "period" and value in (None, dt.timedelta(0))
            if not absent and not (isinstance(value, dt.timedelta) and value > dt.timedelta(0)):
                yield broken(
                    "NONPOSITIVE_TIMEOUT",
                    start,
                    f"{start.name!r} has {name}={value!r}, which is no duration above zero",
                    "give seconds as a number above 0, or a datetime.timedelta",
                )


def linger_invalid(draft: Draft) -> Iterator[Violation]:
    """`linger` is no duration, or the region has a run a trigger, which never lingers."""
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
    """A number of attempts or ids is not a whole number from 0 up (V38)."""
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
    known = [runs.value for runs in Runs]
    for start, annotation in _starts(draft):
        if annotation.runs not in known:
            yield broken(
                "RUNS_UNKNOWN",
                start,
                f"{start.name!r} has runs={annotation.runs!r}",
                nearest(str(annotation.runs), known),
            )


def checkpoints_unknown(draft: Draft) -> Iterator[Violation]:
    """`checkpoints` is neither non-blocking nor blocking."""
    known = [checkpoints.value for checkpoints in Checkpoints]
    for start, annotation in _starts(draft):
        if annotation.checkpoints not in known:
            yield broken(
                "CHECKPOINTS_UNKNOWN",
                start,
                f"{start.name!r} has checkpoints={annotation.checkpoints!r}",
                nearest(str(annotation.checkpoints), known),
            )


def schedule_forbidden(draft: Draft) -> Iterator[Violation]:
    """A periodic region has a cron schedule besides its period."""
    for start, annotation in _starts(draft):
        if annotation.trigger == Trigger.PERIODIC and annotation.schedule is not None:
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


def _starts(draft: Draft) -> Iterator[tuple[Operator, Consistent]]:
    for operator in draft.application.operators:
        if operator.consistent is not None:
            yield operator, operator.consistent
