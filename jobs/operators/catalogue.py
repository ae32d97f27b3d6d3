"""The catalogue: every public name of every operator file, every kind of operator, and what is left out on purpose.

`drainmark operators` and the reference page print it, and the tests of the library go through it: a configuration
without an oracle fails them.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jobs.operators as library
from jobs.graph.operator import Operator

_WRITTEN = {
    "delta-append": "dm.sink(…, dm.DeltaAppend(…))",
    "delta-upsert": "dm.sink(…, dm.DeltaUpsert(…))",
    "sliding aggregate": "dm.aggregate(…, window=dm.sliding(…))",
    "barrier": "dm.barrier, dm.pair",
    "source": "dm.source(dm.DirectoryScan(…))",
}
"""How an operator is written where its kind does not say."""

_SOCKET = "what a socket brought cannot be asked for again, so no state could be restored behind it"
_SOCKET_SINK = "what a socket took cannot be taken back, so a rewind would leave it with rows that never were"

UNSUPPORTED: Mapping[str, tuple[str, str]] = {
    "gate": (
        "it holds a row until another one arrives, which after a failure may never come: no state is ever consistent",
        "dm.throttle bounds the speed, dm.barrier waits for the rows of other streams",
    ),
    "switch": (
        "it stops a stream from outside and at any moment: rows would wait for ever before a state is consistent",
        "dm.dynamic_filter lets rows through that a control stream names, `drainmark halt` stops a region",
    ),
    "tcp_source": (_SOCKET, "have it written to files first, dm.source reads them"),
    "udp_source": (_SOCKET, "have it written to files first, dm.source reads them"),
    "tcp_sink": (_SOCKET_SINK, "write a table by dm.sink, and send its rows from there"),
    "udp_sink": (_SOCKET_SINK, "write a table by dm.sink, and send its rows from there"),
}
"""What Streams has and a region cannot have (V142, V145, E8): the name here, why, and what to take instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kind of operator.

    Attributes:
        kind: as `drainmark graph` shows it.
        written: how an application declares it.
        place: `start`: may start a region; `region`: in a region, never its start; `feed`: beside regions, which read
            it through an autonomous port (E8).
        vectorises: `yes`, many triggers at once; `checked`, as the author's function says; `no`, one at a time.
        state: does it keep state from id to id, in some configuration at least?
        guarantee: of a sink.
        configurations: the ways to declare it that differ in what they compute.
    """

    kind: str
    written: str
    summary: str
    place: str
    vectorises: str
    state: bool
    guarantee: str | None
    configurations: tuple[str, ...]


@functools.cache
def exports() -> dict[str, Any]:
    """Return what the operator files make public, by name."""
    found: dict[str, Any] = {}
    for module_info in pkgutil.iter_modules(library.__path__):
        if module_info.name == "catalogue":
            continue
        module = importlib.import_module(f"{library.__name__}.{module_info.name}")
        found.update({name: getattr(module, name) for name in getattr(module, "__all__", ())})
    return found


def kinds() -> tuple[type[Operator], ...]:
    """Return the concrete operator classes of the library, sorted by kind."""
    exports()

    def concrete(base: type[Operator]) -> list[type[Operator]]:
        below = [cls for child in base.__subclasses__() for cls in concrete(child)]
        is_ours = isinstance(getattr(base, "kind", None), str) and base.__module__.startswith(library.__name__)
        return [base, *below] if is_ours else below

    return tuple(sorted(set(concrete(Operator)), key=lambda cls: cls.kind))


def entries() -> tuple[Entry, ...]:
    """Return the catalogue, sorted by kind."""
    return tuple(_entry(cls) for cls in kinds())


def _entry(cls: type[Operator]) -> Entry:
    feeds = cls.is_source and not cls.may_start
    return Entry(
        kind=cls.kind,
        written=_WRITTEN.get(cls.kind, f"dm.{cls.kind.replace('-', '_').replace(' ', '_')}"),
        summary=cls.summary,
        place="start" if cls.may_start else "feed" if feeds else "region",
        vectorises=cls.vectorises.value,
        state=cls.is_stateful or cls.kept is not Operator.kept,
        guarantee=cls.guarantee.value if cls.guarantee else None,
        configurations=cls.configurations,
    )


def why_not(name: str) -> str | None:
    """Return why there is no operator of a name that Streams has, and what to take instead; None of other names."""
    if name not in UNSUPPORTED:
        return None
    why, instead = UNSUPPORTED[name]
    return f"drainmark has no {name!r}: {why}; {instead}"
