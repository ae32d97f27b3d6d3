"""Errors of the channels between stages."""

from __future__ import annotations

from drainmark.jobs.errors import DrainmarkError


class OutOfOrder(DrainmarkError):
    """Something would come into a channel, or leave it, before or after its turn: rows could be lost or doubled.

    Never what an author did wrong; the region is reset, and what is in flight comes again.
    """

    id = "CHANNEL_ORDER"


class ChannelFull(DrainmarkError):
    """A batch found no room in its channel in time: what reads it is too slow, or hangs."""

    id = "CHANNEL_FULL"
