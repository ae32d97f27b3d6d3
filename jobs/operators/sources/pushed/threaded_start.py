"""`ThreadedStart`: a start written in Python; its own thread submits rows and asks for states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from drainmark.jobs.operators.handler import digest_of_class
from drainmark.jobs.operators.sources.pushed.replayable_start import ReplayableStart
from drainmark.jobs.state.handlers.state_handler import StartHandler, callbacks_missing

__all__ = ["StartHandler", "ThreadedStart"]


@dataclass(frozen=True, kw_only=True)
class ThreadedStart(ReplayableStart):
    """A start with the rows that a `StartHandler` submits from its thread, kept until no replay can need them.

    The thread lives in the process of a run that stays: `drainmark run --for`, or a lingering run that a sensor
    started, which goes on as long as the thread does. Other runs process the cuts and do not call the handler; so a
    region to which Dagster never gives a lingering run is refused. Each cut is a trigger, so the handler decides when
    a state is established (`make_consistent`). In a periodic region a state takes the cuts that are there at its tick,
    so `make_consistent` waits for the tick. All rows are lost with the disk of DRAINMARK_HOME. They are kept as JSON,
    which lacks NaN and the infinities: submit null instead, since a cut with such a number fails the run.

    Args:
        handler: the class.
        schema: DDL of the rows that it submits.
        rows: number of rows after which a cut is made even if the handler did not ask for one.
        seconds: a cut is made when the oldest row that is not in a cut has this age.
        purge: as for `ReplayableStart`.

    Example:
        class Clock(dm.StartHandler):
            def run(self, context):
                while not context.wait(60.0):
                    with context.permit(), self.lock:
                        context.submit(pa.table({"at": [dt.datetime.now(dt.UTC)]}))

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.ThreadedStart(handler=Clock, schema="at timestamp", seconds=60))
        def minutes(scanned):
            return scanned
    """

    has_thread: ClassVar[bool] = True

    handler: type[StartHandler]

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        yield from super().problems(trigger)
        if self.buffer is not None:
            yield "BUFFER", "what a thread submits is kept in DRAINMARK_HOME", "leave buffer= out"
        kind = self.handler
        if not (isinstance(kind, type) and issubclass(kind, StartHandler)):
            yield "START_CLASS", f"{kind!r} is no dm.StartHandler", "derive the class from it"
            return
        if kind.run is StartHandler.run:
            yield "START_CLASS", f"{kind.__name__} has no run(self, context)", "write one: it is the thread"
        if missing := callbacks_missing(kind):
            yield "START_CALLBACKS", f"{kind.__name__} lacks {', '.join(missing)}", "write them, too"

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "class": digest_of_class(self.handler)}
