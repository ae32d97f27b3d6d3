"""The claim of a region for an operator's verb: a run that lingers is asked to go, any other run is not disturbed.

A run that lingers says so in a note of the registry, and checks often whether a verb asked it to go. Note and request
are cursors of the registry, with names that no operator can have. To lose them costs a wait, never safety.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, Owned
from drainmark.jobs.protocol.history import Outcome

if TYPE_CHECKING:
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner
    from drainmark.resources.registry.registry import Registry

LINGERS = "@lingers"
"""Cursor that holds the id of the last run that lingers when it has nothing to do."""

ASKED = "@asked_to_go"
"""Cursor that holds a new text with every request."""

PATIENCE_SECONDS = 20.0
"""How long a verb waits for a run that was asked to go: the run finishes its group and hands over."""

_POLL_SECONDS = 0.05


def claim_asking(owner: RegionOwner, claim: Callable[[], Any]) -> None:
    """Claim a region by a function; if a run that lingers owns it, ask that run to go, and wait for it.

    Raises:
        Owned: the owner is no run that lingers, or did not go in time.
    """
    registry = owner.outside.registry
    deadline = world.monotonic() + PATIENCE_SECONDS
    is_asked = False
    while True:
        try:
            claim()
            return
        except Owned as error:
            if error.facts.get("run_id") != registry.load_cursor(owner.region, LINGERS) or world.monotonic() > deadline:
                raise
        if not is_asked:
            registry.save_cursor(owner.region, ASKED, world.token())
            is_asked = True
        world.sleep(_POLL_SECONDS)


@contextmanager
def owning(owner: RegionOwner, claim: Callable[[], Any] | None = None) -> Iterator[RegionOwner]:
    """Claim a region for an operator's verb and hand it over again.

    Args:
        claim: claims the region, if the verb has its code; `owner.claim` by default.

    Raises:
        Owned: the owner does not go when it is asked to.
        Fenced: another process claimed it inside the block. Most often this made the block fail: for example, the
            other process deleted its staged files.
    """
    try:
        claim_asking(owner, claim or owner.claim)
        owner.reset_done()
        yield owner
    except Fenced:
        owner.leave()
        raise
    except BaseException as error:
        try:
            owner.release(Outcome.INTERRUPTED)
        except Fenced as fenced:
            if isinstance(error, Exception) and owner.has_claimed:
                raise fenced.after(error) from error
        raise
    else:
        owner.release(Outcome.CLEAN)


class Requests:
    """The requests to a run that lingers to go, since this object was made; make it before the claim."""

    def __init__(self, registry: Registry, region: str) -> None:
        self._registry = registry
        self._region = region
        self._seen = registry.load_cursor(region, ASKED)

    def announce(self, run_id: str, epoch: int) -> None:
        """Let operators' verbs know that this run goes when it is asked to."""
        self._registry.save_cursor(self._region, LINGERS, run_id, epoch=epoch)

    def is_asked(self) -> bool:
        """Say whether a verb asked for the region since this object was made."""
        return self._registry.load_cursor(self._region, ASKED) != self._seen
