"""Rows that a start's thread submitted since its last cut, and when the next cut is due."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors.operator_code import PermitViolation
from drainmark.jobs.runtime.hosting.callbacks import as_declared

if TYPE_CHECKING:
    import pyarrow as pa

_IDLE_SECONDS = 3600.0


@dataclass(slots=True, kw_only=True)
class Submissions:
    """The rows that are submitted and not cut; a cut is due by number of rows, by time, or on request.

    Attributes:
        schema: of the rows.
        rows, seconds: as of `ThreadedStart`.
    """

    schema: pa.Schema
    rows: int
    seconds: float
    _sent: list[pa.Table] = field(default_factory=list)
    _count: int = 0
    _since: float = 0.0
    _is_asked: bool = False
    _is_over: bool = False
    _wake: threading.Condition = field(default_factory=threading.Condition)

    def send(self, rows: pa.Table) -> None:
        """Take rows.

        Raises:
            ValueError: their columns are not the declared ones.
            PermitViolation: the run is over.
        """
        declared = as_declared(self.schema, rows)
        with self._wake:
            if self._is_over:
                raise PermitViolation("the run is over: nothing is taken any more", remedy="end the thread")
            if not self._count:
                self._since = world.monotonic()
            self._sent.append(declared)
            self._count += rows.num_rows
            self._wake.notify_all()

    def ask(self) -> None:
        """Make a cut due now."""
        with self._wake:
            self._is_asked = True
            self._wake.notify_all()

    def close(self) -> None:
        """Take no more rows, and make no cut due any more."""
        with self._wake:
            self._is_over = True
            self._wake.notify_all()

    def take(self) -> pa.Table:
        """Return the submitted rows; this answers all requests for a cut until now."""
        import pyarrow as pa

        with self._wake:  # a thread that asked before gave back its permit before the gate closed: its rows are here
            self._is_asked = False
            sent, self._sent, self._count = self._sent, [], 0
        return pa.concat_tables([self.schema.empty_table(), *sent])

    def await_due(self) -> bool:
        """Wait until a cut is due; return False when the run is over."""
        with self._wake:
            while not self._is_over:
                left = self._since + self.seconds - world.monotonic() if self._count else _IDLE_SECONDS
                if self._is_asked or left <= 0 or self._count >= self.rows:
                    return True
                self._wake.wait(left)
        return False
