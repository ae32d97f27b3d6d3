"""Commands that help a region in its state: `remedies` of `status --json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.transitions import State

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory

REPAIR = "drainmark doctor --repair"
"""The command for a region that has lost its registry."""


def remedies(
    region: str, history: RegionHistory, state: State, *, is_owned: bool, pending: int | None, reference: str | None
) -> list[str]:
    """Return commands, the most likely one first; none if a run is at work, or if no command is needed.

    Args:
        pending: number of pending triggers; None if the registry is lost, or there never was one.
        reference: the text to open the application by; None if it is unknown.
    """
    found: list[str] = []
    if pending is None and history.last_claim is not None:
        found.append(REPAIR)
    if history.halt is not None:
        from drainmark.jobs.runtime.messages import halt_remedies

        return [*found, *halt_remedies(region, history)]
    if not is_owned and (state is State.UNHEALTHY or pending or history.flow.channels):
        found.append(f"drainmark run {shell_word(reference or region.partition('/')[0])}")
    return found
