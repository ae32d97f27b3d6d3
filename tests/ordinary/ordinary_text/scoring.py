"""The function that scores a text."""

from __future__ import annotations

from .scores import Score

POINTS = {"q": 3, "z": 3}


def score(text: str) -> Score:
    return Score(sum(POINTS.get(letter, 1) for letter in text))
