"""The limits on the size of a group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest size of a group.

    Attributes:
        triggers: at most, per group.
        size_bytes: at most, per group; one trigger is always taken.
        small_bytes: groups up to this size (inclusive) are collected to this process by Arrow.
    """

    triggers: int = 2000
    size_bytes: int = 256 * 1024 * 1024
    small_bytes: int = 8 * 1024 * 1024
