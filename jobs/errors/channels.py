"""Errors of the channels between stages."""

from __future__ import annotations

from drainmark.jobs.errors import DrainmarkError


class OutOfOrder(DrainmarkError):
    """A batch would enter a channel, or leave it, out of order: rows could be lost or doubled.

    It is never a fault of the author. The region is reset, and the batches in flight come again.
    """

    id = "CHANNEL_ORDER"


class ChannelFull(DrainmarkError):
    """A batch found no room in its channel in time: the reading stage is too slow, or hangs."""

    id = "CHANNEL_FULL"
