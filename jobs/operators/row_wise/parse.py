"""`parse` and `format`: make columns from a text, and a text from columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import Violation
from drainmark.jobs.formats.byte_records import ROW, WHY, TextParser, wrong_options
from drainmark.jobs.formats.file_columns import without_line_end
from drainmark.jobs.formats.values.grammar import unreadable
from drainmark.jobs.frames.exact_texts import exact_csv, exact_json
from drainmark.jobs.frames.names import literal, quoted
from drainmark.jobs.frames.row_order import payload_of, tags_in
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.blame import failed
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, reading
from drainmark.jobs.graph.operator import Operator, Positions, StepResult
from drainmark.jobs.state.placed_rows import PLACE, placed, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["format", "parse"]

_PARSED = "__parsed"
_POLICIES = ("quarantine", "null", "halt")


@dataclass(frozen=True, kw_only=True)
class Parse(Operator):
    """A row-wise operator, except that a text of lines becomes several rows."""

    kind: ClassVar[str] = "parse"
    summary: ClassVar[str] = "columns out of a text: CSV, JSON, lines, key=value"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("csv", "json", "key_value", "line", "null")

    column: str
    form: str
    schema: str | None = None
    on_bad: str = "quarantine"
    separator: str = ","
    options: Mapping[str, str] = field(default_factory=dict)

    def fingerprint(self) -> Any:
        facts: list[Any] = [self.column, self.form, self.schema, self.on_bad, self.separator]
        return {**super().fingerprint(), "parse": [*facts, dict(self.options)] if self.options else facts}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.form not in ("csv", "json", "key_value", "line"):
            yield self.wrong("PARSE_FORMAT", f"format={self.form!r} is not known", "csv, json, line or key_value")
        if (self.schema is None) != (self.form == "line"):
            message = "lines have no schema" if self.form == "line" else "it has no schema"
            yield self.wrong("PARSE_SCHEMA", message, 'schema="id bigint, at timestamp"; only format="line" has none')
        if self.on_bad not in _POLICIES:
            yield self.wrong("PARSE_ON_BAD", f"on_bad={self.on_bad!r} is not known", " or ".join(_POLICIES))
        if self.options:
            yield from self._wrong_options()

    def _wrong_options(self) -> Iterator[Violation]:
        if self.form not in ("csv", "json"):
            yield self.wrong("PARSE_OPTIONS", f"format={self.form!r} has no options", "leave options= out")
            return
        for name in sorted({"sep", "delimiter"} & {name.lower() for name in self.options}):
            yield self.wrong("PARSE_OPTIONS", f"the option {name!r} is an argument", "give it as separator=")
        for message, remedy in wrong_options(self.form, self.options):
            yield self.wrong("PARSE_OPTIONS", message, remedy)

    def step(self, frames: OperatorContext) -> StepResult:
        port = self.inputs[0]
        rows = frames.input(port)
        require_columns(self, port, rows, [self.column])
        if self.form == "line":
            return StepResult(self._lines(frames))
        schema, parser = frames.once_a_run((self.name, "parser"), lambda: self._parser(rows))
        if self.on_bad == "null":
            return StepResult(self._picked(self._parsed(frames, rows, parser), rows, schema))
        every = placed(frames, self, port, made=lambda rows: self._parsed(frames, rows, parser))
        is_bad = f"(`{self.column}` is null or {_PARSED}.{WHY} is not null)"
        bad = every.where(is_bad).selectExpr(
            SEQUENCE_ID,
            f"{PLACE} as position",
            f"make_valid_utf8(cast(`{self.column}` as string)) as raw",
            f"coalesce({_PARSED}.{WHY}, 'there is no text') as reason",
        )
        good = every.where(f"not {is_bad}")
        return StepResult(self._picked(good, rows, schema), bad=bad, bad_halts=self.on_bad == "halt")

    def _parser(self, rows: DataFrame) -> tuple[StructType, TextParser]:
        from pyspark.sql.types import StructType

        schema = StructType.fromDDL(self.schema or "")
        if twice := sorted(set(schema.names) & set(payload_of(rows, self.column))):
            remedy = "rename it in the schema, or drop it in a dm.functor before"
            raise failed(self, f"the stream has a column {', '.join(twice)} beside the text", remedy)
        (kind,) = (field.dataType.simpleString() for field in rows.schema.fields if field.name == self.column)
        if kind not in ("string", "binary"):
            remedy = f"make it a text in a dm.functor before: F.col({self.column!r}).cast('string')"
            raise failed(self, f"the column {self.column!r} is {kind}, and no text", remedy)
        for each in schema.fields:
            if (why := self._unreadable(each.dataType)) is not None:
                raise failed(self, f"the column {each.name!r} of the schema cannot be parsed", why)
        columns = tuple((field.name, field.dataType) for field in schema.fields)
        options = {name.lower(): str(value) for name, value in self.options.items()}
        return schema, TextParser(form=self.form, columns=columns, separator=self.separator, options=options)

    def _unreadable(self, kind: Any) -> str | None:
        if self.form != "json" and (kind.typeName() in ("struct", "array", "map")):
            return f"a {self.form} text has no {kind.typeName()}: declare the column as string"
        return unreadable(kind)

    def _parsed(self, frames: OperatorContext, rows: DataFrame, parser: TextParser) -> DataFrame:
        """Return rows with `_PARSED`; this process parses if they are few, and starts no worker."""
        from pyspark.sql.types import StructField, StructType

        if not frames.is_local(self):
            return rows.withColumn(_PARSED, parser.column(f"`{self.column}`"))
        table = frames.collect(self, rows)
        parsed = parser(table[self.column].combine_chunks())
        schema = StructType([*rows.schema.fields, StructField(_PARSED, parser.kind)])
        return frames.local(self, table.append_column(_PARSED, parsed), schema)

    def _picked(self, parsed: DataFrame, rows: DataFrame, schema: StructType) -> DataFrame:
        columns = [f"{_PARSED}.{ROW}.{name} as {name}" for name in quoted(schema.names)]
        return parsed.selectExpr(*tags_in(rows.columns), *quoted(payload_of(rows, self.column)), *columns)

    def _lines(self, frames: OperatorContext) -> DataFrame:
        """Return one row for each line; its position is the place of its text, then its number within the text."""
        rows = placed(frames, self, self.inputs[0])
        free = quoted(payload_of(rows, self.column, "line", PLACE))
        text = without_line_end(f"`{self.column}`")
        lines = f"posexplode(split({text}, '\\\\r?\\\\n')) as (_line_number, line)"
        found = rows.where(f"length(`{self.column}`) > 0").selectExpr(SEQUENCE_ID, PLACE, *free, lines)
        position = f"struct({PLACE} as block, cast(_line_number as bigint) as row) as {POSITION}"
        return found.selectExpr(SEQUENCE_ID, position, *free, "line")


@dataclass(frozen=True, kw_only=True)
class FormatOperator(Operator):
    """A row-wise operator that makes one text of each row."""

    kind: ClassVar[str] = "format"
    summary: ClassVar[str] = "a text out of columns: CSV, JSON, key=value"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("csv", "json", "key_value")

    form: str
    column: str
    separator: str = ","

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "format": [self.form, self.column, self.separator]}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.form not in ("csv", "json", "key_value"):
            yield self.wrong("FORMAT_FORMAT", f"format={self.form!r} is not known", "csv, json or key_value")

    def apply(self, frames: OperatorContext) -> DataFrame:
        rows = frames.input(self.inputs[0])
        names = payload_of(rows)
        row = f"struct({', '.join(quoted(names))})"
        if self.form == "json":
            text = exact_json(row, nulls=True)
        elif self.form == "csv":
            text = exact_csv(row, self.separator)
            if len(names) == 1:  # Spark's writer has no text for a record of one null
                text = f"if({quoted(names)[0]} is null, '', {text})"
        else:
            pairs = ", ".join(f"concat({literal(f'{name}=')}, cast(`{name}` as string))" for name in names)
            text = f"concat_ws({literal(self.separator)}, {pairs})"
        return rows.selectExpr(*tags_in(rows.columns), f"{text} as `{self.column}`")


def parse(
    stream: StreamLike,
    column: str,
    *,
    format: Literal["csv", "json", "line", "key_value"],  # noqa: A002 - the field's word
    schema: str | None = None,
    on_bad: Literal["quarantine", "null", "halt"] = "quarantine",
    separator: str = ",",
    options: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Stream:
    """Declare that a text is parsed into columns: `dm.parse(lines, "value", format="json", schema="id bigint")`.

    The columns of the schema replace the text; the other columns of the stream stay.

    Args:
        column: the text column, a string or binary.
        format: `csv`, one record per row; `json`, one object per row; `key_value`, `a=1,b=2` (the last value of
            a key that is there twice; a missing key, or one without `=`, is null); `line`, one row per line, in the
            column `line`.
        schema: DDL of the columns; none for `line`.
        on_bad: the treatment of a row with a text that is null, or does not fit: the row goes to the region's
            quarantine with its number in the stream and the reason; all its columns are null; or the region halts.
        separator: of CSV fields, or of the pairs of `key_value`.
        options: of CSV and JSON as for `DirectoryScan`, such as `{"dateFormat": "dd.MM.yyyy"}`.
        name: the operator's name; `<stream>_parsed` by default.

    Example:
        notes = dm.parse(orders, "note", format="key_value", schema="gift string, wrap string", on_bad="null")
    """
    operator = Parse(
        **reading(stream, "parsed", name),
        column=column,
        form=format,
        schema=schema,
        on_bad=on_bad,
        separator=separator,
        options=dict(options or {}),
    )
    return declare(operator)


def format(  # noqa: A001 - the field's word; users write dm.format
    stream: StreamLike,
    form: Literal["csv", "json", "key_value"],
    *,
    column: str = "value",
    separator: str = ",",
    name: str | None = None,
) -> Stream:
    """Declare that the columns of a stream are written as one text: `dm.format(orders, "json")`.

    Args:
        form: `csv`, `json` (with nulls), or `key_value` (`a=1,b=2`, nulls left out). `dm.parse` reads the same values
            from the text: times have their microseconds, texts the blanks around them. Empty texts are nulls in CSV,
            JSON has no NaN; in `key_value`, values have neither separators nor blanks around them.
        column: name of the text column, the only column that is left.
        separator: of CSV fields, or of the pairs of `key_value`.
        name: the operator's name; `<stream>_formatted` by default.

    Example:
        texts = dm.format(orders, "json", column="order_as_json")
    """
    operator = FormatOperator(**reading(stream, "formatted", name), form=form, column=column, separator=separator)
    return declare(operator)
