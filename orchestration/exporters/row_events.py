"""OpenLineage events of the rows of a checkpoint table: any process can make them again, and they are the same then."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drainmark.jobs.protocol.history import manifest_of
from drainmark.jobs.protocol.id_runs import Ids
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import Manifest, RegionTable, TableRole
from drainmark.jobs.protocol.records.triggers import FILE
from drainmark.jobs.runtime.input.slices import slice_of
from drainmark.orchestration.exporters.datasets import Dataset
from drainmark.orchestration.exporters.known_lineage import KnownLineage
from drainmark.orchestration.exporters.openlineage_events import (
    Events,
    Read,
    RewindRunFacet,
    Wrote,
    named_output,
    producer,
)

MOST_FILES = 100
"""Of a larger group no file is named, only their number: a receiver need not take events of any size."""


def groups_of(rows: Sequence[CheckpointRow]) -> Iterator[Sequence[CheckpointRow]]:
    """Yield the rows of each group, of each progress and of each rewind, in commit order; leave out all others."""
    group: list[CheckpointRow] = []
    for row in rows:
        if row.kind is RowKind.STATE:
            group.append(row)
            if row.sequence_id == row.group_last:
                yield tuple(group)
                group = []
        elif row.kind in (RowKind.PROGRESS, RowKind.REWIND):
            yield (row,)


def group_event(events: Events, known: KnownLineage, rows: Sequence[CheckpointRow], versions: Mapping[str, int]) -> Any:
    """Return the COMPLETE of a group, or of the work that stages finished later (a `progress` row).

    Args:
        versions: Delta version by table, of those that are known.
    """
    row, manifest = rows[-1], manifest_of(rows[-1]) or Manifest(files={})
    first = rows[0].sequence_id
    remarks = [*(each.detail for each in rows), *manifest.late.values()]
    replaced = {str(old): new for old, new in manifest.replaced.ids.items()} if manifest.replaced else {}
    told = events.group(
        row.epoch,
        first,
        row.sequence_id,
        rowsIn=sum(each.rows_in or 0 for each in rows),
        rowsQuarantined=sum(each.get("rows_quarantined") or 0 for each in remarks),
        replaced=replaced,
    )
    reads = _reads(known, rows, manifest, _unmet(known, remarks))
    return events.event(
        "COMPLETE",
        (row.epoch, first),
        row.recorded_at,
        told=told,
        inputs=[each.event_part() for each in reads],
        outputs=[each.event_part() for each in _wrote(known, manifest, versions)],
    )


def rewind_event(events: Events, row: CheckpointRow, since: Sequence[CheckpointRow], outputs: Sequence[Dataset]) -> Any:
    """Return the COMPLETE of a rewind.

    Args:
        since: the rows with ids above its target, in commit order.
        outputs: the tables that it took back.
    """
    withdrawn = [list(run) for run in withdrawn_by(row, since).runs()]
    tables = [table.name for table in tables_of(row)]
    told = RewindRunFacet(
        events.region, row.epoch, row.sequence_id, row.detail["to"], withdrawn, tables, producer=producer()
    )
    return events.event(
        "COMPLETE",
        (row.epoch, row.sequence_id),
        row.recorded_at,
        job=".rewind",
        told={"drainmark_rewind": told},
        outputs=[named_output(each) for each in outputs],
    )


def withdrawn_by(rewind: CheckpointRow, since: Sequence[CheckpointRow]) -> Ids:
    """Return the ids that a rewind withdrew; see `rewind_event`."""
    held: set[int] = set()
    for row in since:
        if row.kind in (RowKind.STATE, RowKind.SKIP):
            held.add(row.sequence_id)
        elif row.kind is RowKind.REWIND:
            to = row.detail["to"]
            if row.sequence_id == rewind.sequence_id:
                return Ids.of(number for number in held if number > to)
            held = {number for number in held if number <= to}
    return Ids()


def tables_of(rewind: CheckpointRow) -> list[RegionTable]:
    """Return the tables that a rewind took back and that readers see."""
    tables = [RegionTable.from_json(each) for each in rewind.detail["tables"]]
    histories = {table.history for table in tables}
    return [each for each in tables if each.role is not TableRole.CHANGES and each.name not in histories]


def _unmet(known: KnownLineage, remarks: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, int]]:
    found = dict.fromkeys(known.expectations, 0)
    for remark in remarks:
        for name, number in (remark.get("unmet") or {}).items():
            found[name] = found.get(name, 0) + number
    return {name: (known.expectations.get(name, ""), number) for name, number in found.items()}


def _reads(
    known: KnownLineage, rows: Sequence[CheckpointRow], manifest: Manifest, unmet: Mapping[str, tuple[str, int]]
) -> Iterator[Read]:
    files = [row for row in rows if row.trigger_kind == FILE]
    judged: Mapping[str, tuple[str, int]] | None = unmet  # told with the first input that the group reads
    for start in known.starts:
        if start not in known.inputs:
            continue
        pieces = [piece for row in rows if (piece := slice_of(row.trigger_identity or {}, start)) is not None]
        facts: dict[str, Any] = {"dataset": known.inputs[start], "unmet": judged}
        if pieces:
            rows_in = sum(row.rows_in or 0 for row in rows) if len(known.starts) == 1 else None
            yield Read(version=_position(pieces[-1].end), rows=rows_in, **facts)
        elif files and start == known.starts[0]:  # only the one source of a region has files as triggers
            uris = [row.trigger_uri or "" for row in files]
            yield Read(
                version=_version_of(files),
                rows=sum(row.rows_in or 0 for row in files),
                size=sum(row.bytes_in or 0 for row in files),
                file_count=len(files),
                files=uris if len(uris) <= MOST_FILES else (),
                **facts,
            )
        else:
            continue
        judged = None
    for name, taken in manifest.feeds.items():
        if name in known.inputs:
            yield Read(dataset=known.inputs[name], rows=taken.rows, file_count=taken.files)
    for table, version in (manifest.lookups or {}).items():
        if table in known.lookups:
            yield Read(dataset=known.inputs[known.lookups[table]], version=str(version))


def _wrote(known: KnownLineage, manifest: Manifest, versions: Mapping[str, int]) -> Iterator[Wrote]:
    for output in known.outputs:
        table = output.table
        files = manifest.files.get(table.history or "" if table.is_derived else table.name)
        if files is None or (output.columns is None and not files):
            continue
        yield Wrote(
            output=output,
            rows=sum(file.rows for file in files),
            size=None if table.is_derived else sum(file.size for file in files),
            file_count=None if table.is_derived else len(files),
            version=versions.get(table.name),
            inputs=known.inputs,
        )


def _position(end: Mapping[str, Any]) -> str:
    """Return the end of a slice as a version: of a Delta table its own."""
    if "version" in end:
        return str(end["version"])
    return json.dumps(end, sort_keys=True, separators=(",", ":"))


def _version_of(files: Sequence[CheckpointRow]) -> str:
    """Return a text that the same files have again, unless one of them was changed."""
    facts = [[row.trigger_uri, row.trigger_identity] for row in files]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
