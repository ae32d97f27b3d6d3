"""A trigger: one unit of input that gets one consistent state: a scanned file, or a slice of the input of starts.

A slice's identity holds `kind` and `slices`: by name of a start, the positions at which it begins and ends (JSON that
the start defines; each slice begins at the end of the one before), and any facts that are needed to cut the next slice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

AGAIN = "again"
"""In an identity: counts how often the file is processed anew by request (`backfill --again`), from 1.

Such a trigger replaces: its state withdraws the append rows of the newest state of its file.
"""

BACK = "back"
"""In an identity: counts how often the committed file came back after another file had its place, from 1.

With `on_change="reprocess"`; such a trigger is a change like any other.
"""

VERSION = "version"
"""In an identity: the version id of the object in its bucket. It says where to read the object; no key holds it."""


KIND = "kind"
"""In an identity: the kind of the trigger, if it is no file."""

SLICES = "slices"
"""In an identity: by name of a start, `from`, `to` and all other facts that are needed to read the slice again."""

PERIOD = "period"
"""The kind of a slice over all starts of a periodic region."""

DIGESTS = "digests"
"""In a committed row's identity: by name of a start, what was read: the digest of the bytes of its slice, or the
highest id of another region in its rows; no part of a key."""

DROPPED = "dropped_ticks"
"""In a period's identity: number of ticks of a free-running clock that passed while the state before was under way."""

FILE = "file"

RETRACTION = "retraction"
"""The kind of a state that takes back an earlier one: no input is behind it. Its identity names that one (`RETRACTS`),
and its uri is the file of that one."""

RETRACTS = "retracts"


def kind_of(identity: Mapping[str, Any]) -> str:
    """Return the kind of the trigger with an identity."""
    return str(identity.get(KIND, FILE))


def slices_of(identity: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the slices of a trigger, by name of a start; none for a file."""
    found: Mapping[str, Mapping[str, Any]] = identity.get(SLICES, {})
    return found


def file_key(identity_key: str) -> str:
    """Return the identity key of the file itself, without the marks of `AGAIN` and `BACK`."""
    return identity_key[: identity_key.rindex("}") + 1] if "#" in identity_key else identity_key


BACKFILL = "backfill"
"""The origin of a trigger that was asked for, wherever its file lies; a scan need not select it."""


class TriggerStatus(StrEnum):
    """pending -> committed | skipped | refused | superseded | missing; pending again by a rewind or as `GAVE_WAY`."""

    PENDING = "pending"
    COMMITTED = "committed"
    REFUSED = "refused"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"
    MISSING = "missing"


GAVE_WAY = frozenset({TriggerStatus.SUPERSEDED, TriggerStatus.MISSING})
"""The status of files that were changed or gone since their scan; a file that is back is pending again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrigger:
    """An input as a scan found it.

    Attributes:
        uri: the file's path (percent-encoded as a file: URI if the name is not UTF-8); of a slice its name.
        identity: size in bytes, mtime_ns, inode; of an object size and etag; `AGAIN` if it replaces, `BACK` if it
            came back, `VERSION` if the bucket keeps versions; of a slice `KIND` and `SLICES`.
        identity_key: the identity as one text; (region, uri, identity_key) is unique.
        output: the output of the source that it belongs to, "" if the source has only one.
        origin: `scan` or `BACKFILL`.
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

    `digests`: see `DIGESTS`; of a slice that was committed before a rewind, those of then; else set when it is read.
    """

    id: int
    region: str
    discovered_at: dt.datetime
    digests: dict[str, str] = field(default_factory=dict, compare=False)
