"""A package beside the applications."""

from __future__ import annotations

from .scores import Score

__all__ = ["Score"]
