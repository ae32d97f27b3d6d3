"""`doctor`: is everything in its place; a new registry from the checkpoint tables (design.md §3.3, faults.md §6)."""

from __future__ import annotations

from orchestration.doctor.examining import examine
from orchestration.doctor.repairing import repair

__all__ = ["examine", "repair"]
