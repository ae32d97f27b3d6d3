"""`dm.source`: the start of a region, over the files of a `DirectoryScan` or the slices of another source."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from drainmark.jobs.errors import InputMissing, UsageError
from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.graph.declarations import Stream, caller, declare, location_of, user_function
from drainmark.jobs.operators.sources.contract import Replayable, SourceAccess
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.protocol.records.triggers import Trigger, TriggerStatus


@dataclass(frozen=True, kw_only=True)
class DirectorySource(Source):
    """A source that reads files: each file is a trigger; in a periodic region the new files of a tick are one."""

    kind: ClassVar[str] = "source"
    summary: ClassVar[str] = "one trigger a file of a folder"

    scan: DirectoryScan

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.scan.outputs) if self.scan.outputs else ("",)

    @property
    def folders_read(self) -> tuple[str, ...]:
        return tuple(self.scan.folders())

    def found_wrong(self) -> Iterator[tuple[str, str, str]]:
        yield from self.scan.problems()
        if self.scan.after != "keep" and self.consistent and self.consistent.trigger == TriggerKind.PERIODIC:
            why = f"after={self.scan.after!r} is for files that are triggers, and here a period's files are one"
            yield "AFTER_PERIODIC", why, 'leave it out, or trigger="operator-driven"'

    def fingerprint(self) -> Any:
        scan = self.scan
        schemas = {output: scan.schema_of(output) for output in self.outputs}
        rounding = {"rounding": scan.rounding} if scan.rounding is not None else {}
        rescue = {"on_schema": scan.on_schema} if scan.on_schema == "rescue" else {}
        read = {"format": scan.format, "schema": schemas, "options": dict(scan.options), **rounding, **rescue}
        return {**super().fingerprint(), "read": read}

    def columns(self, access: SourceAccess, output: str) -> str:
        return self.scan.rows_of(output)

    def parsed(self, output: str) -> tuple[str, str] | None:
        ddl = self.scan.schema_of(output)
        return (self.scan.format, ddl) if ddl is not None else None

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        return next_slice(self.name, after, access, cut)


def source(scan: DirectoryScan | Replayable) -> Callable[[Callable[..., Any]], Stream]:
    """Declare a source. The function gets the rows that were read, and returns them or a row-wise change of them.

    The frame carries the source's columns, `source_file` (the file's path as scanned, or the name of the slice) and
    `_sequence_id`.

    Args:
        scan: a `DirectoryScan`, `FileSource`, `TableSource`, `DatabaseSource`, `KafkaSource`, `ReplayableStart`,
            `ThreadedStart` or `Beacon`.

    Raises:
        UsageError: `scan` is none of them.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="returns", format="json", schema="id bigint, reason string"))
        def returns(scanned):
            return scanned.where("reason is not null")
    """
    if not isinstance(scan, DirectoryScan | Replayable):
        msg, remedy = f"@dm.source is given {scan!r}, which is no source", 'such as dm.DirectoryScan(path="inbox")'
        raise UsageError(msg, location=location_of(caller()), remedy=remedy)

    def wrap(function: Callable[..., Any]) -> Stream:
        read, _ = user_function(function, first_free=1)
        name = getattr(function, "__name__", "source")
        operator: Source
        if isinstance(scan, DirectoryScan):
            operator = DirectorySource(name=name, scan=scan, function=read)
        else:
            operator = SlicedSource(name=name, reads=scan, function=read)
        return declare(operator, function)

    return wrap


LIST = "list"
_FIELDS = ("uri", "identity", "identity_key", "size_bytes", "output", "order_index")


def queue_of(region: str, source: str) -> str:
    """Return the name under which the registry has the files of a periodic start."""
    return f"{region}#{source}"


def next_slice(source: str, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
    """Return the slice of the files that are queued after a position; None if there are none.

    Each slice has a list of its files, stored before any trigger names it; a checkpoint row refers to the list, and
    stays small. The queue itself, in the registry, is an index: it can be rebuilt from the lists and a scan. So lists
    are kept permanently, like checkpoint rows: a position has only the number of the files that were taken. After a
    loss of the registry only the lists tell which files these are, even far behind the rewind horizon. Without a list
    its files would be read twice.
    """
    begun = int(after["order"]) if after is not None else 0
    files: Sequence[Trigger] = access.queued(source, begun, cut.max_bytes)
    if not files:
        return None
    last = files[-1].order_index
    lines = [json.dumps({name: getattr(file, name) for name in _FIELDS}, sort_keys=True) for file in files]
    name = access.keep_list(source, last, "\n".join(lines))
    size = sum(file.size_bytes for file in files)
    return Slice(start=after, end={"order": last}, size_bytes=size, facts={"files": len(files), LIST: name})


def files_of(piece: Slice, access: SourceAccess) -> list[Trigger]:
    """Return the files of a slice as the triggers that they would be in an operator-driven region, in order.

    Raises:
        InputMissing: the list is gone, or names another number of files than were found.
    """
    name = str(piece.facts[LIST])
    lines = access.kept_list(name).splitlines()
    if len(lines) != piece.facts["files"]:
        msg = f"the list of a slice's files, slices/{name}, names {len(lines)} of {piece.facts['files']}"
        raise InputMissing(msg, remedy="restore it from a backup", triggers=())
    return [_file(access.region, json.loads(line)) for line in lines]


def _file(region: str, value: Mapping[str, Any]) -> Trigger:
    return Trigger(
        **value, id=0, region=region, status=TriggerStatus.COMMITTED, discovered_at=dt.datetime.fromtimestamp(0, dt.UTC)
    )


__all__ = ["source"]
