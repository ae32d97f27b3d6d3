"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import socket


def free_ports(number: int) -> list[int]:
    """Return some, each another one; whoever comes first has them."""
    held = [socket.socket() for _ in range(number)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
