"""`doctor`: is everything in its place; a new registry from the checkpoint tables."""

from __future__ import annotations

from drainmark.orchestration.doctor.examination import examine
from drainmark.orchestration.doctor.registry_repair import repair

__all__ = ["examine", "repair"]
