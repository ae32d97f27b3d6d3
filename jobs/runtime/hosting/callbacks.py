"""The runtime's calls of a handler's callbacks: under its lock, within a time-out, with errors that name its class."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, DrainTimeout, OperatorFailed, ResetTimeout
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.runtime.hosting.region_context import RegionContext
from drainmark.jobs.state.handlers.checkpoint import CheckpointReader, CheckpointWriter
from drainmark.jobs.state.handlers.permits import OperatorLock, held
from drainmark.jobs.state.handlers.state_handler import StateHandler, note_initial_state
from drainmark.jobs.world import Answer

if TYPE_CHECKING:
    import pyarrow as pa

_REMEDY = "find the code that keeps a permit or the operator's lock, or raise the time-out in @consistent"
SOON_SECONDS = 0.5  # enough to get the lock between two ids, or for an inner wait to raise its more exact error


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The calls of one handler.

    Attributes:
        kind: of the operator, for errors: `operator` or `start`.
        waits: the subject of the message of a time-out: the region of a start, or the entry of an operator.
    """

    handler: StateHandler
    context: RegionContext
    kind: str
    waits: str

    def bind(self) -> None:
        """Give the handler its context, before any callback is called."""
        with self.blaming("__init__"):
            note_initial_state(self.handler)
        self.context.gate.lock = self.handler.lock
        with suppress(AttributeError):  # a class with slots gets it only as an argument
            self.handler.context = self.context  # type: ignore[attr-defined]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the operator's lock.

        Raises:
            DrainTimeout: another thread did not release it in time.
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
            late: text of the error if the lock is not available by then.

        Raises:
            ResetTimeout: another thread did not release it in time.
        """
        with held(lock or self.handler.lock, max(0.0, until - world.monotonic())) as is_mine:
            if not is_mine:
                raise self.late(ResetTimeout, late, self.context.reset_timeout)
            yield

    def blaming(self, callback: str) -> AbstractContextManager[None]:
        """Blame the author's class for errors of a callback that is called outside of an operator's step."""
        return blaming(self.kind, self.context, callback)

    def written(self, writer: CheckpointWriter) -> CheckpointWriter:
        """Let the handler write a checkpoint; return the finished writer."""
        with self.blaming("checkpoint"):
            self.handler.checkpoint(writer)
        writer.finish()
        return writer

    def restore(self, checkpoint: CheckpointReader | None, *, is_fresh: bool) -> None:
        """Bring the handler to a checkpoint, or, unless it is new, to its initial state."""
        if checkpoint is not None:
            with self.blaming("reset"):
                self.handler.reset(checkpoint)
        elif not is_fresh:
            with self.blaming("reset_to_initial_state"):
                self.handler.reset_to_initial_state()

    def restored(self, restore: Callable[[], None], until: float, thread: str) -> None:
        """Call what restores the handler, in a thread of that name.

        Args:
            until: monotonic time.

        Raises:
            ResetTimeout: it does not return in time.
        """
        answer = Answer(restore, thread)
        if not answer.wait(max(0.0, until - world.monotonic()) + SOON_SECONDS):
            raise self.late(ResetTimeout, "reset() did not return", self.context.reset_timeout)
        answer.get()

    def late(self, error: type[DrainmarkError], what: str, seconds: float) -> DrainmarkError:
        """Return an error that says that `what` happened within a time-out, for example "a cut did not end"."""
        return error(
            f"{self.waits}: {what} within {seconds:g} s",
            operator=self.context.operator,
            location=self.context.location,
            remedy=_REMEDY,
        )


@contextmanager
def blaming(kind: str, context: RegionContext, callback: str) -> Iterator[None]:
    """Blame the author's class for errors of a callback.

    Args:
        kind: as in `Callbacks`.
    """
    try:
        yield
    except (DrainmarkError, InjectedFailure, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise OperatorFailed(
            f"{kind} {context.operator!r} failed in {callback}(): {type(error).__name__}: {error}",
            operator=context.operator,
            location=context.location,
            remedy="fix the class",
        ) from error


def as_declared(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Return submitted rows in the order and types of the declared columns.

    Raises:
        ValueError: they have other columns.
    """
    lacking = [name for name in schema.names if name not in rows.column_names]
    if lacking or rows.num_columns != len(schema.names):
        raise ValueError(f"it declares the columns {schema.names}, and gave {rows.column_names}")
    return rows.select(schema.names).cast(schema)
