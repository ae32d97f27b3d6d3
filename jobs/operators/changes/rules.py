"""How the changes of a group are applied to what is known of their keys: in this process, or in Spark's tasks.

Between tasks the rows are exchanged by the hash of their key. A task applies the changes of some hundred thousand rows
at a time, so its memory does not grow with a group or a state; but all rows of one key are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.frames.arrow import relaxed_type, typed
from drainmark.jobs.frames.names import in_tasks, quoted
from drainmark.jobs.frames.tags import SEQUENCE_ID, arrow_schema
from drainmark.jobs.operators.changes.change_shape import ChangeShape
from drainmark.jobs.operators.changes.newest import Newest, While
from drainmark.jobs.operators.changes.numbered_changes import NET, numbers_of
from drainmark.jobs.operators.changes.versions import Versions
from drainmark.jobs.state.placed_rows import IS_NEW
from drainmark.jobs.state.run_files import KEY_HASH, key_hash
from drainmark.jobs.tasks.sorted_runs import with_whole_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ROWS_AT_ONCE = 250_000
"""A task applies the changes of so many rows at a time, or of one key: about 250 MB."""

IS_KEPT = "__is_kept"
"""Column of what tasks make: the row is one of the state."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What becomes of changes.

    Attributes:
        kept: rows of the state.
        output: rows of the output, by id, and `NET`; None if nothing reads them.
    """

    kept: pa.Table
    output: pa.Table | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules:
    """How the changes of a group are applied.

    Attributes:
        cuts: see `Newest.of`.
        while_: how long deletes are remembered; None for ever.
        has_output: rows of the output are read.
    """

    shape: ChangeShape
    cuts: pa.Table | None = None
    while_: While | None = None
    has_output: bool = True

    def apply(self, rows: pa.Table, known: pa.Table) -> Applied:
        """Apply changes.

        Args:
            rows: as rows of the state with `BLOCK` and `IN_BLOCK`.
            known: rows of the state with their keys; others, and earlier ones, may be among them.
        """
        found: Newest | Versions | None
        if self.shape.is_history:
            found = Versions.of(self.shape, rows, known)
        else:
            found = Newest.of(self.shape, rows, known, self.cuts, self.while_)
        if found is None:
            return self._by_halves(rows, known)
        return Applied(found.kept(), found.output() if self.has_output else None)

    def _by_halves(self, rows: pa.Table, known: pa.Table) -> Applied:
        """Apply the changes of the first ids, then those of the others."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        ids = np.unique(numbers_of(rows[SEQUENCE_ID]))
        is_first = pc.less(rows[SEQUENCE_ID], int(ids[len(ids) // 2]))
        first = self.apply(rows.filter(is_first), known)
        known = pa.concat_tables([typed(known, first.kept.schema), first.kept])
        then = self.apply(rows.filter(pc.invert(is_first)), known)
        outputs = [found.output for found in (first, then) if found.output is not None]
        return Applied(pa.concat_tables([first.kept, then.kept]), pa.concat_tables(outputs) if outputs else None)

    def apply_in_tasks(self, changes: DataFrame, known: DataFrame) -> DataFrame:
        """Return what becomes of changes as `kept_of` and `output_of` take it, for frames of the rows of `apply`."""
        every = changes.selectExpr("*", f"true as {IS_NEW}")
        every = every.unionByName(known.selectExpr("*", f"false as {IS_NEW}"), allowMissingColumns=True)
        keyed = every.select("*", key_hash(self.shape.keys))
        return in_tasks(keyed.repartition(KEY_HASH).sortWithinPartitions(KEY_HASH), _OfPartition(self), self.made)

    def kept_of(self, made: DataFrame) -> DataFrame:
        return made.where(IS_KEPT).select(quoted(self.shape.kept.names))

    def output_of(self, made: DataFrame) -> DataFrame:
        return made.where(f"not {IS_KEPT}").select(*quoted(self.shape.output.names), NET)

    @property
    def made(self) -> StructType:
        """Return the type of the rows that tasks make: rows of the state, or of the output."""
        from pyspark.sql.types import BooleanType

        return relaxed_type(self.shape.kept).add(NET, BooleanType()).add(IS_KEPT, BooleanType())


@dataclass(frozen=True, slots=True)
class _OfPartition:
    """The application of the changes of a partition, whose rows are sorted by the hash of their key."""

    rules: ChangeRules

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = arrow_schema(self.rules.made)
        for rows in with_whole_keys((pa.Table.from_batches([batch]) for batch in batches), ROWS_AT_ONCE):
            applied = self.rules.apply(rows.filter(rows[IS_NEW]), rows.filter(pc.invert(rows[IS_NEW])))
            for made, is_kept in ((applied.kept, True), (applied.output, False)):
                if made is not None and made.num_rows:
                    flags = pa.repeat(is_kept, made.num_rows)
                    yield from typed(made.append_column(IS_KEPT, flags), schema).combine_chunks().to_batches()
