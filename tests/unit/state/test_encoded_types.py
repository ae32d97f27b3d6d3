"""Values that a checkpoint accepts come back equal and of the same type; other values are refused (V120)."""

from __future__ import annotations

import array
import collections
import copy
import datetime as dt
import decimal
import enum
import io
import math
import types
import zoneinfo
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import pytz
from dateutil import tz as dateutil_zones
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from drainmark.jobs.errors.operator_code import CheckpointUnreadable
from drainmark.jobs.state.handlers.cow_dict import CowDict
from drainmark.jobs.state.handlers.encoding import decode, encode

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
PYTZ_BERLIN = pytz.timezone("Europe/Berlin")
NAMED = dt.timezone(dt.timedelta(hours=-5, seconds=7), "the mill's own")
AUTUMN = dt.datetime.fromisoformat("2025-10-26T02:30:00.000001")


def written(value: Any) -> bytes:
    pieces: list[bytes] = []
    encode(value, pieces.append)
    return b"".join(pieces)


def back(value: Any) -> Any:
    return decode(io.BytesIO(written(value)).read)


def meaning(time: dt.datetime) -> Any:
    return type(time), time.replace(tzinfo=None), time.fold, time.utcoffset(), time.tzname(), time.dst()


TIMES = {
    "naive": AUTUMN,
    "naive-second": AUTUMN.replace(fold=1),
    "zone": AUTUMN.replace(tzinfo=BERLIN),
    "zone-second": AUTUMN.replace(tzinfo=BERLIN, fold=1),
    "zone-utc": AUTUMN.replace(tzinfo=zoneinfo.ZoneInfo("UTC")),
    "utc": AUTUMN.replace(tzinfo=dt.UTC),
    "offset": AUTUMN.replace(tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
    "offset-second": AUTUMN.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)), fold=1),
    "offset-named": AUTUMN.replace(tzinfo=NAMED),
    "pytz": PYTZ_BERLIN.localize(AUTUMN, is_dst=True),
    "pytz-second": PYTZ_BERLIN.localize(AUTUMN, is_dst=False),
    "pytz-utc": AUTUMN.replace(tzinfo=pytz.utc),
    "pytz-static": AUTUMN.replace(tzinfo=pytz.timezone("Etc/GMT+5")),
    "pytz-offset": AUTUMN.replace(tzinfo=pytz.FixedOffset(-90)),
    "first": dt.datetime.fromisoformat("0001-01-01"),
    "last": dt.datetime.max.replace(tzinfo=BERLIN),
}


@pytest.mark.seed("V120")
@pytest.mark.parametrize("time", TIMES.values(), ids=TIMES)
def test_a_time_comes_back_with_its_zone_and_its_fold(time: dt.datetime) -> None:
    found = back(time)
    assert meaning(found) == meaning(time)
    assert found.tzinfo is time.tzinfo or type(time.tzinfo) is dt.timezone
    if time.year == AUTUMN.year:
        assert meaning(found - dt.timedelta(days=30)) == meaning(time - dt.timedelta(days=30))
    assert meaning(next(iter(back({time: 1})))) == meaning(time)


@pytest.mark.seed("V120")
@given(
    st.datetimes(timezones=st.one_of(st.none(), st.timezones(), st.sampled_from([dt.UTC, NAMED])), allow_imaginary=True)
)
@settings(max_examples=examples(150), deadline=None)
def test_any_time_of_any_zone_comes_back(time: dt.datetime) -> None:
    assert meaning(back(time)) == meaning(time)
    assert back(time).tzinfo == time.tzinfo


@pytest.mark.parametrize(
    ("content", "time"),
    [
        ("2025-10-26T02:30:00.000001", AUTUMN),
        ("2025-10-26T02:30:00.000001+01:00", AUTUMN.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))),
        ("2025-10-26T02:30:00.000001+00:00", AUTUMN.replace(tzinfo=dt.UTC)),
    ],
)
def test_times_of_older_checkpoints_are_read_and_written_as_they_were(content: str, time: dt.datetime) -> None:
    old = b"w" + len(content).to_bytes(8, "big") + content.encode()
    assert meaning(decode(io.BytesIO(old).read)) == meaning(time)
    assert written(time) == old


@pytest.mark.parametrize("zone", ["z Nowhere/Atlantis", "p Nowhere/Atlantis", "? what"])
def test_a_zone_that_this_machine_does_not_know_is_said(zone: str) -> None:
    content = f"2025-10-26T02:30:00 0 {zone}".encode()
    with pytest.raises(CheckpointUnreadable, match="zone"):
        decode(io.BytesIO(b"W" + len(content).to_bytes(8, "big") + content).read)


