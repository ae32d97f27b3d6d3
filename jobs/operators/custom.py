"""`@custom`: the author's own keyed operator, `(state, rows) -> (state, rows)`, once a key and id, in id order.

It runs on Spark's workers, keys side by side, and vectorises: a worker gets all rows of a key in a group and goes
through their ids in order. The state is a dataclass, kept as typed columns (V58); the function is pure, so any grouping
leaves the same states and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from jobs.errors import UsageError, Violation
from jobs.graph.declarations import Stream, StreamLike, caller, declare, location_of, user_function
from jobs.graph.operator import GONE, POSITION, SEQUENCE_ID, KeptState, Operator, Result, UserFunction
from jobs.lazy import F
from jobs.state.typed import reader_of, struct_of, to_row

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from jobs.runtime.frames import GroupFrames

__all__ = ["custom"]

_WHAT = "_what"
_OUT, _STATE = 0, 1
_PLACE = "_place"
_NO_KEY = "_no_key"


@dataclass(frozen=True, kw_only=True)
class Custom(Operator):
    """Keyed state in Python; may not start a region (E6)."""

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
        return (KeptState(keys=self.keys, evolves=True),)

    def fingerprint(self) -> Any:
        facts = {"keys": list(self.keys), "output": self.output, "state": self.state_class.__qualname__}
        return {**super().fingerprint(), **facts, "batch": self.batch, "function": self.function.source_digest()}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.batch not in ("pandas", "arrow"):
            yield self._violation("CUSTOM_BATCH", f"batch={self.batch!r} is not known", '"pandas" or "arrow"')
        if len(self.inputs) != 1:
            yield self._violation("CUSTOM_INPUTS", f"it has {len(self.inputs)} streams", "join them by dm.union first")
        try:
            fields = set(getattr(self.state_class, "__dataclass_fields__", {}))
            struct_of(self.state_class)
        except UsageError as error:
            yield self._violation("CUSTOM_STATE", error.message, error.remedy or "")
            return
        if clashes := sorted(fields & {*self.keys, SEQUENCE_ID, GONE}):
            yield self._violation("CUSTOM_STATE", f"the state may not call a field {', '.join(clashes)}", "rename it")

    def _violation(self, rule: str, message: str, remedy: str) -> Violation:
        return Violation(
            rule=rule, message=f"{self.name}: {message}", operator=self.name, location=self.location, remedy=remedy
        )

    def step(self, frames: GroupFrames) -> Result:
        rows = frames.input(self.inputs[0])
        types = {field.name: field.dataType for field in rows.schema.fields}
        shape = _Shape.of(self, types)
        before = frames.kept(self, "", shape.kept, changed=rows)
        arguments = dict.fromkeys(self.function.params, frames.params)
        call = _Call(operator=self.name, function=self.function, arguments=arguments, keys=self.keys,
                     restore=reader_of(self.state_class), batch=self.batch, shape=shape)  # fmt: skip
        by_key = [F.col(f"`{key}`") for key in self.keys] or [F.lit(0).alias(_NO_KEY)]
        grouped = rows.groupBy(*by_key).cogroup(before.groupBy(*by_key))
        # Spark counts the arguments of what it is given, `self` among them
        made = frames.once(self, grouped.applyInArrow(lambda found, kept: call(found, kept), shape.made))  # noqa: PLW0108
        return Result(
            made.where(F.col(_WHAT) == _OUT).select(
                SEQUENCE_ID,
                F.struct(F.lit(0).cast("bigint").alias("block"), F.col(_PLACE).alias("row")).alias(POSITION),
                *(F.col(f"`out.{name}`").alias(name) for name in shape.output.names),
            ),
            {"": made.where(F.col(_WHAT) == _STATE).select(
                *(F.col(f"`kept.{name}`").alias(name) for name in shape.kept.names)
            )},
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Types of what goes in and out of a worker.

    Attributes:
        output: the author's columns.
        kept: keys, the state's fields, `GONE`, `_sequence_id`.
        made: of both, `out.…` and `kept.…`, a row being one or the other.
    """

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
        parts = [StructField(f"{label}.{field.name}", field.dataType)
                 for label, part in (("out", output), ("kept", kept)) for field in part.fields]  # fmt: skip
        tags = [StructField(_WHAT, ByteType()), StructField(SEQUENCE_ID, LongType()), StructField(_PLACE, LongType())]
        return cls(output=output, kept=kept, made=StructType([*tags, *parts]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What a worker runs for a key: the author's function, id by id."""

    operator: str
    function: UserFunction
    arguments: dict[str, Any]
    keys: tuple[str, ...]
    restore: Callable[[dict[str, Any]], Any]
    batch: str
    shape: _Shape

    def __call__(self, rows: pa.Table, before: pa.Table) -> pa.Table:
        import pyarrow as pa

        schema = self._schema()
        if rows.num_rows == 0:
            return schema.empty_table()
        key = {name: rows[name][0].as_py() for name in self.keys}
        state = self._restored(before)
        tables = []
        for number, batch in _by_id(rows):
            had = state is not None
            state, out = self._called(state, batch)
            if out is not None and len(out):
                tables.append(self._output(number, out, schema))
            if state is not None or had:
                tables.append(self._state(number, key, state, schema))
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _restored(self, before: pa.Table) -> Any:
        if before.num_rows == 0:
            return None
        return self.restore(before.to_pylist()[0])

    def _called(self, state: Any, batch: pa.Table) -> tuple[Any, Any]:
        given = batch if self.batch == "arrow" else batch.to_pandas()
        named = dict(zip(self.function.streams, (state, given), strict=True))
        result = self.function.function(**named, **self.arguments)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(
                f"operator {self.operator!r} has to return (state, rows), and returned {type(result).__name__}"
            )
        return result

    def _output(self, number: int, out: Any, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        wanted = self.shape.output.names
        found = out.column_names if isinstance(out, pa.Table) else [str(name) for name in out.columns]
        if sorted(found) != sorted(wanted):
            raise ValueError(f"operator {self.operator!r} declares the columns {wanted} and returned {found}")
        fields = pa.schema([pa.field(name, schema.field(f"out.{name}").type) for name in wanted])
        if isinstance(out, pa.Table):
            table = out.select(wanted).cast(fields)
        else:
            table = pa.Table.from_pandas(out[wanted], schema=fields, preserve_index=False)
        columns = {f"out.{name}": table[name] for name in wanted}
        columns[_PLACE] = pa.array(range(table.num_rows), pa.int64())
        return self._filled(_OUT, number, table.num_rows, columns, schema)

    def _state(self, number: int, key: dict[str, Any], state: Any, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        values = {**key, **(to_row(state) if state is not None else {}), GONE: state is None, SEQUENCE_ID: number}
        columns = {
            f"kept.{name}": pa.array([value], schema.field(f"kept.{name}").type) for name, value in values.items()
        }
        return self._filled(_STATE, number, 1, columns, schema)

    @staticmethod
    def _filled(what: int, number: int, rows: int, columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        columns[_WHAT] = pa.array([what] * rows, pa.int8())
        columns[SEQUENCE_ID] = pa.array([number] * rows, pa.int64())
        return pa.table(
            [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema],
            schema=schema,
        )

    def _schema(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.shape.made, timezone="UTC")


def _by_id(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each id in order, by position within the id, without their tags."""
    import numpy as np

    ids = rows[SEQUENCE_ID].to_numpy()
    ranks = [ids]
    if POSITION in rows.column_names:
        position = rows[POSITION].combine_chunks()
        ranks = [position.field("row").to_numpy(), position.field("block").to_numpy(), ids]
    order = np.lexsort(ranks)
    ordered = rows.drop_columns([name for name in (SEQUENCE_ID, POSITION) if name in rows.column_names]).take(order)
    numbers, starts = np.unique(ids[order], return_index=True)
    for number, start, end in zip(numbers, starts, [*starts[1:], len(ids)], strict=True):
        yield int(number), ordered.slice(start, end - start)


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
) -> Any:
    """Declare a keyed operator in Python:

        @dm.custom(keys=["user"], state=Visits, output="user string, visits bigint")
        def visits(state, clicks):              # Visits | None, pandas.DataFrame
            n = (state.n if state else 0) + len(clicks)
            return Visits(n=n), pd.DataFrame({"user": clicks["user"][:1], "visits": [n]})

    The function is called once for each key and sequence id that has rows, in id order, with the rows in the order of
    the file. It must be pure: what it knows of earlier rows is in `state`, None at first; a state of None forgets the
    key. Parameters annotated with the application's Params are given, too.

    Args:
        keys: key columns, null being a key; without any there is one state, and one worker does all the work.
        output: DDL of the rows it returns, as a DataFrame with these columns; None for no rows.
        state: a dataclass; new fields need defaults.
        name: the operator's name, and the state's identity; the function's name by default.
        inputs: the stream, instead of the second parameter's name.
        batch: `"arrow"` for `pyarrow.Table` in and out: exact types (pandas turns integers with nulls into floats).
    """
    frame = caller()

    def wrap(wrapped: Callable[..., Any]) -> Stream:
        called, ports = user_function(wrapped, inputs, first_free=1)
        operator = Custom(
            name=name or wrapped.__name__,
            inputs=ports,
            location=location_of(frame, wrapped),
            keys=tuple(keys),
            output=output,
            state_class=state,
            function=called,
            batch=batch,
        )
        return declare(operator, frame, wrapped)

    return wrap if function is None else wrap(function)
