"""The seconds of an owner's steps; a commit cannot contain its own duration, so they wait here for the next note."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.transitions import Event, State


@dataclass(slots=True)
class Durations:
    """Seconds of the steps since the last note, by the last id of a group; and the resets that ended since then.

    Attributes:
        commits, publishes: of groups.
        resets: `{"to": the id that was returned to, "seconds": …}`, in order.
    """

    commits: dict[int, float] = field(default_factory=dict)
    publishes: dict[int, float] = field(default_factory=dict)
    resets: list[dict[str, Any]] = field(default_factory=list)
    _reset_began: float | None = None

    def moved(self, event: Event, after: State, history: RegionHistory) -> None:
        """Time a reset from beginning to end; a reset that does not end with RESET_DONE is not counted."""
        if after is State.RESETTING:
            self._reset_began = self._reset_began or world.monotonic()
            return
        if event is Event.RESET_DONE and self._reset_began is not None:
            seconds = round(world.monotonic() - self._reset_began, 4)
            self.resets.append({"to": history.committed_id, "seconds": seconds})
        self._reset_began = None

    def to_detail(self) -> dict[str, Any]:
        """Return the fields of a `published` row; None for a field without values, except `commit_seconds`."""
        return {
            "commit_seconds": {str(number): seconds for number, seconds in self.commits.items()},
            "publish_seconds": {str(number): seconds for number, seconds in self.publishes.items()} or None,
            "resets": list(self.resets) or None,
        }

    def clear(self) -> None:
        """Forget the seconds, which a committed note now has."""
        self.commits.clear()
        self.publishes.clear()
        self.resets.clear()
