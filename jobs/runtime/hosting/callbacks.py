"""Calls of a handler's callbacks by the runtime: under its lock, within a time-out, blaming the author's class."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, DrainTimeout, OperatorFailed, ResetTimeout
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.runtime.hosting.region_context import RegionContext
from drainmark.jobs.state.handlers.locks import OperatorLock, held
from drainmark.jobs.state.handlers.state_handler import StateHandler, note_initial_state

if TYPE_CHECKING:
    import pyarrow as pa

_REMEDY = "look for what holds a permit or the operator's lock, or raise the time-out in @consistent"
SOON_SECONDS = 0.5  # in which who works through ids gives the lock back in between, or who waits says for what


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """How one handler is called.

    Attributes:
        kind: of the operator, as an error names it: `operator` or `start`.
        waits: who an error says to wait: the region, or the operator in it.
    """

    handler: StateHandler
    context: RegionContext
    kind: str
    waits: str

    def bind(self) -> None:
        """Show the handler its context, before anything is called."""
        note_initial_state(self.handler)
        self.context.gate.lock = self.handler.lock
        with suppress(AttributeError):  # a class with slots gets it as an argument alone
            self.handler.context = self.context  # type: ignore[attr-defined]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the operator's lock.

        Raises:
            DrainTimeout: it was not given back.
        """
        seconds = self.context.drain_timeout
        with held(self.handler.lock, seconds) as is_mine:
            if not is_mine:
                raise self.late(DrainTimeout, "the lock was not given back", seconds)
            yield

    @contextmanager
    def locked_until(
        self, until: float, late: str, lock: threading.Lock | OperatorLock | None = None
    ) -> Iterator[None]:
        """Hold a lock, the operator's by default, for a reset.

        Args:
            until: monotonic time.
            late: what happened when it is not to be had.

        Raises:
            ResetTimeout: it was not given back.
        """
        with held(lock or self.handler.lock, max(0.0, until - time.monotonic())) as is_mine:
            if not is_mine:
                raise self.late(ResetTimeout, late, self.context.reset_timeout)
            yield

    @contextmanager
    def blaming(self, callback: str) -> Iterator[None]:
        """Blame the author's class for what a callback raises where no operator is being run."""
        try:
            yield
        except (DrainmarkError, InjectedFailure, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise OperatorFailed(
                f"{self.kind} {self.context.operator!r} failed in {callback}(): {type(error).__name__}: {error}",
                operator=self.context.operator,
                location=self.context.location,
                remedy="fix the class, then: drainmark resume REGION",
            ) from error

    def late(self, error: type[DrainmarkError], what: str, seconds: float) -> DrainmarkError:
        """Return an error that says what did not happen within a time-out."""
        return error(
            f"{self.waits}: {what} within {seconds:g} s",
            operator=self.context.operator,
            location=self.context.location,
            remedy=_REMEDY,
        )


def as_declared(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Return submitted rows in the order and types of the declared columns.

    Raises:
        ValueError: they have other columns.
    """
    lacking = [name for name in schema.names if name not in rows.column_names]
    if lacking or rows.num_columns != len(schema.names):
        raise ValueError(f"it declares the columns {schema.names}, and gave {rows.column_names}")
    return rows.select(schema.names).cast(schema)
