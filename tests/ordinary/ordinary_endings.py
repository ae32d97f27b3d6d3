"""Beside the applications: imported by a module that stands beside them."""

from __future__ import annotations

ENDINGS = ("ion", "t", "ee")
