"""Failures by SIGKILL: the failing code runs in a separate process."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from drainmark.jobs.errors import UsageError
from drainmark.orchestration.testing.applications import App, reference_of
from drainmark.orchestration.testing.crash.children import Nursery
from drainmark.orchestration.testing.session import MASTER
from drainmark.resources.spark.resident.server import ConnectServer as Server
from drainmark.resources.spark.session_settings import SessionSettings

if TYPE_CHECKING:
    from drainmark.orchestration.testing.running import Result


class Killer:
    """A runner of steps in children that a fail point kills; they share a Connect server.

    Raises:
        UsageError: another process cannot find the application.
    """

    def __init__(self, app: App, params: Mapping[str, Any], folder: Path) -> None:
        self._reference = reference_of(app)
        self._params = dict(params)
        self._server = ChildServer(folder / "connect")
        self._nursery: Nursery | None = None

    def __enter__(self) -> Self:
        self._server.start()
        self._nursery = Nursery()
        return self

    def __exit__(self, *error: object) -> None:
        if self._nursery is not None:
            self._nursery.close()
        self._server.stop()

    def strike(self, scene: Result, region: str, home: Path, steps: Sequence[Sequence[Any]], fail_points: str) -> bool:
        """Let a child do the steps on a home; return whether it was killed.

        Raises:
            UsageError: it ended by itself with an error; its log is part of the message.
        """
        if self._nursery is None:
            raise UsageError("no process to kill was started", remedy="use it in a `with` block")
        settings = scene.workplace.settings.model_dump(
            mode="json", exclude={"home", "project_root", "registry_url", "spark_master"}
        )
        request = {
            "home": str(home),
            "root": str(scene.workplace.settings.project_root),
            "master": self._server.master,
            "app": self._reference,
            "inputs": [f"{name}={folder}" for name, folder in scene.inbox.folders.items()],
            "topics": {name: str(file) for name, file in scene.topics.files.items()},
            "region": region,
            "params": self._params,
            "settings": settings,
            "steps": [list(step) for step in steps],
            "failpoints": fail_points,
        }
        ended = self._nursery.start(request, home.parent).wait()
        if ended.code not in (0, -signal.SIGKILL):
            raise UsageError(f"the process that was to be killed failed by itself: {ended}")
        return ended.code != 0


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
