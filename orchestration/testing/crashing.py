"""A crash inside user code: once, at a given row, to test how an application recovers from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drainmark.jobs.errors import UsageError
from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_suspended = False


def crash_on(
    mark: Path, *, where: str = "true", nth: int = 1, action: Literal["raise", "kill"] = "raise"
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that passes rows on unchanged and fails once, while Spark computes them.

    Put it into any function of the application under test: `return crash(dm.select(lines, "value"))`; in the function
    of a source, the source crashes.

    Args:
        mark: a folder that counts, across processes, how often the condition was met; it must not exist yet.
        where: SQL condition on the rows.
        nth: number, from 1, of the row that fails among those that meet it, in the order in which Spark computes them.
        action: "raise" fails the task; "kill" is SIGKILL to the process that planned it (on this machine).

    Raises:
        UsageError: `mark` exists, or `nth` is below 1.
    """
    if nth < 1 or mark.exists():
        raise UsageError(f"crash_on takes a new folder and a number from 1, not {mark} and {nth}")
    mark.mkdir(parents=True)
    folder = str(mark)

    def crash(rows: DataFrame) -> DataFrame:
        if _suspended or (mark / str(nth)).exists():
            return rows
        victim = os.getpid() if action == "kill" else 0

        def passes(is_met: bool) -> bool:
            if is_met and _count(folder, nth) == nth:
                if victim:
                    os.kill(victim, signal.SIGKILL)
                msg = f"crash_on: row {nth} where {where}"
                raise RuntimeError(msg)
            return True

        # The lambda hides the type hints of `passes`: for these, Spark would warn and choose another kind of UDF.
        return rows.where(F.udf(lambda is_met: passes(is_met), "boolean")(F.expr(where)))  # noqa: PLW0108

    return crash


@contextmanager
def suspended() -> Iterator[None]:
    """Disable `crash_on` for rows that are planned in the block: trying functions on a few rows is no run."""
    global _suspended  # noqa: PLW0603 - the functions under test are called by the engine, with rows and nothing else
    _suspended = True
    try:
        yield
    finally:
        _suspended = False


def _count(folder: str, most: int) -> int:
    """Return how many rows were counted so far, this one included; the count stops at `most + 1`."""
    for number in range(1, most + 1):
        try:
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return number
    return most + 1
