"""`doctor`: checks of an installation and a home, and the repair of the registry from the checkpoint tables."""

from __future__ import annotations

from drainmark.orchestration.doctor.examination import examine
from drainmark.orchestration.doctor.registry_repair import lost_regions, repair

__all__ = ["examine", "lost_regions", "repair"]
