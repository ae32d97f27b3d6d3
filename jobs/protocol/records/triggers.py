"""A trigger: one unit of input that asks for a consistent state: a scanned file, or a slice of what starts have.

A slice's identity holds `kind`, and `slices`: by name of a start, from which position up to which (JSON of the start's
own making, each slice beginning where the one before ended); besides, what cutting the next one is to know.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

AGAIN = "again"
"""In an identity: the how manieth time a file is processed anew by request (`backfill --again`).

Such a trigger replaces: its state withdraws the append rows of the newest state of its file.
"""

BACK = "back"
"""In an identity: the how manieth time a file is what it was when it was committed, after another one was there.

Under `on_change="reprocess"`: such a trigger is a change as any other.
"""

VERSION = "version"
"""In an identity: under which version id a bucket keeps the object. Where to read it, not what it is: no key has it."""


KIND = "kind"
"""In an identity: what kind of trigger it is, where it is no file."""

SLICES = "slices"
"""In an identity: by name of a start, `from`, `to` and what else it takes to read the slice again."""

PERIOD = "period"
"""The kind of a slice over all starts of a periodic region."""

DIGESTS = "digests"
"""In a committed row's identity: by name of a start, the digest of the bytes that its slice gave; no part of a key."""

DROPPED = "dropped_ticks"
"""In a period's identity: ticks of a free-running clock that passed while the state before it was under way."""

FILE = "file"


def kind_of(identity: Mapping[str, Any]) -> str:
    """Return the kind of a trigger, by its identity."""
    return str(identity.get(KIND, FILE))


def slices_of(identity: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return what a trigger takes of which start; nothing for a file."""
    found: Mapping[str, Mapping[str, Any]] = identity.get(SLICES, {})
    return found


def file_key(identity_key: str) -> str:
    """Return the identity key of the file itself, whether or not it is processed anew or came back."""
    return identity_key[: identity_key.rindex("}") + 1] if "#" in identity_key else identity_key


class TriggerStatus(StrEnum):
    """pending -> committed | skipped | refused | superseded | missing; back to pending by a rewind or as `GAVE_WAY`."""

    PENDING = "pending"
    COMMITTED = "committed"
    REFUSED = "refused"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"
    MISSING = "missing"


GAVE_WAY = frozenset({TriggerStatus.SUPERSEDED, TriggerStatus.MISSING})
"""Of files that were not there as they were scanned; one that is back is pending again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrigger:
    """An input as a scan found it.

    Attributes:
        uri: the file's path (percent-encoded as a file: URI where the name is no UTF-8); of a slice its name.
        identity: size in bytes, mtime_ns, inode, of an object size and etag; `AGAIN` where it replaces,
            `BACK` where it came back, `VERSION` where a bucket keeps versions; of a slice `KIND` and `SLICES`.
        identity_key: the identity as one text; (region, uri, identity_key) is taken once.
        output: the source's output it belongs to, "" if it has one.
        origin: `scan` or `backfill`.
    """

    uri: str
    identity: Mapping[str, Any]
    identity_key: str
    size_bytes: int
    output: str = ""
    origin: str = "scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltTrigger(NewTrigger):
    """An input as the checkpoint table and a scan describe it together."""

    order_index: int
    status: TriggerStatus
    sequence_id: int | None = None
    reason: str | None = None


def placed(
    trigger: NewTrigger,
    order_index: int,
    status: TriggerStatus = TriggerStatus.PENDING,
    reason: str | None = None,
) -> RebuiltTrigger:
    """Return an input at its place in the region's order, without a sequence id."""
    return RebuiltTrigger(
        uri=trigger.uri,
        identity=trigger.identity,
        identity_key=trigger.identity_key,
        size_bytes=trigger.size_bytes,
        output=trigger.output,
        origin=trigger.origin,
        order_index=order_index,
        status=status,
        reason=reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger(RebuiltTrigger):
    """An input as the registry holds it; `order_index` is its place in the region's order, kept across rewinds.

    `digests`: see `DIGESTS`; of a slice that was committed before a rewind those of then, else noted when it is read.
    """

    id: int
    region: str
    discovered_at: dt.datetime
    digests: dict[str, str] = field(default_factory=dict, compare=False)
