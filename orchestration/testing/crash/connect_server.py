"""One local Spark Connect server for all processes that are killed: each run costs a connection instead of a JVM."""

from __future__ import annotations

import secrets
from pathlib import Path

from drainmark.orchestration.testing.session import MASTER
from drainmark.resources.spark.resident.server import ConnectServer as Server
from drainmark.resources.spark.session_settings import SessionSettings


class ChildServer(Server):
    """A Connect server on the loopback, with the settings of an in-process session; a child of this process.

    Its address has a token, which every client must send: a Connect server executes what anybody sends who reaches it.
    """

    def __init__(self, folder: Path) -> None:
        conf = {
            "spark.driver.memory": "2g",
            "spark.sql.artifact.isolation.enabled": "false",  # otherwise Spark compiles the same code for each child
            "spark.sql.shuffle.partitions": "2",
        }
        settings = SessionSettings(master=MASTER, conf=conf, scratch=folder).of_start()
        super().__init__(folder, {**settings, "spark.master": MASTER}, token=secrets.token_urlsafe(32))

    @property
    def master(self) -> str:
        return f"sc://localhost:{self.port}/;token={self.token}"  # to any other name Spark sends a token by TLS alone
