"""Times as bytes in a checkpoint, with their zone and fold: an offset alone would change computations with them.

A time without a zone, or with a fixed offset that has no name of its own, is its ISO 8601 text, as in all versions. Any
other time is such a text without an offset, its fold, the kind of its zone, and the name of the zone in that kind.
"""

from __future__ import annotations

import datetime as dt
import importlib
import zoneinfo
from typing import Any, Final

from drainmark.jobs.errors.operator_code import CheckpointUnreadable

PLAIN: Final = b"w"
ZONED: Final = b"W"

_MICROSECOND = dt.timedelta(microseconds=1)


def spelled_datetime(value: dt.datetime) -> tuple[bytes, bytes]:
    """Return the tag and the content of a time.

    Raises:
        TypeError: its zone is no `zoneinfo.ZoneInfo` with a key, no `datetime.timezone` and none of pytz, or the zone
            that is found by its name gives another time.
    """
    zone = value.tzinfo
    if value.fold == 0 and (zone is None or (type(zone) is dt.timezone and _is_nameless(zone))):
        return PLAIN, value.isoformat().encode()
    text = " ".join(_pieces(value)).encode()
    try:
        found = zoned_datetime(text)
    except CheckpointUnreadable as error:
        raise _refused(value) from error
    if _all_of(found) != _all_of(value) or not (found.tzinfo is zone or type(zone) is dt.timezone):
        raise _refused(value)
    return ZONED, text


def zoned_datetime(content: bytes) -> dt.datetime:
    """Return the time from a content with the tag `ZONED`.

    Raises:
        CheckpointUnreadable: this machine does not know its zone.
    """
    text, fold, kind, name = content.decode().split(" ", 3)
    time = dt.datetime.fromisoformat(text)
    try:
        if kind == "z":
            time = time.replace(tzinfo=zoneinfo.ZoneInfo(name))
        elif kind == "o":
            offset, _, named = name.partition(" ")
            time = time.replace(tzinfo=dt.timezone(int(offset) * _MICROSECOND, named))
        elif kind == "p":
            time = _pytz().timezone(name).fromutc(time)
        elif kind == "m":
            time = time.replace(tzinfo=_pytz().FixedOffset(int(name)))
        elif kind != "-":
            raise LookupError(kind)
    except (LookupError, ImportError) as error:
        raise CheckpointUnreadable(
            f"a checkpoint holds a time of the zone {kind} {name!r}, unknown here", remedy="install tzdata, and pytz"
        ) from error
    return time.replace(fold=int(fold))


def _pieces(value: dt.datetime) -> tuple[str, str, str, str]:
    """Return the text of a time, its fold, the kind of its zone and the name of the zone."""
    zone: Any = value.tzinfo
    naive, fold = value.replace(tzinfo=None), str(value.fold)
    if zone is None:
        return naive.isoformat(), fold, "-", ""
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return naive.isoformat(), fold, "z", zone.key
    if type(zone) is dt.timezone:
        return naive.isoformat(), fold, "o", f"{zone.utcoffset(None) // _MICROSECOND} {zone.tzname(None)}"
    if type(zone).__module__.partition(".")[0] == "pytz":
        if zone.zone is None:
            return naive.isoformat(), fold, "m", str(zone.utcoffset(None) // dt.timedelta(minutes=1))
        return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(), fold, "p", zone.zone
    raise _refused(value)


def _is_nameless(zone: dt.timezone) -> bool:
    return zone.tzname(None) == dt.timezone(zone.utcoffset(None)).tzname(None)


def _all_of(value: dt.datetime) -> tuple[object, ...]:
    return value.replace(tzinfo=None), value.fold, value.utcoffset(), value.tzname(), value.dst()


def _pytz() -> Any:
    return importlib.import_module("pytz")  # not required: a handler that writes such times has it


def _refused(value: dt.datetime) -> TypeError:
    kind = type(value.tzinfo)
    return TypeError(
        f"a checkpoint cannot hold the time {value!r}: its zone, a {kind.__module__}.{kind.__qualname__}, cannot be "
        "named so that it comes back; take a zoneinfo.ZoneInfo"
    )
