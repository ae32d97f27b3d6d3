"""Sequence ids, epochs, the encoding of both in Delta's `txnVersion`, and names of files that hold an id.

A sequence id is the number of a consistent state: 1, 2, 3 …; 0 is the initial state. Every claim, reset and rewind
raises the epoch. The pair (epoch, id) is unique for ever; ids are never reused. An id is final as soon as its row is
in the checkpoint table (`jobs/runtime/commit/commit_point.py`).
"""

from __future__ import annotations

import re
import string

INITIAL_ID = 0
"""The id of the state before any input."""

REWOUND_TO = "drainmark.rewoundTo"
"""In the commitInfo of a rewind: the id above which rows left the table. Regions that read the table pass over it."""

ABOVE = "drainmark.above"
"""In the commitInfo of a change of a keyed table: the rows that came or left have ids above this one."""

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


_PARTS = string.Formatter()
_NAME_BYTES = 240


def name_of(template: str, sequence_id: int) -> str:
    """Return the name that a template gives an id."""
    return template.format(sequence_id=sequence_id)


def id_of(template: str, name: str) -> int | None:
    """Return the id that a name holds; None if the template makes this name from no id."""
    pattern = "".join(
        re.escape(text) + ("" if field is None else r"(\d+)") for text, field, _, _ in _PARTS.parse(template)
    )
    found = re.fullmatch(pattern, name)
    if found is None:
        return None
    number = int(found[1])
    return number if name_of(template, number) == name else None


def name_problem(template: str) -> str | None:
    """Return the mistake in a template of file names; None if there is none."""
    try:
        fields = [(field, spec) for _, field, spec, _ in _PARTS.parse(template) if field is not None]
        made = {name_of(template, number) for number in (1, 22, 333, _LARGEST_ID)}
        longest = max(len(name.encode()) for name in made)
    except (ValueError, KeyError, IndexError) as error:
        return f"it is no format: {error}"
    if [field for field, _ in fields] != ["sequence_id"]:
        return "it must hold {sequence_id} once, and nothing else in braces"
    if not re.fullmatch(r"(0\d+)?d?", fields[0][1] or ""):
        return "the id is to be written in digits, filled up with zeros at most"
    if longest > _NAME_BYTES:
        return f"it makes names of {longest} bytes, and file systems hold {_NAME_BYTES} before the ending"
    if len(made) < 4 or any("/" in name or "\0" in name or name.startswith((".", "_")) for name in made):
        return "it must not begin with . or _, nor hold a /"
    return None
