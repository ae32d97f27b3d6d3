"""A `DirectoryScan` in a periodic region: the files that its scans queued are cut into slices in the queue's order.

Each slice has a list of its files, which is stored before any trigger names it; a checkpoint row refers to the list,
and stays small. The queue itself, in the registry, is an index: it can be rebuilt from the lists and a scan. So lists
are kept permanently, like checkpoint rows: a position has only the number of the files that were taken. After a loss of
the registry only the lists tell which files these are, even far behind the rewind horizon. Without a list its files
would be read twice.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

from drainmark.jobs.errors import InputMissing
from drainmark.jobs.operators.sources.contract import Reach
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus

LIST = "list"
_FIELDS = ("uri", "identity", "identity_key", "size_bytes", "output", "order_index")


def queue_of(region: str, source: str) -> str:
    """Return the name under which the registry has the files of a periodic start."""
    return f"{region}#{source}"


def next_slice(source: str, after: Position | None, reach: Reach, cut: SliceLimit) -> Slice | None:
    """Return the slice of the files that are queued after a position; None if there are none."""
    begun = int(after["order"]) if after is not None else 0
    files: Sequence[Trigger] = reach.queued(source, begun, cut.max_bytes)
    if not files:
        return None
    last = files[-1].order_index
    lines = [json.dumps({name: getattr(file, name) for name in _FIELDS}, sort_keys=True) for file in files]
    name = reach.keep_list(source, last, "\n".join(lines))
    size = sum(file.size_bytes for file in files)
    return Slice(start=after, end={"order": last}, size_bytes=size, facts={"files": len(files), LIST: name})


def files_of(piece: Slice, reach: Reach) -> list[Trigger]:
    """Return the files of a slice as the triggers that they would be in an operator-driven region, in order.

    Raises:
        InputMissing: the list is gone, or names another number of files than were found.
    """
    name = str(piece.facts[LIST])
    lines = reach.kept_list(name).splitlines()
    if len(lines) != piece.facts["files"]:
        msg = f"the list of a slice's files, slices/{name}, names {len(lines)} of {piece.facts['files']}"
        raise InputMissing(msg, remedy="restore it from a backup", triggers=())
    return [_file(reach.region, json.loads(line)) for line in lines]


def _file(region: str, value: Mapping[str, Any]) -> Trigger:
    return Trigger(
        **value, id=0, region=region, status=TriggerStatus.COMMITTED, discovered_at=dt.datetime.fromtimestamp(0, dt.UTC)
    )
