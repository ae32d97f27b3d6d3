"""Free ports of this machine."""

from __future__ import annotations

import socket


def free_ports(number: int) -> list[int]:
    """Return some different free ports; they are not reserved, so another process may take them."""
    held = [socket.socket() for _ in range(number)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
