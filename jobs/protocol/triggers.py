"""A trigger: one unit of input that asks for a consistent state; here one scanned file (V42)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class TriggerStatus(StrEnum):
    """What became of a trigger."""

    PENDING = "pending"
    COMMITTED = "committed"
    REFUSED = "refused"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrigger:
    """A file as a scan found it.

    Attributes:
        uri: the file's path (percent-encoded as a file: URI where the name is no UTF-8).
        output: the source's output it belongs to, "" if it has one.
        identity: size in bytes, mtime_ns, inode (H24).
        identity_key: text of the identity; (region, uri, identity_key) is taken once.
        origin: `scan` or `backfill`.
    """

    uri: str
    output: str
    identity: Mapping[str, Any]
    identity_key: str
    size_bytes: int
    origin: str = "scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger of the registry.

    Attributes:
        id: the registry's own number.
        order_index: place in the region's input order, kept across rewinds.
        status: pending, committed, refused, skipped, superseded or missing.
    """

    id: int
    region: str
    uri: str
    output: str
    identity: Mapping[str, Any]
    identity_key: str
    order_index: int
    size_bytes: int
    status: str = "pending"
    sequence_id: int | None = None
    origin: str = "scan"
    reason: str | None = None
