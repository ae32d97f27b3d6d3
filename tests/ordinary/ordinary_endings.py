"""A module beside the applications; another module beside them imports it."""

from __future__ import annotations

ENDINGS = ("ion", "t", "ee")
