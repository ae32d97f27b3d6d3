"""Slices: what a source has between two positions of its own making."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Position = Mapping[str, Any]
"""Where a source stands, as JSON; small, for every trigger holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a source has after one position, up to another.

    Attributes:
        start: the position before; None at the very beginning.
        end: the position after.
        size_bytes: of what is to be read, or an estimate.
        facts: what else it takes to read it again, as JSON.
    """

    start: Position | None
    end: Position
    size_bytes: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what a trigger's identity keeps."""
        return {"from": self.start, "to": self.end, "bytes": self.size_bytes, **self.facts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Slice:
        """Return the slice that `to_json` described."""
        facts = {name: fact for name, fact in value.items() if name not in ("from", "to", "bytes")}
        return cls(start=value["from"], end=value["to"], size_bytes=int(value.get("bytes", 0)), facts=facts)

    @property
    def is_empty(self) -> bool:
        return self.start == self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLimit:
    """How far a slice may go.

    Attributes:
        source: name of the start.
        max_bytes: about so many, but one unit of the source in any case; None for no bound.
        is_periodic: the slice ends where the tick finds it, and not where it means something to the source.
    """

    source: str
    max_bytes: int | None = None
    is_periodic: bool = False
