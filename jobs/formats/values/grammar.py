"""What a text becomes in a column of a type: a value, or a misfit with its reason.

Every text that Drainmark reads becomes a value here and nowhere else: fields of CSV, members of JSON, lines, texts of
Kafka and `dm.parse`. `TABLE` says the same in words, for docs/reference/values.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from drainmark.jobs.formats.values.reader import Reader

_SHOWN = 64
_FORMATS = ("dateformat", "timestampformat", "timestampntzformat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How texts become values, beyond the type.

    Attributes:
        rounding: None, or "half_up": digits of a decimal behind its scale are rounded.
        date_format: Java pattern of dates, as in Spark's option dateFormat; likewise the others.
    """

    rounding: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    timestamp_ntz_format: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], rounding: str | None) -> Rules:
        """Return the rules of a source; names of options are in lower case."""
        date, timestamp, timestamp_ntz = (options.get(name) for name in _FORMATS)
        return cls(rounding=rounding, date_format=date, timestamp_format=timestamp, timestamp_ntz_format=timestamp_ntz)


class Values(NamedTuple):
    """The values of a column.

    Attributes:
        values: in the Arrow type of the Spark type; null where the text is null or a misfit.
        misfits: places of the texts that are no values of the type, ascending.
    """

    values: pa.Array
    misfits: Sequence[int]


def values_of(texts: pa.Array, kind: DataType, rules: Rules) -> Values:
    """Return the values of texts.

    Args:
        texts: a string array.
        kind: a Spark type that is not nested, and not `unreadable`.
    """
    import pyarrow.compute as pc

    values = reader_of(kind, rules).read(texts)
    if values.null_count == texts.null_count:
        return Values(values, ())
    is_misfit = pc.and_(texts.is_valid(), values.is_null())
    return Values(values, pc.indices_nonzero(is_misfit).to_pylist())


def misfit(text: str, kind: DataType, rules: Rules) -> str:
    """Return why a text is no value of a type: "'1,5' is no decimal(10,2): write the decimal point as '.'"."""
    return f"{text[:_SHOWN]!r} {reader_of(kind, rules).why_not(text)}"


def unreadable(kind: DataType) -> str | None:
    """Return why texts never become values of a type, at any depth; None if they do."""
    return next(_reasons(kind), None)


def pattern_fault(pattern: str, option: str = "timestampformat") -> str | None:
    """Return why the pattern of an option is not read, and what to write instead; None if it is read.

    Args:
        option: `dateformat`, `timestampformat` or `timestampntzformat`.
    """
    from drainmark.jobs.formats.values.patterns import fault_of

    return fault_of(pattern, option)


@lru_cache(maxsize=256)
def reader_of(kind: Any, rules: Rules) -> Reader:
    from pyspark.sql.pandas.types import to_arrow_type

    from drainmark.jobs.formats.values import numbers, reader, times

    name = kind.typeName()
    if name in ("date", "timestamp", "timestamp_ntz"):
        pattern = getattr(rules, f"{name}_format")
        return times.Iso(name) if pattern is None else times.Formatted(name, pattern)
    if name == "decimal":
        return numbers.Decimals(kind.precision, kind.scale, rules.rounding == "half_up")
    arrow = to_arrow_type(kind)
    readers: Mapping[str, Callable[[Any], Reader]] = {
        **{each: partial(numbers.WholeNumbers, kind.simpleString()) for each in _WHOLE},
        **{each: partial(numbers.FloatingNumbers, name) for each in ("double", "float")},
        "boolean": lambda arrow: reader.Booleans(),
        **dict.fromkeys(("string", "binary"), reader.PlainTexts),
    }
    return readers[name](arrow)


# --- types ----------------------------------------------------------------------------------------------------------

_WHOLE = ("byte", "short", "integer", "long")
_READ = (*_WHOLE, "decimal", "double", "float", "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")


