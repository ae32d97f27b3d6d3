"""What histories differ in from the beginning: regions, sinks, policies, clocks, and how often something fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.world import Seam
from simulation.faults import Fault

EPOCHS = (1_700_000_000.0, 2_000_000_000.0)
"""The times at which a history may begin: long before and long after today."""

_SINKS = (("upsert",), ("latest",), ("rows",), ("files",), ("newest",), ("upsert", "files"), ("latest", "newest"),
          ("rows", "files"), ("upsert", "latest"), ())  # fmt: skip
_SINKS_WITHOUT = ((), ("rows",), ("files",), ("newest",), ("upsert",))
_OFTEN = {"switch": (0.05, 0.2, 0.5), "sample": (0.01, 0.03)}
_SELDOM = {
    **dict.fromkeys(("crash_before", "crash_after", "lost_reply", "error", "pause"), (0.0, 0.003, 0.012)),
    **dict.fromkeys(("doubled", "stale"), (0.003, 0.012, 0.05)),  # only some seams can have them
    **dict.fromkeys(("clock_jump", "full_disk"), (0.0, 0.003, 0.012)),
}

_DUELS = 0.5
_CHAINS = 0.15
_RETRACTS = 0.2
"""The share of other histories in which keys are deleted and files retracted."""

_READ_BY_KEY = ((), ("upsert",), ("marked",), ("latest",), ("mirror",), ("mirror_marked",))
"""The keyed sinks of all regions of a chain."""

_FORGETS = 0.2
"""The share of the histories that can have it in which a value is erased."""

_MIRRORED = (("mirror",), ("mirror_marked",), ("mirror_rows",), ("mirror", "rows"), ("mirror_marked", "mirror_rows"))
_MARKED = 0.5
"""The share of upsert tables that are merged on read."""

_HOT = ("", "", *map(str, (Seam.REGISTRY_WRITE, Seam.DELTA_OPEN, Seam.DELTA_COMMIT, Seam.SINK_FILE)))
"""The seams where a process that stands still or dies leaves most behind."""

STALLS: Mapping[str, int] = {
    FailPoint.CHECKPOINT_BEFORE: 1,
    FailPoint.CHECKPOINT_AFTER: 2,
    FailPoint.PUBLISH_BEFORE: 2,
    FailPoint.PUBLISH_AFTER: 1,
    FailPoint.RESUME_BEFORE: 2,
    FailPoint.NOTE_BEFORE: 1,
    FailPoint.REWIND_TABLE_BEFORE: 1,
    f"{Seam.SINK_FILE} _rename": 8,
    Seam.SINK_DATABASE: 1,
}
"""Where an owner of a duel stands still, and how often: a point, a kind of seam, or its calls of one function."""

_BEFORE_DAMAGE = (FailPoint.CHECKPOINT_AFTER, FailPoint.PUBLISH_BEFORE)
_SINKS_AT = {f"{Seam.SINK_FILE} _rename": ("files",), Seam.SINK_DATABASE: ("latest", "rows")}
"""The sinks that a place belongs to; all others pass through the other places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The setup of a history, of plain values.

    Attributes:
        regions: their number.
        sinks: the kinds of sinks of each region, besides its append table; see `regions.SINKS`.
        horizon: number of ids that a rewind may go back.
        images, lag: see `SimRegion`.
        blocking: the flow waits for checkpoints.
        lease_seconds: a lease that is not renewed for so long is free; almost 0 lets two owners work at once.
        on_change, on_missing: policies of the sources.
        again: files are also processed in place of themselves, which only tables without state allow.
        restores: an older copy of the registry comes back at times.
        homes: an older copy of the whole home, or of its Delta tables only, comes back at times.
        quarantine: some rows and some files cannot be read.
        retracts: files are retracted; sinks from which keys are deleted come without other sinks that have keys.
        drops: code comes without the keyed state, or lets it begin anew; sinks that show it are not there then.
        forgets: all rows of a value are erased at times, which no deleted keys, older homes or others' commits meet.
        strangers: other programs write to the tables at times.
        epoch: the time at the beginning, seconds since 1970.
        rates: probability of each kind of fault at a seam.
        hot: a kind of seam at which pauses, crashes, errors and lost replies are 10 times as frequent; "" for none.
        chain: each region but the first reads the table of the one before it.
        stall: where an owner of a duel stands still while others work; "" if this is no duel. See `scene.phases`.
    """

    regions: int = 1
    sinks: tuple[str, ...] = ("upsert", "files")
    horizon: int = 6
    images: int = 3
    lag: float = 0.0
    blocking: bool = False
    lease_seconds: float = 15.0
    on_change: str = "ignore"
    on_missing: str = "skip"
    again: bool = False
    restores: bool = False
    homes: bool = False
    quarantine: bool = False
    retracts: bool = False
    forgets: bool = False
    drops: bool = False
    strangers: bool = False
    chain: bool = False
    epoch: float = EPOCHS[0]
    rates: Mapping[str, float] = field(default_factory=dict)
    hot: str = ""
    stall: str = ""


def setup_of(seed: int) -> Setup:
    """Return the setup of a seed."""
    draw = Random(f"{seed}/setup")
    forgets = Random(f"{seed}/forget").random() < _FORGETS
    if Random(f"{seed}/kind").random() < _CHAINS:
        keyed = Random(f"{seed}/keyed").choice(_READ_BY_KEY)
        return replace(_chain(draw), sinks=keyed, forgets=forgets and not {*keyed} & {*chain.from_iterable(_MIRRORED)})
    found = _duel(draw) if draw.random() < _DUELS else _crowd(draw)
    retracting = Random(f"{seed}/retract")
    if not (found.stall or found.drops) and retracting.random() < 2 * _RETRACTS:  # there are as many duels
        return replace(found, retracts=True, sinks=found.sinks if found.again else retracting.choice(_MIRRORED))
    if Random(f"{seed}/merge").random() < _MARKED:
        found = replace(found, sinks=tuple("marked" if sink == "upsert" else sink for sink in found.sinks))
    others = found.stall or found.again or found.restores or found.homes or found.strangers or found.drops
    return replace(found, forgets=forgets and not others)


def _duel(draw: Random) -> Setup:
    """Return a setup in which little happens, but that one owner stands still at one place."""
    strangers = draw.random() < 0.35
    stall = draw.choice(_BEFORE_DAMAGE) if strangers else draw.choices([*STALLS], [*STALLS.values()])[0]
    return Setup(
        sinks=(draw.choice(_SINKS_AT.get(stall, ("upsert", "latest", "rows", "files", "newest"))),),
        horizon=draw.choice((6, 50)),
        images=draw.choice((0, 1, 3)),
        blocking=draw.random() < 0.5,
        lease_seconds=1e-6,
        strangers=strangers,
        epoch=draw.choice(EPOCHS),
        rates={Fault.SWITCH: 0.02, Fault.SAMPLE: 0.01, Fault.ERROR: 0.002, Fault.LOST_REPLY: 0.002},
        hot=str(draw.choice(("", Seam.DELTA_COMMIT))),
        stall=str(stall),
    )


def _chain(draw: Random) -> Setup:
    """Return a setup of three regions, of which two read the table of the one before."""
    return Setup(
        regions=3,
        sinks=(),
        horizon=draw.choice((3, 6, 50)),
        images=0,
        blocking=draw.random() < 0.3,
        lease_seconds=draw.choice((1e-6, 15.0)),
        on_change="ignore",
        chain=True,
        epoch=draw.choice(EPOCHS),
        rates={kind: draw.choice(rates) for kind, rates in (_OFTEN | _SELDOM).items()},
        hot=draw.choice(_HOT),
    )


def _crowd(draw: Random) -> Setup:
    again = draw.random() < 0.25
    drops = not again and draw.random() < 0.2
    return Setup(
        regions=draw.choice((1, 1, 1, 1, 2, 3)),
        sinks=draw.choice(((), ("rows",)) if again else _SINKS_WITHOUT if drops else _SINKS),
        horizon=draw.choice((3, 6, 50)),
        images=draw.choice((0, 1, 3)),
        lag=draw.choice((0.0, 50.0)),
        blocking=draw.random() < 0.3,
        lease_seconds=draw.choice((1e-6, 1e-6, 15.0)),
        on_change=draw.choice(("ignore", "ignore", "reprocess", "halt")),
        on_missing=draw.choice(("skip", "skip", "halt")),
        again=again,
        restores=draw.random() < 0.3,
        strangers=draw.random() < 0.25,
        homes=draw.random() < 0.2,
        quarantine=draw.random() < 0.3,
        drops=drops,
        epoch=draw.choice(EPOCHS),
        rates={
            **{kind: draw.choice(rates) for kind, rates in (_OFTEN | _SELDOM).items()},
        },
        hot=draw.choice(_HOT),
    )
