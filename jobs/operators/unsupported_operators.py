"""Operators of IBM Streams that Drainmark does not have, each with the reason and a replacement.

They can be declared, so that the compiler can say why it refuses them: in a region because they cannot keep its
promise, outside a region because this version does not have them. Streams allows a UDPSink in a region; here it is
refused like a TCPSink: rows that were sent cannot be withdrawn, so a rewind or a replay would send them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, port_to
from drainmark.jobs.graph.operator import Operator

__all__ = ["gate", "switch", "tcp_sink", "tcp_source", "udp_sink", "udp_source"]


@dataclass(frozen=True, kw_only=True)
class _Unsupported(Operator):
    """An operator that the rules UNSUPPORTED_IN_REGION and UNSUPPORTED_OPERATOR refuse; it is never applied."""

    supports_consistent: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Gate(_Unsupported):
    kind: ClassVar[str] = "gate"
    summary: ClassVar[str] = "unsupported: blocks while it handles a tuple"
    refused_because: ClassVar[str] = "it blocks while it handles a tuple, so the region could never drain"
    instead: ClassVar[str] = "limit the size of groups: --max-group, or the setting max_group_triggers"


@dataclass(frozen=True, kw_only=True)
class Switch(_Unsupported):
    kind: ClassVar[str] = "switch"
    summary: ClassVar[str] = "unsupported: blocks while it is off"
    refused_because: ClassVar[str] = "it blocks its input while it is off, so the region could never drain"
    instead: ClassVar[str] = "drop rows with dm.filter, or halt the whole region: `drainmark halt`"


_NO_REPLAY = "input from a socket cannot be read again after a failure"
_LAND_FILES = "let a collector write files, and read them with @dm.source(dm.DirectoryScan(...))"
_NO_WITHDRAWAL = "a reset or a rewind cannot withdraw rows that were sent through a socket"
_READ_TABLE = "write dm.sink(..., dm.DeltaAppend(...)) and send from that table, by _sequence_id"


@dataclass(frozen=True, kw_only=True)
class TcpSource(_Unsupported):
    kind: ClassVar[str] = "tcp-source"
    summary: ClassVar[str] = "unsupported: a socket cannot replay"
    is_source: ClassVar[bool] = True
    refused_because: ClassVar[str] = _NO_REPLAY
    instead: ClassVar[str] = _LAND_FILES


@dataclass(frozen=True, kw_only=True)
class UdpSource(TcpSource):
    kind: ClassVar[str] = "udp-source"


@dataclass(frozen=True, kw_only=True)
class TcpSink(_Unsupported):
    kind: ClassVar[str] = "tcp-sink"
    summary: ClassVar[str] = "unsupported: rows that were sent cannot be withdrawn"
    is_sink: ClassVar[bool] = True
    refused_because: ClassVar[str] = _NO_WITHDRAWAL
    instead: ClassVar[str] = _READ_TABLE


@dataclass(frozen=True, kw_only=True)
class UdpSink(TcpSink):
    kind: ClassVar[str] = "udp-sink"


def gate(*streams: StreamLike, name: str | None = None, **configuration: Any) -> Stream:
    """Not supported: a gate blocks while it handles a row, so the region could not drain.

    Example:
        slower = dm.throttle(orders, 1_000)  # instead of dm.gate
    """
    return _declared(Gate, "gate", streams, name)


def switch(*streams: StreamLike, name: str | None = None, **configuration: Any) -> Stream:
    """Not supported: a switch blocks while it is off, so the region could not drain.

    Example:
        @dm.filter
        def wanted(orders):  # instead of dm.switch; `drainmark halt REGION` stops the whole region
            return F.col("amount") > 0
    """
    return _declared(Switch, "switch", streams, name)


def tcp_source(*, name: str | None = None, **configuration: Any) -> Stream:
    """Not supported: a socket cannot replay rows.

    Example:
        # Instead of dm.tcp_source: a collector writes files, and Drainmark reads them.
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="collected", format="text", settle=5))
        def received(scanned):
            return scanned
    """
    return _declared(TcpSource, "tcp_source", (), name)


def udp_source(*, name: str | None = None, **configuration: Any) -> Stream:
    """Not supported: a socket cannot replay rows.

    Example:
        # Instead of dm.udp_source: a collector writes files, and Drainmark reads them.
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="collected", format="text", settle=5))
        def received(scanned):
            return scanned
    """
    return _declared(UdpSource, "udp_source", (), name)


def tcp_sink(*streams: StreamLike, name: str | None = None, **configuration: Any) -> Stream:
    """Not supported: rows that were sent cannot be withdrawn.

    Example:
        dm.sink(orders, dm.DeltaAppend("to_send"))  # instead of dm.tcp_sink: your own program sends from this table
    """
    return _declared(TcpSink, "tcp_sink", streams, name)


def udp_sink(*streams: StreamLike, name: str | None = None, **configuration: Any) -> Stream:
    """Not supported: rows that were sent cannot be withdrawn.

    Example:
        dm.sink(orders, dm.DeltaAppend("to_send"))  # instead of dm.udp_sink: your own program sends from this table
    """
    return _declared(UdpSink, "udp_sink", streams, name)


def _declared(cls: type[_Unsupported], default: str, streams: tuple[StreamLike, ...], name: str | None) -> Stream:
    """Declare the operator without its configuration, since it is refused in any case."""
    return declare(cls(name=name or default, inputs=tuple(map(port_to, streams))))
