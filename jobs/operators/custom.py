"""`@custom`: the author's own keyed operator, `(state, rows) -> (state, rows)`, once per key and id, in id order.

It runs on Spark's workers, keys in parallel, and vectorises: a worker gets all rows of some keys in a group and goes
through them key by key, and through the ids of a key in order. The state is a dataclass, kept as typed columns. The
function is pure, so every grouping gives the same states and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from drainmark.jobs.errors import UsageError, Violation
from drainmark.jobs.frames.names import quoted_name, without_points
from drainmark.jobs.frames.row_order import place_ranks, untagged
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID, arrow_schema
from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.context import Fit
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, user_function
from drainmark.jobs.graph.operator import KeptState, Operator, StepResult, names_of
from drainmark.jobs.lazy import F
from drainmark.jobs.state.dataclass_state import check_state, keeper_of, reader_of, struct_of
from drainmark.jobs.state.keyed_rows import key_codes
from drainmark.jobs.state.placed_rows import ranked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["custom"]

_WHAT = "__what"
_OUT, _STATE = 0, 1
_PLACE = "__place"
_BUCKET = "__bucket"
_BUCKETS = 32
"""The number of buckets of a large group; a worker has the rows of one bucket at a time in memory."""


@dataclass(frozen=True, kw_only=True)
class Custom(Operator):
    """Keyed state in Python; may not start a region."""

    kind: ClassVar[str] = "custom"
    summary: ClassVar[str] = "the author's own keyed state, rows of a key and id in and out"
    keeps_tags: ClassVar[bool] = True

    keys: tuple[str, ...]
    output: str
    state_class: type
    function: UserFunction
    batch: str = "pandas"

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=self.keys, evolves=True, looked_up_by=self.keys),)

    def fingerprint(self) -> Any:
        facts = {"keys": list(self.keys), "output": self.output, "state": self.state_class.__qualname__}
        return {**super().fingerprint(), **facts, "batch": self.batch, "function": self.function.source_digest()}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.batch not in ("pandas", "arrow"):
            yield self.wrong("CUSTOM_BATCH", f"batch={self.batch!r} is not known", '"pandas" or "arrow"')
        if len(self.inputs) != 1:
            yield self.wrong("CUSTOM_INPUTS", f"it has {len(self.inputs)} streams", "join them by dm.union first")
        try:
            fields = set(check_state(self.state_class))
        except UsageError as error:
            yield self.wrong("CUSTOM_STATE", error.message, error.remedy or "")
            return
        if clashes := sorted(fields & {*self.keys, SEQUENCE_ID, GONE}):
            yield self.wrong("CUSTOM_STATE", f"the state may not call a field {', '.join(clashes)}", "rename it")

    def step(self, frames: OperatorContext) -> StepResult:
        types = {field.name: field.dataType for field in frames.input(self.inputs[0]).schema.fields}
        shape = _Shape.of(self, types)
        rows = frames.once(self, ranked(frames, self, self.inputs[0], self.keys))  # its keys select the state to read
        before = frames.kept(self, "", shape.kept, changed=rows, fit=Fit.OTHERS)  # the function sees no others
        arguments = dict.fromkeys(self.function.params, frames.params)
        call = _Call(
            operator=self.name,
            function=self.function,
            arguments=arguments,
            keys=self.keys,
            columns=tuple(rows.columns),
            restore=reader_of(self.state_class),
            batch=self.batch,
            shape=shape,
        )
        given, kept_before = without_points(rows), without_points(before)
        # Not by key: Spark would send each key's rows separately, which costs milliseconds for each key.
        grouped = given.groupBy(self._bucket(frames, rows, given)).cogroup(
            kept_before.groupBy(self._bucket(frames, before, kept_before))
        )
        # a lambda, since Spark counts the arguments of the function, and would count `self`
        made = frames.once(self, grouped.applyInArrow(lambda found, kept: call(found, kept), shape.made))  # noqa: PLW0108
        return StepResult(
            made.where(F.col(_WHAT) == _OUT).select(
                SEQUENCE_ID,
                F.struct(F.lit(0).cast("bigint").alias("block"), F.col(_PLACE).alias("row")).alias(POSITION),
                *(F.col(f"`out.{name}`").alias(name) for name in shape.output.names),
            ),
            {
                "": made.where(F.col(_WHAT) == _STATE).select(
                    *(F.col(f"`kept.{name}`").alias(name) for name in shape.kept.names)
                )
            },
        )

    def _bucket(self, frames: OperatorContext, named: DataFrame, given: DataFrame) -> Column:
        """Return the bucket of a row; `given` has the columns of `named` in their order, perhaps with other names."""
        if frames.few(self) or not self.keys:
            return F.lit(0).alias(_BUCKET)
        names = dict(zip(named.columns, given.columns, strict=True))
        return F.pmod(F.hash(*(F.col(quoted_name(names[key])) for key in self.keys)), F.lit(_BUCKETS)).alias(_BUCKET)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Types of the rows that a worker gets and returns.

    Attributes:
        keys: names of the key columns.
        output: the author's columns.
        kept: keys, the state's fields, `GONE`, `_sequence_id`.
        made: tags, then the columns of both as `out.…` and `kept.…`; a row has values in one of the two.
    """

    keys: tuple[str, ...]
    output: StructType
    kept: StructType
    made: StructType

    @classmethod
    def of(cls, operator: Custom, types: dict[str, DataType]) -> _Shape:
        from pyspark.sql.types import BooleanType, ByteType, LongType, StructField, StructType

        if lacking := [key for key in operator.keys if key not in types]:
            raise KeyError(f"the stream has no column {', '.join(lacking)}: {', '.join(types)}")
        output = StructType.fromDDL(operator.output)
        keys = [StructField(key, types[key]) for key in operator.keys]
        tail = [StructField(GONE, BooleanType()), StructField(SEQUENCE_ID, LongType())]
        kept = StructType([*keys, *struct_of(operator.state_class).fields, *tail])
        parts = [
            StructField(f"{label}.{field.name}", field.dataType)
            for label, part in (("out", output), ("kept", kept))
            for field in part.fields
        ]
        tags = [StructField(_WHAT, ByteType()), StructField(SEQUENCE_ID, LongType()), StructField(_PLACE, LongType())]
        return cls(keys=operator.keys, output=output, kept=kept, made=StructType([*tags, *parts]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The call that a worker runs for some keys: the author's function, key by key and id by id.

    Attributes:
        columns: the names of the rows' columns; the rows arrive with names without points.
    """

    operator: str
    function: UserFunction
    arguments: dict[str, Any]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    restore: Callable[[dict[str, Any]], Any]
    batch: str
    shape: _Shape

    def __call__(self, rows: pa.Table, before: pa.Table) -> pa.Table:
        made = _Made(self.operator, self.shape, self.restore)
        if rows.num_rows:
            rows, before = rows.rename_columns(self.columns), before.rename_columns(self.shape.kept.names)
            for key, state, batches in _by_key(rows, before, self.keys):
                self._run(key, self.restore(state) if state is not None else None, batches, made)
        return made.table()

    def _run(self, key: dict[str, Any], state: Any, batches: Sequence[tuple[int, pa.Table]], made: _Made) -> None:
        """Call the function for each id of a key; in any grouping it gets the state as its columns give it back."""
        for number, batch in batches:
            had = state is not None
            state, out = self._called(state, batch)
            if out is not None and len(out):
                made.add_output(number, out)
            if state is not None or had:
                state = made.add_state(number, key, state)

    def _called(self, state: Any, batch: pa.Table) -> tuple[Any, Any]:
        given = batch if self.batch == "arrow" else batch.to_pandas()
        named = dict(zip(self.function.streams, (state, given), strict=True))
        result = self.function.function(**named, **self.arguments)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(
                f"operator {self.operator!r} has to return (state, rows), and returned {type(result).__name__}"
            )
        return result


class _Made:
    """The rows and states that a worker has made so far; combined once, since each array costs some microseconds."""

    def __init__(self, operator: str, shape: _Shape, restore: Callable[[dict[str, Any]], Any]) -> None:
        import pyarrow as pa

        self._operator = operator
        self._schema: pa.Schema = arrow_schema(shape.made)
        self._output = pa.schema([(name, self._schema.field(f"out.{name}").type) for name in shape.output.names])
        tags = (*shape.keys, GONE, SEQUENCE_ID)
        self._keep = keeper_of(
            restore,
            {name: self._schema.field(f"kept.{name}").type for name in shape.kept.names if name not in tags},
        )
        self._outputs: list[pa.Table] = []
        self._output_ids: list[int] = []
        self._states: list[dict[str, Any]] = []

    def add_output(self, number: int, out: Any) -> None:
        """Take the rows that the author's function returned.

        Raises:
            ValueError: they have other columns than declared.
        """
        import pyarrow as pa

        wanted = self._output.names
        found = out.column_names if isinstance(out, pa.Table) else [str(name) for name in out.columns]
        if sorted(found) != sorted(wanted):
            raise ValueError(f"operator {self._operator!r} declares the columns {wanted} and returned {found}")
        if isinstance(out, pa.Table):
            chosen = out.select(wanted)
            table = chosen if chosen.schema == self._output else chosen.cast(self._output)
        else:
            table = pa.Table.from_pandas(out[wanted], schema=self._output, preserve_index=False)
        self._outputs.append(table.replace_schema_metadata())
        self._output_ids.append(number)

    def add_state(self, number: int, key: dict[str, Any], state: Any) -> Any:
        """Take a key's state after an id, None if the key is forgotten; return the state as its columns give it back.

        Raises:
            ValueError: the columns give back another state; the message names the field.
        """
        try:
            kept, restored = self._keep(state) if state is not None else ({}, None)
        except ValueError as error:
            raise ValueError(f"operator {self._operator!r}: {error}") from error
        self._states.append({**key, **kept, GONE: state is None, SEQUENCE_ID: number})
        return restored

    def table(self) -> pa.Table:
        """Return all output rows and all states in one table; each row is one or the other."""
        import numpy as np
        import pyarrow as pa

        parts = [self._schema.empty_table()]
        if self._outputs:
            rows, counts = pa.concat_tables(self._outputs), [table.num_rows for table in self._outputs]
            columns = {f"out.{name}": rows[name] for name in rows.column_names}
            columns[_PLACE] = pa.array(np.concatenate([np.arange(count) for count in counts]), pa.int64())
            parts.append(self._filled(_OUT, np.repeat(self._output_ids, counts), columns))
        if self._states:
            names = [field.name for field in self._schema if field.name.startswith("kept.")]
            columns = {}
            for name in names:
                values = [row.get(name.removeprefix("kept.")) for row in self._states]
                columns[name] = pa.array(values, self._schema.field(name).type)
            parts.append(self._filled(_STATE, [row[SEQUENCE_ID] for row in self._states], columns))
        return pa.concat_tables(parts)

    def _filled(self, what: int, ids: Any, columns: dict[str, Any]) -> pa.Table:
        import pyarrow as pa

        count = len(ids)
        columns = {**columns, _WHAT: pa.array([what] * count, pa.int8()), SEQUENCE_ID: pa.array(ids, pa.int64())}
        return pa.table(
            [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in self._schema],
            schema=self._schema,
        )


def _by_key(
    rows: pa.Table, before: pa.Table, keys: Sequence[str]
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None, list[tuple[int, pa.Table]]]]:
    """Yield each key of the rows, its state before them, and its rows by id, sorted by position and without tags."""
    import numpy as np

    codes, old_codes = key_codes([rows, before], keys)
    ids = rows[SEQUENCE_ID].to_numpy()
    order = np.lexsort([*place_ranks(rows), ids, codes])
    ordered = untagged(rows).take(order)
    ids, codes = ids[order], codes[order]
    known = np.isin(old_codes, codes)
    states = dict(zip(old_codes[known].tolist(), before.filter(known).to_pylist(), strict=True))
    first_of_key = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    values = ordered.select(list(keys)).take(first_of_key).to_pylist() if keys else [{}]
    for key, start, end in zip(values, first_of_key, [*first_of_key[1:], len(ids)], strict=True):
        mine = ids[start:end]
        cuts = np.flatnonzero(np.append(True, mine[1:] != mine[:-1]))
        batches = [
            (int(mine[cut]), ordered.slice(start + cut, stop - cut))
            for cut, stop in zip(cuts, [*cuts[1:], len(mine)], strict=True)
        ]
        yield key, states.get(int(codes[start])), batches


@overload
def custom(
    function: Callable[..., Any],
    /,
    *,
    keys: Sequence[str] = (),
    output: str,
    state: type,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
    batch: Literal["pandas", "arrow"] = "pandas",
) -> Stream: ...
@overload
def custom(
    *,
    keys: Sequence[str] = (),
    output: str,
    state: type,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
    batch: Literal["pandas", "arrow"] = "pandas",
) -> Callable[[Callable[..., Any]], Stream]: ...
def custom(
    function: Callable[..., Any] | None = None,
    /,
    *,
    keys: Sequence[str] = (),
    output: str,
    state: type,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
    batch: Literal["pandas", "arrow"] = "pandas",
) -> Stream | Callable[[Callable[..., Any]], Stream]:
    """Declare a keyed operator in Python: a function that gets the state of a key and its new rows.

    The function is called once for each key and sequence id that has rows, in id order, with the rows in the order of
    the file. It must be pure: its only knowledge of earlier rows is `state`, which is None at first. To forget the key,
    return a state of None. A parameter annotated with the application's Params gets them.

    Args:
        keys: key columns; null is a key. Without keys there is one state, and one worker does all the work.
        output: DDL of the rows that the function returns: a DataFrame with these columns, or None for no rows.
        state: a dataclass; new fields need defaults. Each field is a column: at each id the function gets the values
            that the columns gave back. A value that its column would change (1.5 in an int, a time without a zone) is
            refused.
        name: the operator's name, and the state's identity; the function's name by default.
        inputs: the stream, instead of the second parameter's name.
        batch: `"arrow"` for `pyarrow.Table` in and out: exact types (pandas turns integers with nulls into floats).

    Example:
        @dataclass
        class Visits:
            n: int

        @dm.custom(keys=["customer"], state=Visits, output="customer string, visits bigint")
        def visits(state, orders):  # Visits or None, pandas.DataFrame
            n = (state.n if state else 0) + len(orders)
            return Visits(n=n), pd.DataFrame({"customer": orders["customer"][:1], "visits": [n]})
    """

    def wrap(wrapped: Callable[..., Any]) -> Stream:
        called, ports = user_function(wrapped, inputs, first_free=1)
        operator = Custom(
            name=name or wrapped.__name__,
            inputs=ports,
            keys=names_of(keys),
            output=output,
            state_class=state,
            function=called,
            batch=batch,
        )
        return declare(operator, wrapped)

    return wrap if function is None else wrap(function)
