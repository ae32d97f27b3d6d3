"""Commands for the state that a region is in: `remedies` of `status --json`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.transitions import State

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory

REPAIR = "drainmark doctor --repair"
"""What a region is in need of whose registry is lost."""


def remedies(
    region: str, history: RegionHistory, state: State, *, is_owned: bool, pending: int | None, reference: str | None
) -> list[str]:
    """Return commands, the first of them what is mostly meant; none where a run is at work, or nothing is to be done.

    Args:
        pending: triggers that wait; None where the registry is lost, or there never was one.
        reference: how the application is opened; None where nobody knows.
    """
    found: list[str] = []
    if pending is None and history.last_claim is not None:
        found.append(REPAIR)
    if history.halt is not None:
        from drainmark.jobs.runtime.messages import halt_remedies

        return [*found, *halt_remedies(region, history)]
    if not is_owned and (state is State.UNHEALTHY or pending or history.flow.channels):
        found.append(f"drainmark run {shlex.quote(reference or region.partition('/')[0])}")
    return found
