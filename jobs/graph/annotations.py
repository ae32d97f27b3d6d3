"""`@consistent` and `@autonomous`: the additions to the language; the parameters of a region, and sizes in bytes."""

from __future__ import annotations

import datetime as dt
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

GROUP_TIMEOUT = dt.timedelta(seconds=180)
RESET_TIMEOUT = dt.timedelta(seconds=180)
MAX_CONSECUTIVE_RESET_ATTEMPTS = 5
MAX_INFLIGHT_BYTES = 256_000_000
CHANNEL_BATCHES = 8
CHANNEL_SIZE = "64 MB"
REWIND_HORIZON = 10_000


def duration_of(value: Any) -> Any:
    """Return a number of seconds as a duration, other values unchanged; the rules refuse those that are no duration."""
    if not isinstance(value, int | float):
        return value
    try:
        return dt.timedelta(seconds=value)
    except (ValueError, OverflowError):  # nan, or more than a million years
        return value


def micros(duration: dt.timedelta) -> int:
    """Return a duration in microseconds."""
    return duration // dt.timedelta(microseconds=1)


LONGEST = dt.timedelta(days=100_000)
"""The longest duration that is added to event times: sums in microseconds stay within 64 bits."""


def is_duration(value: Any, *, above: dt.timedelta | None = None) -> bool:
    """Say whether a value is a duration of event time: from zero on, or above another one, and not above `LONGEST`."""
    if not isinstance(value, dt.timedelta):
        return False
    return (dt.timedelta(0) <= value if above is None else above < value) and value <= LONGEST


def is_count(value: Any, least: int = 1) -> bool:
    """Say whether a value is a whole number, and not too small."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class TriggerKind(StrEnum):
    """The cause of a consistent state: a clock, or the start operator."""

    PERIODIC = "periodic"
    OPERATOR_DRIVEN = "operator-driven"


class Runs(StrEnum):
    """The way in which Dagster's sensor turns triggers into runs."""

    BACKLOG = "backlog"  # one run drains all pending triggers
    PER_TRIGGER = "per_trigger"  # one run per file


class Checkpoints(StrEnum):
    """The time from which the next group may be processed."""

    NON_BLOCKING = "non-blocking"  # once the last one is drained and its state is frozen
    BLOCKING = "blocking"  # once the last one is committed and published


class Alignment(StrEnum):
    """The stages for which a consistent state waits, in a region of several stages."""

    ALIGNED = "aligned"  # all stages: no batch is in flight, and none is stored
    UNALIGNED = "unaligned"  # the stages of the starts: batches in flight become part of the state


