"""Who runs which file: the first of several processes begins with files that need no session.

Spark is slow until it is warm, in each process anew: so one process fewer has to warm it up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling

_OTHERS = ("recovery", "cluster")
"""Folders whose tests start what they need in other processes."""


class FilesBySpark(LoadFileScheduling):
    """A process gets whole files: the first one those without Spark as long as there are any, the others the rest."""

    def _assign_work_unit(self, node: Any) -> None:
        wants_spark = node is not self.nodes[0]
        for file in self.workqueue:
            if self._needs_spark(file) == wants_spark:
                self.workqueue.move_to_end(file, last=False)
                break
        super()._assign_work_unit(node)

    def _needs_spark(self, file: str) -> bool:
        path: Path = self.config.rootpath / file
        return "mark.spark" in path.read_text("utf-8") and not set(_OTHERS).intersection(path.parts)
