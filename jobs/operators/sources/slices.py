"""Slices: the input of a source between two of its positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Position = Mapping[str, Any]
"""A place in the input of a source, as JSON that the source defines; small, since every trigger has one."""

ANEW = "in another application, whose sinks have other names"
"""Says how to begin anew: a table belongs to the region that made it, and an application has one table for bad rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The input of a source after one position, up to another.

    Attributes:
        start: the position before; None at the very beginning.
        end: the position after.
        size_bytes: size of the input, or an estimate.
        facts: other facts that are needed to read it again, as JSON.
    """

    start: Position | None
    end: Position
    size_bytes: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the slice as JSON, for the identity of a trigger."""
        return {"from": self.start, "to": self.end, "bytes": self.size_bytes, **self.facts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Slice:
        """Return the slice that `to_json` described."""
        facts = {name: fact for name, fact in value.items() if name not in ("from", "to", "bytes")}
        return cls(start=value["from"], end=value["to"], size_bytes=int(value.get("bytes", 0)), facts=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimit:
    """The limits of a slice.

    Attributes:
        source: name of the start.
        max_bytes: approximate limit of the size, but the slice has at least one unit of the source; None for no limit.
        is_periodic: the slice ends with the input that is there at the tick, not at a boundary that the source defines.
    """

    source: str
    max_bytes: int | None = None
    is_periodic: bool = False


_MOST_IN_FLIGHT = 10_000
"""More slices than two groups have: the group before is perhaps not committed yet when the next one is read."""


@dataclass(slots=True)
class HighestIds:
    """The highest id of the origins in each of the slices that a run read last; also in slices that failed then.

    Attributes:
        by_order: by source and place of the slice.
        sources: the sources whose skipped slices, if any, tell of no wrong state.
    """

    sources: set[str] = field(default_factory=set)
    by_order: dict[tuple[str, int], int] = field(default_factory=dict)

    def note(self, source: str, order: int, highest_id: int) -> None:
        """Note it for the slice at a place in the order of the region's triggers."""
        self.by_order.pop((source, order), None)
        self.by_order[source, order] = highest_id
        if len(self.by_order) > _MOST_IN_FLIGHT:
            del self.by_order[next(iter(self.by_order))]

    def before(self, source: str, order: int) -> int:
        """Return the highest id in slices before a place."""
        return max((found for (name, at), found in self.by_order.items() if name == source and at < order), default=0)
