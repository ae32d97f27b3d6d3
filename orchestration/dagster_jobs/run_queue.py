"""Dagster's run queue, polled twice a second: its own setting is in whole seconds, and files wait for a run."""

from __future__ import annotations

from dagster import QueuedRunCoordinator

DEQUEUE_SECONDS = 0.5
"""Seconds that the daemon sleeps between two polls; a poll is one query of the run storage."""


class PromptRunCoordinator(QueuedRunCoordinator):
    """The queued run coordinator with its configuration, except that `dequeue_interval_seconds` is half a second."""

    @property
    def dequeue_interval_seconds(self) -> float:  # type: ignore[override]  # the daemon takes any number
        return DEQUEUE_SECONDS
