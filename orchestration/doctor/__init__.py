"""`doctor`: is everything in its place; a new registry from the checkpoint tables (design.md §3.3, faults.md §6)."""

from __future__ import annotations

from drainmark.orchestration.doctor.examination import examine
from drainmark.orchestration.doctor.registry_repair import repair

__all__ = ["examine", "repair"]
