"""Times in the form in which an operator gives them."""

from __future__ import annotations

import datetime as dt

from drainmark.jobs.errors import UsageError


def moment(text: str | None, option: str, *, to_its_end: bool = False) -> dt.datetime | None:
    """Return a time given as ISO-8601; without an offset it is UTC.

    Args:
        to_its_end: a time to the second, as tables show it, means the end of that second.

    Raises:
        UsageError: the text is no such time.
    """
    if text is None:
        return None
    try:
        given = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} takes an ISO-8601 time, not {text!r}", remedy="e.g. 2026-01-31T12:00:00Z") from None
    if to_its_end and "." not in text:
        given = given.replace(microsecond=999_999)
    return given if given.tzinfo else given.replace(tzinfo=dt.UTC)
