"""The catalogue, read from the operator files: public names, kinds of operators, and kinds that are not supported.

`drainmark operators` and the reference page print it, and the tests of the library go through it: a configuration
without an oracle fails them. A new operator needs no entry here: `__init__` says how to add one.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

import drainmark.jobs.operators as library
from drainmark.jobs.graph.operator import Operator

_WRITTEN = {
    "aggregate over changes": "dm.aggregate(…) of a change stream",
    "as-of join": "dm.join_as_of",
    "barrier": "dm.barrier, dm.pair",
    "database-append": "dm.sink(…, dm.DatabaseAppend(…))",
    "database-upsert": "dm.sink(…, dm.DatabaseUpsert(…))",
    "delta-append": "dm.sink(…, dm.DeltaAppend(…))",
    "delta-overwrite": "dm.sink(…, dm.DeltaOverwrite(…))",
    "delta-upsert": "dm.sink(…, dm.DeltaUpsert(…))",
    "event-time windows": "dm.aggregate(…, window=dm.tumbling(…)), dm.sliding(…, every=…)",
    "file-sink": "dm.sink(…, dm.FileSink(…))",
    "handler": "dm.operator",
    "interval join": "dm.join(…, within=…)",
    "join": 'dm.join(…, left_window=…, right_window=…), dm.join(…, kind="latest")',
    "numbered windows": "dm.aggregate(…, window=dm.tumbling(…)) by rows, a difference, a mark",
    "session windows": "dm.aggregate(…, window=dm.session(…))",
    "slices": "dm.source(…) of Beacon, FileSource, TableSource, DatabaseSource, KafkaSource, ReplayableStart, "
    "ThreadedStart",
    "sliding aggregate": "dm.aggregate(…, window=dm.sliding(rows=…))",
    "sliding aggregate of every row": 'dm.aggregate(…, window=dm.sliding(rows=…), emit="row")',
    "source": "dm.source(dm.DirectoryScan(…))",
    "trailing windows": "dm.aggregate(…, window=dm.sliding(…)) by event time, a difference",
}
"""The declaration of an operator, by kind, if it does not follow from the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One kind of operator.

    Attributes:
        kind: as `drainmark graph` shows it.
        written: how an application declares it.
        place: `start`: may start a region; `region`: in a region, never its start; `feed`: beside regions, which read
            it through an autonomous port.
        vectorises: `yes`, many triggers at once; `checked`, depends on the author's function; `no`, one at a time.
        state: whether it keeps state from id to id, in at least one configuration.
        guarantee: of a sink; None for other operators.
        configurations: the ways to declare it that compute different results.
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
    """Return the public objects of the operator files, by name."""
    found: dict[str, Any] = {}
    for module_info in pkgutil.walk_packages(library.__path__, f"{library.__name__}."):
        if module_info.name == __name__:
            continue
        module = importlib.import_module(module_info.name)
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


def entries() -> tuple[CatalogueEntry, ...]:
    """Return the catalogue, sorted by kind."""
    return tuple(_entry(cls) for cls in kinds() if not cls.refused_because)


def _entry(cls: type[Operator]) -> CatalogueEntry:
    feeds = cls.is_source and not cls.may_start
    return CatalogueEntry(
        kind=cls.kind,
        written=_WRITTEN.get(cls.kind, f"dm.{cls.kind.replace('-', '_').replace(' ', '_')}"),
        summary=cls.summary,
        place="start" if cls.may_start else "feed" if feeds else "region",
        vectorises=cls.vectorises.value,
        state=cls.output_state is not Operator.output_state or cls.kept is not Operator.kept,
        guarantee=cls.guarantee.value if cls.guarantee else None,
        configurations=cls.configurations,
    )


def unsupported() -> dict[str, tuple[str, str]]:
    """Return the operators of Streams that are not supported, by kind: the reason, and the alternative."""
    return {cls.kind: (cls.refused_because, cls.instead) for cls in kinds() if cls.refused_because}
