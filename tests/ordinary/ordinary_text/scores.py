"""What a score is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    points: int
