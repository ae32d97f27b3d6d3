"""The controller of a region, in the hands of its owner: the region's state, and its listeners."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from drainmark.jobs.errors import Fenced, StoreUnavailable
from drainmark.jobs.protocol.history import UNCLEAN, RegionHistory
from drainmark.jobs.protocol.region_state import at_rest, state_of
from drainmark.jobs.protocol.transitions import IN_HAND, Event, State, move
from drainmark.jobs.runtime.commit.timings import Durations
from drainmark.jobs.runtime.outside import RegionRegistry, Report


@dataclass(slots=True, kw_only=True)
class Controller:
    """Moves along the table of `transitions`, and tells the registry and the report of each state.

    Attributes:
        epoch: the owner's; 0 before the claim.
        durations: of what the owner did since its last note; noted with the next commit.
    """

    region: str
    registry: RegionRegistry
    report: Report
    epoch: int = 0
    state: State = State.STARTED
    durations: Durations = field(default_factory=Durations)
    _told: State | None = None

    def claimed(self, history: RegionHistory, told: str, epoch: int) -> None:
        """Go on from where the last owner left the region; nobody is told before the claim is committed.

        Args:
            history: as it is before the claim.
            told: what the last owner told the registry.
        """
        self.state, self.epoch = state_of(history, told, is_owned=False), epoch
        is_unclean = history.last_outcome in UNCLEAN or self.state is State.UNHEALTHY
        self.moved(Event.CLAIMED_UNCLEAN if is_unclean else Event.CLAIMED_CLEAN, history, told=False)

    def moved(self, event: Event, history: RegionHistory, *, told: bool = True) -> None:
        """Note an event; a state that another follows at once need not be told.

        Raises:
            IllegalTransition: the table does not list the move.
        """
        self.state = move(self.state, event)
        self.durations.moved(event, self.state, history)
        if told:
            self.tell()

    def halted(self, event: Event, history: RegionHistory) -> None:
        """Note that the region is halted; what is in hand is given up first."""
        if self.state in IN_HAND:
            self.moved(Event.FAILED, history, told=False)
        if self.state is not State.HALTED:
            self.moved(event, history)

    def come_to_rest(self, history: RegionHistory) -> None:
        """Move to where the rows say that the owner leaves the region."""
        rest = at_rest(history)
        if rest is self.state:
            return
        if rest is State.HALTED:  # asked for before a rewind, which is done
            if self.state is State.RESETTING:
                self.moved(Event.RESET_DONE, history, told=False)
            self.moved(Event.HALT_ASKED, history)
        else:
            self.moved(Event.HEALTH_LOST if rest is State.UNHEALTHY else Event.RELEASED, history)

    def tell(self) -> None:
        """Tell the state, unless that was done; a display is not worth a failure."""
        if self.state is self._told or not self.epoch:
            return
        try:
            with suppress(StoreUnavailable):
                self.registry.progress.set_state(self.region, self.epoch, self.state.value)
                self._told = self.state
        except Fenced:
            return  # the next commit finds out
        self.report("state", {"state": self.state.value})
