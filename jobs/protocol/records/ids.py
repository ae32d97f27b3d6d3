"""Sequence ids, epochs, and the encoding of both in Delta's `txnVersion`.

A sequence id is the number of a consistent state: 1, 2, 3 …; 0 is the initial state. Every claim, reset and rewind
raises the epoch. The pair (epoch, id) is unique for ever; ids are never reused. An id is final as soon as its row is
in the checkpoint table (`jobs/runtime/commit/commit_point.py`).
"""

from __future__ import annotations

INITIAL_ID = 0
"""The id of the state before any input."""

REWOUND_TO = "drainmark.rewoundTo"
"""In the commitInfo of a rewind: the id above which rows left the table. Regions that read the table pass over it."""

_ID_BITS = 32
_LARGEST_ID = 2**_ID_BITS - 1
_LARGEST_EPOCH = 2**31 - 1


def app_id(region: str) -> str:
    """Return the constant `txnAppId` of a region's commits."""
    return f"drainmark/{region}"


def txn_version(epoch: int, sequence_id: int) -> int:
    """Return `epoch * 2**32 + id`, the `txnVersion` of a commit; it sorts like the pair.

    Raises:
        ValueError: the epoch or the id is out of range.
    """
    if not 0 <= epoch <= _LARGEST_EPOCH:
        msg = f"epoch {epoch} is outside 0..{_LARGEST_EPOCH}"
        raise ValueError(msg)
    if not 0 <= sequence_id <= _LARGEST_ID:
        msg = f"sequence id {sequence_id} is outside 0..{_LARGEST_ID}"
        raise ValueError(msg)
    return (epoch << _ID_BITS) + sequence_id


def split_txn_version(version: int) -> tuple[int, int]:
    """Return (epoch, id) of a `txnVersion`."""
    return version >> _ID_BITS, version & _LARGEST_ID
