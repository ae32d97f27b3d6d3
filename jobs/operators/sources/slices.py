"""Slices: the input of a source between two of its positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Position = Mapping[str, Any]
"""A place in the input of a source, as JSON that the source defines; small, since every trigger has one."""


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

    @property
    def is_empty(self) -> bool:
        return self.start == self.end


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
