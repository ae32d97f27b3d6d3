"""Free ports of this machine."""

from __future__ import annotations

import random
import socket

_BELOW_OUTGOING = range(12_000, 32_000)
"""Linux gives ports above to outgoing connections: one of them would take a port between its choice and its use."""

_chance = random.SystemRandom()  # other processes of the tests choose, too, maybe with the same seed


def free_ports(number: int) -> list[int]:
    """Return some different ports that are free now, and that no connection takes by itself."""
    found: list[int] = []
    while len(found) < number:
        port = _chance.choice(_BELOW_OUTGOING)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
