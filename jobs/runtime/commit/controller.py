"""The controller of a region, which its owner drives: the region's state, the durations of its steps, its listeners."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, StoreUnavailable
from drainmark.jobs.protocol.history import UNCLEAN, RegionHistory
from drainmark.jobs.protocol.transitions import IN_HAND, Event, State, at_rest, move, state_of
from drainmark.jobs.runtime.outside import Report

if TYPE_CHECKING:
    from drainmark.resources.registry.registry import Registry


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
        """Return the fields of a `PublishNote`."""
        return {
            "commit_seconds": {str(number): seconds for number, seconds in self.commits.items()},
            "publish_seconds": {str(number): seconds for number, seconds in self.publishes.items()},
            "resets": list(self.resets),
        }

    def clear(self) -> None:
        """Forget the seconds, which a committed note now has."""
        self.commits.clear()
        self.publishes.clear()
        self.resets.clear()


@dataclass(slots=True, kw_only=True)
class Controller:
    """The state of a region: it moves by the table of `transitions`, and is reported to the registry and to `report`.

    Attributes:
        epoch: of the owner; 0 before the claim.
        durations: of the owner's steps since its last note; the next note contains them.
    """

    region: str
    registry: Registry
    report: Report
    epoch: int = 0
    state: State = State.STARTED
    durations: Durations = field(default_factory=Durations)
    _told: State | None = None

    def claimed(self, history: RegionHistory, told: str, epoch: int) -> None:
        """Continue from the state in which the last owner left the region; `tell` reports it after the commit.

        Args:
            history: as it is before the claim.
            told: the state that the last owner reported to the registry.
        """
        self.state, self.epoch = state_of(history, told, is_owned=False), epoch
        is_unclean = history.last_outcome in UNCLEAN or self.state is State.UNHEALTHY
        self.moved(Event.CLAIMED_UNCLEAN if is_unclean else Event.CLAIMED_CLEAN, history, told=False)

    def moved(self, event: Event, history: RegionHistory, *, told: bool = True) -> None:
        """Note an event; `told=False` does not report the new state, since another follows at once.

        Raises:
            IllegalTransition: the table does not list the move.
        """
        self.state = move(self.state, event)
        self.durations.moved(event, self.state, history)
        if told:
            self.tell()

    def halted(self, event: Event, history: RegionHistory) -> None:
        """Note that the region is halted; work in hand is given up first."""
        if self.state in IN_HAND:
            self.moved(Event.FAILED, history, told=False)
        if self.state is not State.HALTED:
            self.moved(event, history)

    def come_to_rest(self, history: RegionHistory) -> None:
        """Move to the state in which, by the rows, the owner leaves the region."""
        rest = at_rest(history)
        if rest is self.state:
            return
        if rest is State.HALTED:  # the halt was asked for before a rewind, and the rewind is done
            if self.state is State.RESETTING:
                self.moved(Event.RESET_DONE, history, told=False)
            self.moved(Event.HALT_ASKED, history)
        else:
            self.moved(Event.HEALTH_LOST if rest is State.UNHEALTHY else Event.RELEASED, history)

    def tell(self) -> None:
        """Report the state unless that was done; ignore a store that does not answer, since this is only a display."""
        if self.state is self._told or not self.epoch:
            return
        try:
            with suppress(StoreUnavailable):
                self.registry.progress.set_state(self.region, self.epoch, self.state.value)
                self._told = self.state
        except Fenced:
            return  # the next commit finds out
        self.report("state", {"state": self.state.value})
