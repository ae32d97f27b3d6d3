"""The layout of a table's files: a visible one's are partitioned, sorted, and described in the log of the table.

The values of a partition are in the table's log and in the files, not in names of folders: some readers would take
values from such names. So no text is too long, and none has to be escaped.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import SchemaMismatch
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.tasks.column_statistics import MOST_LEAVES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MOST_PARTITIONS = 1000
"""The most partitions that the rows of one group may be in. Committed rows are rewritten without this limit."""


_ROWS_A_SEARCH = 4096
"""The look-up of a key decodes the keys of so many rows; a file of a million rows has 250 such row groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of the files of one table.

    Attributes:
        partition_by: columns by which the table is partitioned.
        cluster_by: columns by which the rows of a file are sorted.
        searched_by: key columns: rows of a few keys are looked up often. Rows are sorted by them if there is no
            `cluster_by`, and row groups are small.
        has_statistics: the log has column statistics of each file, for its leading columns.
        most_partitions: the rows of one group must not be in more; None for rows that are committed already.
    """

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    searched_by: tuple[str, ...] = ()
    has_statistics: bool = False
    most_partitions: int | None = MOST_PARTITIONS

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, has_statistics: bool) -> Layout:
        """Return the layout that the options of a table give."""
        partition_by, cluster_by = (tuple(options.get(name, ())) for name in ("partition_by", "cluster_by"))
        return cls(partition_by=partition_by, cluster_by=cluster_by, has_statistics=has_statistics)

    @property
    def order(self) -> tuple[str, ...]:
        """Return the columns by which rows are sorted before they are written."""
        return (*self.partition_by, *(self.cluster_by or self.searched_by))

    @property
    def rows_a_group(self) -> int | None:
        """Return the most rows of a row group; None if only their bytes count."""
        return _ROWS_A_SEARCH if self.searched_by else None

    @property
    def unique(self) -> tuple[str, ...]:
        """Return the columns in which no value of a file repeats."""
        return self.searched_by if len(self.searched_by) == 1 else ()

    def of_frame(self, frame: DataFrame) -> DataFrame:
        """Return a frame with sorted partitions; a partition of the table is in few partitions of the frame."""
        by, order = ([F.col(quoted_name(name)) for name in names] for names in (self.partition_by, self.order))
        together = frame.hint("rebalance", *by) if by else frame
        return together.sortWithinPartitions(*order) if order else frame

    def of_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows sorted by those columns of `order` that they have: a column may be newer than the rows.

        Keys may be structs, arrays and maps, by which Arrow does not sort.
        """
        import pyarrow.compute as pc
        import pyarrow.types as kinds

        known = [name for name in self.order if name in rows.column_names]
        order = [(pc.field(name), "ascending") for name in known if not kinds.is_nested(rows.schema.field(name).type)]
        return rows.sort_by(order) if order else rows

    def parts(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield (values, rows) for each partition in sorted rows, with its values in the form of the log."""
        import numpy as np

        if not self.partition_by:
            yield "", rows
            return
        starts = np.zeros(rows.num_rows, dtype=bool)
        starts[:1] = True
        for name in self.partition_by:
            codes = _codes(rows.column(name))
            starts[1:] |= codes[1:] != codes[:-1]
        edges = [*np.flatnonzero(starts).tolist(), rows.num_rows]
        for first, end in itertools.pairwise(edges):
            run = rows.slice(first, end - first)
            yield self.values_of(run), run

    def values_of(self, rows: pa.Table) -> str:
        """Return the values of the partition that all `rows` are in, in the form of the log."""
        try:
            return partition_text({name: rows.column(name)[0].as_py() for name in self.partition_by})
        except OverflowError as error:
            by = ", ".join(self.partition_by)
            msg = f"a partition by {by} would be of a date outside the years 1 to 9999"
            remedy = "leave such rows out, or quarantine them: dm.expect(…)"
            raise SchemaMismatch(msg, remedy=remedy, columns=self.partition_by) from error


NO_LAYOUT = Layout()


def partition_text(values: Mapping[str, Any]) -> str:
    """Return the values of a partition as JSON, each in the text form of the log; "" for a table without partitions."""
    return json.dumps({name: _text(value) for name, value in values.items()}) if values else ""


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def _codes(column: pa.ChunkedArray) -> Any:
    """Return a number for each row; equal values have equal numbers, and nulls are equal to each other."""
    import pyarrow as pa

    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.indices.to_numpy(zero_copy_only=False)


STATISTICS_OF = "delta.dataSkippingStatsColumns"
_COUNT = "delta.dataSkippingNumIndexedCols"
_ORDERED = re.compile(r"(byte|short|integer|long|float|double|decimal\(.*\)|string|date|timestamp|timestamp_ntz)$")
"""The types of columns for which Delta takes such a property: it refuses to name others, such as boolean."""

OF_IDS = {STATISTICS_OF: SEQUENCE_ID}
"""Properties of a table that only Drainmark reads: it uses the statistics of ids only."""


def layout_of(table: RegionTable) -> Layout:
    """Return the layout of the files of a table."""
    if not (table.is_managed and table.name.startswith("lake/")):
        return NO_LAYOUT
    layout = Layout.from_options(table.options, has_statistics=True)
    return replace(layout, searched_by=tuple(table.keys)) if table.is_merged_on_read else layout


def statistics_properties(table: RegionTable) -> Mapping[str, str]:
    """Return the properties that tell engines which columns have statistics."""
    return statistics_of(table.schema_json) if layout_of(table).has_statistics else OF_IDS


def statistics_of(schema_json: str) -> Mapping[str, str]:
    """Return the property with the names of the columns that have statistics, for a table with many columns.

    Engines expect statistics of the leading columns, and `_sequence_id` may be behind them. Where statistics that they
    expect are missing, some take them for those of nulls, and pass the file over.
    """
    leaves = list(_leaves(json.loads(schema_json)))
    if len(leaves) <= MOST_LEAVES:
        return {}
    named = [name for name, kind in leaves[:MOST_LEAVES] if isinstance(kind, str) and _ORDERED.match(kind)]
    return {STATISTICS_OF: ",".join(dict.fromkeys([*named, quoted_name(SEQUENCE_ID)]))}


def former_statistics(configuration: Mapping[str, str]) -> bool:
    """Say whether a table has the property of earlier releases, by which engines expect statistics that are missing."""
    return int(configuration.get(_COUNT) or 0) > MOST_LEAVES and STATISTICS_OF not in configuration


def _leaves(kind: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the quoted name and the type of each leaf of a schema's JSON."""
    if isinstance(kind, dict) and kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _leaves(field["type"], (*names, field["name"]))
    else:
        yield ".".join(quoted(names)), kind
