"""The rows that could not be read, as a table of the region: committed, published and rewound like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import BadInput
from drainmark.jobs.formats.bad_records import CAPS, BadRecord
from drainmark.jobs.frames.tags import SEQUENCE_ID, SOURCE_FILE
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.input.inbox import Group

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = {SEQUENCE_ID: "long", SOURCE_FILE: "string", "position": "long", "raw": "string", "reason": "string"}


def quarantine_table(region: RegionPlan) -> RegionTable:
    """Return the table of a region's bad records.

    Columns: `_sequence_id` bigint; `source_file` string, the trigger's uri; `position` bigint, the number of the line
    from 1, null for a whole file; `raw` string, at most 4096 characters of the record; `reason` string.
    """
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _COLUMNS.items()]
    return RegionTable(
        name=f"lake/{region.quarantine}",
        role=TableRole.APPEND,
        operator=region.first_start.name,
        schema_json=json.dumps({"type": "struct", "fields": fields}, sort_keys=True),
    )


@dataclass(slots=True, kw_only=True)
class Quarantine:
    """The rows and files that one attempt at a group puts into quarantine.

    Attributes:
        records: by id, the bad records of files that are read.
        files: by id, the reason why no row of the file is read; such a file counts as one record, in and out.
    """

    records: dict[int, list[BadRecord]] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)

    def keep(self, sequence_id: int, bad: Sequence[BadRecord]) -> None:
        if bad:
            self.records.setdefault(sequence_id, []).extend(bad)

    def refuse(self, sequence_id: int, reason: str) -> None:
        """Quarantine a whole file, instead of the single records that were kept of it."""
        self.records.pop(sequence_id, None)
        self.files[sequence_id] = reason

    def counts(self) -> dict[int, int]:
        """Return the number of the table's rows by id."""
        return {number: len(bad) for number, bad in self._by_id()}

    def rows(self, uris: Mapping[int, str]) -> pa.Table | None:
        """Return the table's rows, ordered by id and position; None if there are none."""
        import pyarrow as pa

        rows = [
            (number, uris[number], bad.position, bad.raw, bad.reason)
            for number, found in self._by_id()
            for bad in sorted(found, key=lambda bad: bad.position or 0)
        ]
        if not rows:
            return None
        types = {"long": pa.int64(), "string": pa.string()}
        columns = zip(*rows, strict=True)
        schema = pa.schema([(name, types[kind]) for name, kind in _COLUMNS.items()])
        return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)

    def _by_id(self) -> Iterator[tuple[int, Sequence[BadRecord]]]:
        whole = {number: [BadRecord(position=None, raw=None, reason=why)] for number, why in self.files.items()}
        yield from sorted({**self.records, **whole}.items())


def put_aside(
    quarantine: Quarantine, operator: Operator, rows: Sequence[Mapping[str, Any]], group: Group, *, halts: bool
) -> None:
    """Quarantine the rows that an operator could not interpret: its `StepResult.bad`.

    `QuarantineSink` explains the other way into the quarantine, and why there are two.

    Args:
        rows: `_sequence_id`, `position`, `raw`, `reason`.
        halts: a bad row is an error.

    Raises:
        BadInput: a bad row halts the region, or there are too many.
    """
    if not rows or not (halts or len(rows) > CAPS.bad_rows):
        for row in rows:
            quarantine.keep(row[SEQUENCE_ID], [BadRecord.of(row["position"], row["raw"] or "", row["reason"])])
        return
    first = min(rows, key=lambda row: (row[SEQUENCE_ID], row["position"]))
    trigger = group.member(first[SEQUENCE_ID]).trigger
    more = "" if halts else f"; more than {CAPS.bad_rows} rows are bad"
    raise BadInput(
        f"{trigger.uri}: {operator.name!r}: row {first['position']}: {first['reason']}: "
        f"{(first['raw'] or '')[:200]!r}{more}",
        operator=operator.name,
        location=operator.location,
        remedy=f'correct it where it comes from, or on_bad="quarantine" at {operator.name!r}',
        triggers=(trigger,),
    )
