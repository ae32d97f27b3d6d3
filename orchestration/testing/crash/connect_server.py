"""One local Spark Connect server for all processes that are to be killed: a run then costs a connection, not a JVM."""

from __future__ import annotations

from pathlib import Path

from drainmark.resources.spark.resident.server import ConnectServer as Server
from drainmark.resources.spark.session_settings import CORRECTNESS, SPEED, delta_settings


class ChildServer(Server):
    """A Connect server on the loopback, with the settings of an in-process session; a child of this process.

    It asks for no token, so that children connect to it by its address alone.
    """

    def __init__(self, folder: Path) -> None:
        settings = {
            **SPEED,
            **CORRECTNESS,
            **delta_settings(),
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.sql.artifact.isolation.enabled": "false",  # else each child has the same code compiled once more
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
        }
        super().__init__(folder, settings)