def _reasons(kind: Any) -> Iterator[str]:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from (f"field {field.name!r}: {reason}" for reason in _reasons(field.dataType))
    elif isinstance(kind, ArrayType):
        yield from _reasons(kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            yield f"keys of a map are texts: declare map<string, {kind.valueType.simpleString()}>"
        yield from _reasons(kind.valueType)
    elif kind.typeName() not in _READ:
        yield f"no text becomes a value of type {kind.simpleString()}: declare the column as string"


# --- in words -------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """The rule of some types in words.

    Attributes:
        kinds: names of the types; the examples are of the first one.
        reads: which texts are values.
        values, misfits: examples.
    """

    kinds: tuple[str, ...]
    reads: str
    values: tuple[str, ...]
    misfits: tuple[str, ...] = ()


TABLE = (
    Entry(("string",), "every text, with its spaces", ("tea", " 007 ")),
    Entry(
        ("int", "tinyint", "smallint", "bigint"),
        "digits with or without a sign, in the range of the type",
        ("1", "-5", "+5", "007"),
        ("1.0", "1e3", "1,000", "0x1F", "1_000", " 1", "2147483648"),
    ),
    Entry(
        ("decimal(10,2)",),
        "digits with or without a sign, a point and an exponent; every digit needs its place in the type,"
        ' except for zeros at the end. `rounding="half_up"` rounds digits behind the point. At most 4096 characters',
        ("1", "1.5", "1.500", "-.5", "1e3"),
        ("1,5", "1.005", "1,000.00", "123456789", "NaN"),
    ),
    Entry(
        ("double", "float"),
        "the same, as the nearest number that the type has; also `NaN`, `Infinity` and `Inf`, with or without a sign",
        ("1.5", "1e-3", "-Infinity", "NaN"),
        ("1e400", "1e-400", "nan", "1,5", "1d"),
    ),
    Entry(("boolean",), "`true` or `false`, in any case", ("true", "False"), ("1", "yes", "t")),
    Entry(
        ("date",),
        "year, month and day of the Gregorian calendar, years 0001 to 9999",
        ("2024-01-31", "2024-1-5"),
        ("2024-01", "20240131", "2024-02-30", "2024-01-31 12:34", "2024-01-31Tomorrow", "31.01.2024", "10000-01-01"),
    ),
    Entry(
        ("timestamp",),
        "a date; then, behind `T` or a space, hour and minute, second, and a fraction with digits other than 0 up to"
        " microseconds; behind a time, a zone such as `Z`, `+01`, `+01:00`, `+0100`. Without a zone it is UTC",
        ("2024-01-31", "2024-01-31 12:34", "2024-01-31T12:34:56.123456Z", "2024-01-31 12:34:56+01:00"),
        ("12:34", "2024-01-31 24:00", "2024-01-31 12:34:60", "2024-01-31 12:34:56.123456789", "2024-01-31 12:34 CET"),
    ),
    Entry(
        ("timestamp_ntz",),
        "the same, without a zone",
        ("2024-01-31T12:34:56", "2024-01-31"),
        ("2024-01-31T12:34:56Z", "12:34"),
    ),
    Entry(("binary",), "every text, as its bytes in UTF-8", ("tea",)),
)
"""What texts become, type by type."""
LETTERS = (
    ("yyyy, yy, y", "year: four digits, two digits of 2000 to 2099, one to four digits; `u` is the same"),
    ("MM, M, MMM, MMMM", "month: two digits, one or two, `Jan`, `January`; `L` is the same"),
    ("dd, d, DDD, D", "day of the month, of the year"),
    ("E, EEEE", "day of the week, `Mon`, `Monday`; it must be that of the date"),
    ("HH, H, kk, k", "hour 0 to 23, 1 to 24"),
    ("hh, h, KK, K", "hour 1 to 12, 0 to 11; needs `a`, which is `AM` or `PM`"),
    ("mm, m, ss, s", "minute, second"),
    ("S, SSS, SSSSSSSSS", "fraction of a second of at most so many digits, 9 or fewer"),
    ("XXX, XX, X", "zone: `+01:00`, `+0100`, `+01` or `+0100`; `Z` for UTC. `x` is the same without `Z`"),
    ("Z, ZZZZZ", "zone: `+0100`, `+01:00`"),
    ("'…'", "text as it stands; `''` is a quote"),
    ("[…]", "a part that may be missing"),
)
"""The letters of the formats of users."""
