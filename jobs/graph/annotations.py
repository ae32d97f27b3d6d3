"""`@consistent` and `@autonomous`: the two additions to the language (V13), and the region's parameters (V34–V39)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

DRAIN_TIMEOUT = dt.timedelta(seconds=180)
RESET_TIMEOUT = dt.timedelta(seconds=180)
MAX_CONSECUTIVE_RESET_ATTEMPTS = 5
REWIND_HORIZON = 10_000


class Trigger(StrEnum):
    """Who asks for a consistent state (V34)."""

    PERIODIC = "periodic"
    OPERATOR_DRIVEN = "operator-driven"


class Runs(StrEnum):
    """How Dagster's sensor turns triggers into runs (design.md §4)."""

    BACKLOG = "backlog"  # one run drains whatever is pending
    PER_TRIGGER = "per_trigger"  # one run a file


class Checkpoints(StrEnum):
    """When the next group may begin to be processed (N13, N14, N19)."""

    NON_BLOCKING = "non-blocking"  # once the last one is drained and its state is frozen
    BLOCKING = "blocking"  # once the last one is committed and published


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistent:
    """Parameters of a region, as its start operator declares them.

    Attributes:
        trigger: `periodic` or `operator-driven`; no default (V34). Kept as given, the rules judge it.
        period: between the end of a state and the next one; required by and only valid with a periodic trigger (V35,
            E2). A tick while a state is under way asks for nothing, and is counted (E15). With a backlog the input of
            a state is bounded so that it takes about a period. 0 switches checkpoints off but for one at the end of
            what is there (K8).
        drain_timeout: bound on establishing one state (V36, E1: 180 s).
        reset_timeout: bound on one reset (V37, E1: 180 s).
        max_consecutive_reset_attempts: resets in a row before the region halts (V38, E1: 5).
        runs: `backlog` or `per_trigger`.
        rewind_horizon: how many ids back a rewind can go (design.md §3.4).
        schedule: cron text; scan and run by Dagster schedule instead of a sensor.
        linger: how long a run that a sensor started waits for further files; None for the setting `linger_seconds`.
        checkpoints: `non-blocking` or `blocking`: is the next group processed while the last one is written, committed
            and published? Two groups are in memory then. Neither changes what is in any table.
    """

    trigger: str
    period: dt.timedelta | None = None
    drain_timeout: dt.timedelta = DRAIN_TIMEOUT
    reset_timeout: dt.timedelta = RESET_TIMEOUT
    max_consecutive_reset_attempts: int = MAX_CONSECUTIVE_RESET_ATTEMPTS
    runs: str = Runs.BACKLOG.value
    rewind_horizon: int = REWIND_HORIZON
    schedule: str | None = None
    linger: dt.timedelta | None = None
    checkpoints: str = Checkpoints.NON_BLOCKING.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Marks a control port: `limits: Annotated[DataFrame, dm.Control(keys=["host"])]` (V20).

    The function gets the last row of each key among those of earlier sequence ids, without their tags: what comes with
    an id is seen from the next id on. `dm.Control` without keys keeps the last row of all. Groups hold one trigger.

    Attributes:
        keys: key columns.
        schema: DDL of the stream's columns; needed where the port closes a loop, since the stream is then made of what
            the operator itself puts out (V21).
    """

    keys: Sequence[str] = ()
    schema: str | None = None


class Autonomous:
    """Marks a port as fed from outside the region on purpose: `Annotated[DataFrame, dm.Autonomous]` (V52)."""
