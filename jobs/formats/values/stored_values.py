"""Values of files that have types themselves, in the declared types: the same value, or a fault.

The types of the file are Arrow's, which tell signed from unsigned numbers, texts from bytes and the unit of a time.
`reading_of` alone decides which type is read as which; what it gives reads a column of that type, at any depth.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_SPARK_DIGITS = 38
_SHOWN = 80
_DAY_MICROSECONDS = 86_400_000_000
_FIRST_GREGORIAN = -141_427
"""Days since 1970 of 15 October 1582, before which the Julian calendar was in use."""

_WITHOUT_OLD_ZONES = -2_208_988_800
"""Seconds since 1970 of 1 January 1900, before which zones had offsets that later tables lack."""

_JULIAN_START = 2_472_670
"""Days from 1 March of year -4800, in the Julian calendar, to 1 January 1970."""

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Decimal digits of a signed number by its bits."""

_DOUBLE_BITS = 32
"""Bits of the widest numbers of which each is a double."""


class TypedValues(NamedTuple):
    """Values of a column in the declared type, null at a fault; the faults by the place of the value."""

    values: pa.Array
    faults: Mapping[int, str]


Reading: TypeAlias = "Callable[[pa.Array], TypedValues]"
_Change: TypeAlias = "Callable[[pa.Array], pa.Array]"


def reading_of(found: pa.DataType, wanted: pa.DataType, name: str, *, is_julian: bool = False) -> Reading | None:
    """Return what reads values of one Arrow type as another; None if the types do not fit.

    Args:
        wanted: Arrow's type of a declared one; see `drainmark.jobs.frames.tags.arrow_schema`.
        name: of the column, for faults.
        is_julian: days before 1582 are counted by the Julian calendar.
    """
    import pyarrow as pa

    if pa.types.is_null(found):
        return lambda array: TypedValues(pa.nulls(len(array), wanted), {})
    if pa.types.is_dictionary(found):
        return _after(
            reading_of(found.value_type, wanted, name, is_julian=is_julian), lambda array: array.dictionary_decode()
        )
    if isinstance(found, pa.BaseExtensionType):
        if found.extension_name == "arrow.uuid" and pa.types.is_string(wanted):
            return lambda array: TypedValues(_texts_of_uuids(_storage(array)), {})
        return _after(reading_of(found.storage_type, wanted, name, is_julian=is_julian), _storage)
    nested = ((pa.types.is_struct, _struct), (pa.types.is_map, _map), (is_list, _list))
    for is_nested, read in nested:
        if is_nested(wanted):
            return read(found, wanted, name, is_julian) if is_nested(found) else None
    change = _change(found, wanted, is_julian)
    return None if change is None else lambda array: _changed(array, change, wanted, name)


def leaves_of(array: pa.Array) -> Iterator[tuple[pa.Array, np.ndarray[Any, Any]]]:
    """Yield the values within an array that are not nested, each part with the rows of its values."""
    import numpy as np

    yield from _leaves(array, np.arange(len(array)))