class Channels(StrEnum):
    """The place of the batches between two stages."""

    MEMORY = "memory"  # written when a checkpoint needs them (FLIP-76: ad hoc)
    DURABLE = "durable"  # written, unpublished, as they are produced (FLIP-76: continuous)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistent:
    """Parameters of a region, as its start operator declares them.

    Attributes:
        trigger: `periodic` or `operator-driven`; no default. The rules check the value.
        period: between the end of a state and the next one; required by and only valid with a periodic trigger. A tick
            while a state is under way is only counted. With a backlog, the input of a state is bounded so that it
            takes about a period. 0 switches checkpoints off, except one at the end of the input.
        group_timeout: bound on one group, from the reading of its files to the end of its checkpoint; 180 s by
            default. `drain_timeout`, its name until 0.3, means the same: all of a group is the drain of its inputs.
        reset_timeout: bound on one reset; 180 s by default.
        max_consecutive_reset_attempts: resets in a row before the region halts; 5 by default.
        runs: `backlog` or `per_trigger`.
        rewind_horizon: how many ids back a rewind can go.
        schedule: cron text; scan and run by Dagster schedule instead of a sensor.
        linger: how long a run that a sensor started waits for further files; None: the setting `linger_seconds`.
        checkpoints: `non-blocking` or `blocking`. With `non-blocking`, the next group is processed while the last one
            is written, committed and published, so two groups are in memory. All tables are the same with both.
        alignment: `aligned` or `unaligned`. It has no effect on a region of one stage, nor have the next three.
        alignment_timeout: after this duration of its drain, an aligned state is finished unaligned; None: never.
        channels: `memory` or `durable`.
        max_inflight_bytes: bound on the content of all channels of the region, in bytes or as a text ("256 MB");
            soft while channels are refilled after a reset.
        checkpoint_interval: shortest time between two commits, each of which may have several groups; an interval that
            ends while a commit is under way is dropped and counted. None: a commit as soon as a group is complete.
            0: one commit, at the end of the input.
    """

    trigger: str
    period: dt.timedelta | None = None
    group_timeout: dt.timedelta = GROUP_TIMEOUT
    reset_timeout: dt.timedelta = RESET_TIMEOUT
    max_consecutive_reset_attempts: int = MAX_CONSECUTIVE_RESET_ATTEMPTS
    runs: str = Runs.BACKLOG.value
    rewind_horizon: int = REWIND_HORIZON
    schedule: str | None = None
    linger: dt.timedelta | None = None
    checkpoints: str = Checkpoints.NON_BLOCKING.value
    alignment: str = Alignment.ALIGNED.value
    alignment_timeout: dt.timedelta | None = None
    channels: str = Channels.MEMORY.value
    max_inflight_bytes: int | str = MAX_INFLIGHT_BYTES
    checkpoint_interval: dt.timedelta | None = None

    @property
    def inflight_bytes_bound(self) -> int:
        """Return `max_inflight_bytes` as a number; 0 if it is no size, which the rules refuse."""
        return size_of(self.max_inflight_bytes) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Mark a control port: `limits: Annotated[DataFrame, dm.Control(keys=["host"])]`.

    The function gets the last row of each key from earlier sequence ids, without tags: it sees the rows of an id from
    the next id on. `dm.Control` without keys keeps only the last of all rows. Groups hold one trigger.

    Attributes:
        keys: key columns.
        schema: DDL of the stream's columns; needed if the port closes a loop, since the stream then has the operator's
            own output.

    Example:
        @dm.source(dm.DirectoryScan(path="limits", format="json", schema="item string, most double"))
        def limits(scanned):
            return scanned

        @dm.functor
        def above(orders, limits: Annotated[DataFrame, dm.Control(keys=["item"])]):
            return dm.select(orders.join(limits, "item").where("amount > most"), "id", "item", "most")
    """

    keys: Sequence[str] = ()
    schema: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """Mark a port that reads through a channel: `hosts: Annotated[DataFrame, dm.Buffered]`, or `dm.buffered(hosts)`.

    Reader and writer are then in different stages, each with a thread of its own. The writer works ahead as far as the
    bounds allow (back-pressure), and a failure behind the channel repeats only the work there. Results stay the same.

    Attributes:
        batches: bound on the batches in the channel; one batch is the rows of one group.
        size: bound on their bytes, a number or a text such as "64 MB"; one batch always fits.
        checkpoint_interval: shortest time between two commits of the region that include finished work of the reading
            stage, in seconds or as a `datetime.timedelta`; None: each commit does.
        keys: columns; the reading stage gets all rows of a group with the same key on one partition, in the order of
            the stream, also if several partitions wrote them. Null counts as one key.

    Example:
        @dm.functor
        def rounded(orders: Annotated[DataFrame, dm.Buffered(batches=4)]):
            return dm.select(orders, "id", F.round("amount").alias("amount"))
    """

    batches: int = CHANNEL_BATCHES
    size: int | str = CHANNEL_SIZE
    checkpoint_interval: float | dt.timedelta | None = None
    keys: str | Sequence[str] = ()

    @property
    def bytes(self) -> int:
        """Return `size` as a number; 0 if it is no size, which the rules refuse."""
        return size_of(self.size) or 0

    @property
    def interval(self) -> dt.timedelta | None:
        """Return `checkpoint_interval` as a duration, or unchanged if it is no duration, which the rules refuse."""
        found: dt.timedelta | None = duration_of(self.checkpoint_interval)
        return found


class Autonomous:
    """Mark a port that gets rows from outside the region: `Annotated[DataFrame, dm.Autonomous]`.

    Example:
        @dm.source(dm.DirectoryScan(path="hints", format="json", schema="item string, hint string"))
        def hints(scanned):
            return scanned

        @dm.functor
        def hinted(orders: Annotated[DataFrame, dm.Buffered], hints: Annotated[DataFrame, dm.Autonomous]):
            return orders
    """


def hints_of(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations, evaluated one by one; None (a frame) if a name is only imported for type checkers.

    Args:
        names: the local names at the place of the declaration; a text can use them as well.

    Raises:
        NameError: a text with `Annotated`, which may hold a marker, uses a name that is not known.
    """
    namespace = {"DataFrame": Any, "Column": Any, **getattr(function, "__globals__", {}), **names}
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        if not isinstance(annotation, str):
            hints[name] = annotation
            continue
        try:
            hints[name] = eval(annotation, namespace)  # noqa: S307 - the author's own annotation, as typing evaluates it
        except NameError:
            if "Annotated" in annotation:
                raise
            hints[name] = None
    return hints


def marker_in(hint: Any, marker: type) -> Any:
    """Return the marker in an annotation, the class or an instance of it; None if there is none."""
    marks = hint.__metadata__ if typing.get_origin(hint) is typing.Annotated else ()
    return next((mark for mark in marks if mark is marker or isinstance(mark, marker)), None)


def made_marker(hint: Any, marker: type) -> Any:
    """Return the marker in an annotation as an instance: the bare class stands for its defaults."""
    mark = marker_in(hint, marker)
    return marker() if mark is marker else mark


_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?i?b)", re.ASCII | re.IGNORECASE)
_STEP = 1000


def size_of(value: object) -> int | None:
    """Return a size as a number of bytes above 0, None if the value is no size."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value > 0 else None
    found = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = _UNITS.get(found[2].lower()) if found else None
    size = int(float(found[1]) * unit) if found and unit else 0
    return size or None


def size_text(size: int) -> str:
    """Return a number of bytes for people: "64 MB"."""
    number, units = float(size), ["GB", "MB", "KB", "B"]
    while number >= _STEP and len(units) > 1:
        number /= _STEP
        units.pop()
    return f"{number:.2f}".rstrip("0").rstrip(".") + f" {units[-1]}"
