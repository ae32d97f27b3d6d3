"""The class of a score."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    points: int