def numbers_of(times: pa.Array) -> np.ndarray[Any, Any]:
    """Return the numbers of times, 0 for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers: np.ndarray[Any, Any] = pc.fill_null(times.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return numbers


_WRITTEN_AGAIN = (
    "write the file again by Spark with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED and "
    "spark.sql.parquet.int96RebaseModeInWrite=CORRECTED"
)


def old_times_in(array: pa.Array, name: str) -> Iterator[tuple[int, str]]:
    """Yield the faults of rows with times before 1900, if they were counted by an old calendar in an old zone.

    Args:
        name: of the column.
    """
    import pyarrow as pa

    for values, rows in leaves_of(array):
        if pa.types.is_timestamp(values.type):
            is_old = numbers_of(values.cast(pa.timestamp("s"), safe=False)) < _WITHOUT_OLD_ZONES
            for place in is_old.nonzero()[0]:
                why = "has a time before 1900 in the calendar of Spark 2, which depends on the zone of its writer"
                yield int(rows[place]), f"{name!r} {why}: {_WRITTEN_AGAIN}"


def shown(value: pa.Scalar) -> str:
    """Return a value as text for people, cut."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_timestamp(value.type):
        text = str(np.datetime64(value.value, value.type.unit)).replace("T", " ")
    elif pa.types.is_date(value.type):
        text = str(np.datetime64(value.value, "D"))
    else:
        found = value.as_py()
        text = repr(found)[1:] if isinstance(found, bytes) else str(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- values that are not nested -----------------------------------------------------------------------------------


def _change(found: Any, wanted: Any, is_julian: bool) -> _Change | None:
    """Return what changes values of a type to another, and raises `ArrowInvalid` if a value would not be the same."""
    import pyarrow as pa

    is_long = pa.types.is_decimal(found) and found.precision > _SPARK_DIGITS
    if wanted in (pa.string(), pa.binary()) and (_is_bytes(found) or (is_long and wanted == pa.binary())):
        # A file may call bytes a text that are none: only the second cast looks at them.
        between = pa.string() if is_long else pa.binary()
        return lambda array: array.cast(between).cast(wanted)
    if pa.types.is_timestamp(found):
        return _change_of_times(found, wanted)
    if pa.types.is_date32(found) and wanted in (found, pa.timestamp("us")):
        to = _first_moments if wanted != found else lambda days: days
        return (lambda days: to(_gregorian(days))) if is_julian else to
    raw = {"time32": pa.int32(), "time64": pa.int64(), "duration": pa.int64()}.get(str(found).partition("[")[0])
    if raw == wanted and found != pa.duration("us"):
        return lambda array: array.view(wanted)
    return (lambda array: array.cast(wanted)) if found == wanted or _is_wider(found, wanted) else None


def _is_wider(found: Any, wanted: Any) -> bool:
    """Say whether a number type holds the numbers of another; a signed one those of the unsigned one of its width."""
    import pyarrow as pa

    if pa.types.is_integer(found):
        if pa.types.is_integer(wanted):
            return bool(found.bit_width <= wanted.bit_width)
        if pa.types.is_decimal(wanted):
            is_longest = pa.types.is_uint64(found)
            return bool(_DIGITS[found.bit_width] + is_longest <= wanted.precision - wanted.scale)
        return bool(pa.types.is_float64(wanted) and found.bit_width <= _DOUBLE_BITS)
    if pa.types.is_floating(found):
        return bool(pa.types.is_floating(wanted) and found.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(found) and pa.types.is_decimal(wanted):
        digits = min(found.precision, _SPARK_DIGITS)
        return bool(wanted.scale >= found.scale and wanted.precision - wanted.scale >= digits - found.scale)
    return bool(pa.types.is_time(found) and pa.types.is_time(wanted))


def _change_of_times(found: Any, wanted: Any) -> _Change | None:
    """Return the change of times; without a zone they are those of UTC."""
    import pyarrow as pa

    if pa.types.is_timestamp(wanted):
        return lambda array: array.cast(pa.timestamp(wanted.unit, found.tz)).view(wanted)
    if wanted == pa.int64() and found.unit == "ns":
        return lambda array: array.view(wanted)
    return None


def _gregorian(days: pa.Array) -> pa.Array:
    """Return the days with the same year, month and day as those of the Julian calendar, where it was in use.

    Raises:
        ArrowInvalid: one is 29 February of a year in which the Gregorian calendar has none.
    """
    import numpy as np
    import pyarrow as pa

    numbers = days.view(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if not (numbers < _FIRST_GREGORIAN).any():
        return days

    def moved(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        years = (4 * (numbers + _JULIAN_START) + 3) // 1461  # from March to February
        return np.where(numbers < _FIRST_GREGORIAN, numbers - years // 100 + years // 400 + 38, numbers)

    found = moved(numbers)
    if (found == moved(numbers + 1)).any():
        raise pa.ArrowInvalid("no day of the Gregorian calendar")
    mask = days.is_null().to_numpy(zero_copy_only=False)
    return pa.array(found.astype(np.int32), mask=mask).view(pa.date32())


def _first_moments(days: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = days.view(pa.int32()).cast(pa.int64())
    return pc.multiply_checked(numbers, pa.scalar(_DAY_MICROSECONDS, pa.int64())).view(pa.timestamp("us"))


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return kind in kinds or bool(pa.types.is_fixed_size_binary(kind))


def _changed(array: pa.Array, change: _Change, wanted: Any, name: str) -> TypedValues:
    import pyarrow as pa

    try:
        return TypedValues(change(array), {})
    except pa.ArrowInvalid:
        bad = list(_misfits(array, change, 0))
    kind = _named(wanted)
    faults = {place: f"{name!r}: {_shown_bytes(array[place])} is no {kind}{_hint(array.type, wanted)}" for place in bad}
    return TypedValues(change(without(array, bad)), faults)


def _misfits(array: pa.Array, change: _Change, start: int) -> Iterator[int]:
    """Yield the places of values that cannot be changed: halves without one are passed over."""
    import pyarrow as pa

    try:
        change(array)
    except pa.ArrowInvalid:
        if len(array) == 1:
            yield start
            return
        half = len(array) // 2
        yield from _misfits(array.slice(0, half), change, start)
        yield from _misfits(array.slice(half), change, start + half)


def _shown_bytes(value: Any) -> str:
    """Return a value as text; a text may have bytes that are none."""
    import pyarrow as pa

    return shown(value.cast(pa.binary()) if _is_bytes(value.type) else value)


def _hint(found: Any, wanted: Any) -> str:
    import pyarrow as pa

    if pa.types.is_string(wanted):
        return ": its bytes are no UTF-8"
    if pa.types.is_timestamp(found) and found.unit == "ns":
        return ", which has microseconds"
    return ""


def _named(kind: Any) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    found: str = from_arrow_type(kind).simpleString()
    return found


# --- nested values ------------------------------------------------------------------------------------------------


def _storage(array: Any) -> pa.Array:
    """Return the plain values of an extension type; the array may have them only."""
    import pyarrow as pa

    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _texts_of_uuids(values: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.array([None if each is None else str(uuid.UUID(bytes=each)) for each in values.to_pylist()], pa.string())


def _after(reading: Reading | None, change: _Change) -> Reading | None:
    return None if reading is None else lambda array: reading(change(array))


def is_list(kind: Any) -> bool:
    """Say whether Arrow's type has elements in order, however they are stored."""
    import pyarrow as pa

    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in (*tests, pa.types.is_list_view, pa.types.is_large_list_view))


def _struct(found: Any, wanted: Any, name: str, is_julian: bool) -> Reading | None:
    places, readings = [], []
    names = [field.name for field in found]
    for field in wanted:
        place = index_of(field.name, names)
        part = (
            None
            if place is None
            else reading_of(found.field(place).type, field.type, f"{name}.{field.name}", is_julian=is_julian)
        )
        if place is None or part is None:
            return None
        places.append(place)
        readings.append(part)

    def read(array: pa.Array) -> TypedValues:
        import pyarrow as pa

        parts = array.flatten()
        taken = [reading(parts[place]) for place, reading in zip(places, readings, strict=True)]
        values = pa.StructArray.from_arrays([part.values for part in taken], fields=list(wanted), mask=array.is_null())
        return TypedValues(values, {place: why for part in taken for place, why in part.faults.items()})

    return read


def index_of(name: str, names: Sequence[str]) -> int | None:
    """Return the place of a declared name; upper and lower case are equal. None if no name, or several, are it."""
    places = [place for place, each in enumerate(names) if each.casefold() == name.casefold()]
    return places[0] if len(places) == 1 else None


def _list(found: Any, wanted: Any, name: str, is_julian: bool) -> Reading | None:
    reading = reading_of(found.value_type, wanted.value_type, f"{name}[]", is_julian=is_julian)
    if reading is None:
        return None

    def read(array: pa.Array) -> TypedValues:
        import pyarrow as pa

        offsets = _offsets(array)
        taken = reading(array.flatten())
        values = pa.ListArray.from_arrays(pa.array(offsets), taken.values, type=wanted, mask=array.is_null())
        return TypedValues(values, _of_parents(taken.faults, offsets))

    return read


def _map(found: Any, wanted: Any, name: str, is_julian: bool) -> Reading | None:
    keys_of = reading_of(found.key_type, wanted.key_type, f"{name}.key", is_julian=is_julian)
    items_of = reading_of(found.item_type, wanted.item_type, f"{name}.value", is_julian=is_julian)
    if keys_of is None or items_of is None:
        return None

    def read(array: pa.Array) -> TypedValues:
        import pyarrow as pa

        entries = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
        offsets, (keys, items) = _offsets(entries), entries.flatten().flatten()
        taken = keys_of(keys)
        if taken.faults:  # a map has no null among its keys: the whole map is null in their place
            bad = _of_parents(taken.faults, offsets)
            others = read(without(array, list(bad)))
            return TypedValues(others.values, {**others.faults, **bad})
        values = items_of(items)
        made = pa.MapArray.from_arrays(
            pa.array(offsets), taken.values, values.values, type=wanted, mask=array.is_null()
        )
        return TypedValues(made, _of_parents(values.faults, offsets))

    return read


def _offsets(lists: Any) -> np.ndarray[Any, Any]:
    """Return where each list begins among the elements of all, and the end of the last one."""
    import numpy as np
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def _of_parents(faults: Mapping[int, str], offsets: np.ndarray[Any, Any]) -> dict[int, str]:
    """Return the faults of elements as those of their lists, the first of each."""
    import numpy as np

    found: dict[int, str] = {}
    for place, why in faults.items():
        found.setdefault(int(np.searchsorted(offsets, place, side="right")) - 1, why)
    return found


def without(array: pa.Array, places: Sequence[int]) -> pa.Array:
    """Return an array with null in some places."""
    import numpy as np
    import pyarrow as pa

    kept = np.arange(len(array))
    is_null = np.zeros(len(array), bool)
    is_null[list(places)] = True
    return array.take(pa.array(kept, mask=is_null))


def _leaves(array: Any, rows: np.ndarray[Any, Any]) -> Iterator[tuple[pa.Array, np.ndarray[Any, Any]]]:
    import numpy as np
    import pyarrow as pa

    if pa.types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    if pa.types.is_struct(array.type):
        for part in array.flatten():
            yield from _leaves(part, rows)
    elif is_list(array.type):
        yield from _leaves(array.flatten(), np.repeat(rows, np.diff(_offsets(array))))
    else:
        yield array, rows
