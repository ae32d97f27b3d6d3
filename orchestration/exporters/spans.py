"""Spans as values, which need no package of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span; times are nanoseconds since 1970.

    Attributes:
        error: why it failed, "" if it did not.
        parts: the spans below it.
    """

    name: str
    began: int
    ended: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    parts: Sequence[Span] = ()


def steps_of_group(seconds: Mapping[str, float], began: int, ended: int) -> list[Span]:
    """Return the spans of a group's steps, by their durations.

    The work follows the group's begin; its commit and publishing precede its end. In between it may wait for others.
    """
    lengths = {name: int(seconds.get(name, 0) * 1e9) for name in ("process", "drain", "checkpoint", "publish")}
    work = began + lengths["process"]
    commit = ended - lengths["publish"]
    times = {
        "process": (began, work),
        "drain": (work, work + lengths["drain"]),
        "checkpoint": (commit - lengths["checkpoint"], commit),
        "publish": (commit, ended),
    }
    return [Span(name=name, began=first, ended=last) for name, (first, last) in times.items()]
