"""A module beside the applications; two of them import it."""

from __future__ import annotations

from ordinary_endings import ENDINGS


def stem(text: str) -> str:
    """Return a text without its ending."""
    return next((text.removesuffix(each) for each in ENDINGS if text.endswith(each)), text)