EXACT = {
    "minus-zero": -0.0,
    "infinite": -math.inf,
    "subnormal": 5e-324,
    "decimal-minus-zero": Decimal("-0.000"),
    "decimal-exponent": Decimal("1E+400"),
    "decimal-zeros": Decimal("1.500"),
    "decimal-long": Decimal("1." + "3" * 60),
    "decimal-infinite": Decimal("-Infinity"),
    "decimal-snan": Decimal("-sNaN123"),
    "timedelta": dt.timedelta(-3, 5, 7),
    "date": dt.date(1, 1, 1),
    "one-true": [1, True, 1.0, Decimal(1)],
    "containers": [(), [], set(), frozenset(), {}, b"", "", (frozenset({(1, "a")}),)],
    "keys": {(1, "a"): {2: 3}, frozenset({1}): 0, None: 1, dt.timedelta(1): 2, Decimal("1.0"): 3},
}


@pytest.mark.seed("V120")
@pytest.mark.parametrize("value", EXACT.values(), ids=EXACT)
def test_a_value_comes_back_as_it_is_spelled(value: Any) -> None:
    assert repr(back(value)) == repr(value)


def test_a_nan_comes_back_bit_by_bit() -> None:
    assert written(back(-math.nan)) == written(-math.nan)
    assert math.copysign(1, back(-math.nan)) == -1


class Text(str):
    __slots__ = ()


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


class Point(NamedTuple):
    x: int


class OwnZone(zoneinfo.ZoneInfo):
    pass


def made_twice() -> list[Any]:
    inside: list[Any] = []
    inside.append((inside,))
    return inside


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


REFUSED = {
    "timestamp": pd.Timestamp("2025-01-01 00:00:00.000000001"),
    "nat": pd.NaT,
    "timedelta": pd.Timedelta(1, "ns"),
    "numpy-float": np.float64(1.5),
    "numpy-int": np.int64(1),
    "numpy-text": np.str_("a"),
    "numpy-bytes": np.bytes_(b"a"),
    "numpy-time": np.datetime64("2025-01-01"),
    "numpy-array": np.array([1]),
    "time": dt.time(1, 2),
    "text": Text("a"),
    "int-enum": Number.ONE,
    "text-enum": Word.ONE,
    "named-tuple": Point(1),
    "default-dict": collections.defaultdict(int),
    "counter": collections.Counter("a"),
    "ordered-dict": collections.OrderedDict(a=1),
    "proxy": types.MappingProxyType({}),
    "deque": collections.deque([1]),
    "range": range(3),
    "array": array.array("q", [1]),
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "keys": {}.keys(),
    "complex": 1j,
    "zone-of-a-library": AUTUMN.replace(tzinfo=dateutil_zones.gettz("Europe/Berlin")),
    "zone-subclass": AUTUMN.replace(tzinfo=OwnZone("Europe/Berlin")),
    "zone-uncached": AUTUMN.replace(tzinfo=zoneinfo.ZoneInfo.no_cache("Europe/Berlin")),
    "zone-not-localised": AUTUMN.replace(tzinfo=PYTZ_BERLIN),
    "nan-key": {math.nan: 1},
    "nan-in-a-key": {(1, frozenset({math.nan})): 1},
    "nan-in-a-set": {Decimal("NaN")},
    "itself": made_twice(),
    "deep": nested(151),
}


@pytest.mark.seed("V120")
@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    for each in (value, [value], {"a": value}, (value,)):
        with pytest.raises(TypeError, match="a checkpoint cannot hold"):
            written(each)


def test_what_is_as_deep_as_it_may_be_comes_back() -> None:
    assert repr(back(nested(150))) == repr(nested(150))


@pytest.mark.seed("V58", "V120")
def test_what_a_map_froze_comes_back_as_dicts_lists_and_sets() -> None:
    plain = {"a": {"b": [1, {2}, ({3: 4},)]}, "t": AUTUMN.replace(tzinfo=BERLIN)}
    map_ = CowDict(copy.deepcopy(plain))
    for value in (map_, map_.freeze()):
        assert repr(back(value)) == repr(plain)
    with pytest.raises(TypeError, match="CowDict cannot see changes inside a Row"):
        map_["row"] = collections.namedtuple("Row", "items")([1])


def test_the_context_of_decimals_changes_nothing() -> None:
    with decimal.localcontext(prec=2):
        assert repr(back(Decimal("1.23456"))) == "Decimal('1.23456')"
