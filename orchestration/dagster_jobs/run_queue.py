"""Dagster's run queue, looked into twice a second: its own setting is in whole seconds, and a file waits for a run."""

from __future__ import annotations

from dagster import QueuedRunCoordinator

DEQUEUE_SECONDS = 0.5
"""The daemon sleeps in steps of so long; a look is one query of the run storage."""


class PromptRunCoordinator(QueuedRunCoordinator):
    """The queued run coordinator with its configuration, but for `dequeue_interval_seconds`, which is half a second."""

    @property
    def dequeue_interval_seconds(self) -> float:  # type: ignore[override]  # the daemon takes any number
        return DEQUEUE_SECONDS
