"""One `StartHandler` in the process of a run that stays: its thread, its cuts, its resets.

A cut is the drain of a start: rows and state of one moment, sealed together in the start's buffer. It has no sequence
id yet: the region's scan finds it as a trigger like any other, and the group that takes it gives it an id.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, DrainTimeout, ResetTimeout
from drainmark.jobs.errors.operator_code import PermitViolation, ResetWanted
from drainmark.jobs.frames.tags import arrow_schema
from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.operators.sources.pushed.push_buffer import PushBuffer
from drainmark.jobs.operators.sources.pushed.threaded_start import ThreadedStart
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.runtime.hosting.callbacks import SOON_SECONDS, Callbacks, blaming
from drainmark.jobs.runtime.hosting.region_context import NO_ID, RegionContext, context_of
from drainmark.jobs.runtime.hosting.submissions import Submissions
from drainmark.jobs.state.handlers.checkpoint import CheckpointWriter, packed, unpacked
from drainmark.jobs.state.handlers.state_handler import StartHandler

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.runtime.analysis.blueprint import Blueprint
    from drainmark.jobs.runtime.outside import Outside

_END_SECONDS = 5.0
_UNWINDING_SECONDS = 5.0
"""The longest time for which an error that left a permit may be on its way out of `run`; later it was caught."""


@dataclass(slots=True, kw_only=True)
class StartHost:
    """The host of one start.

    Attributes:
        context: the handler's view of the region; `of` sets its gate and its functions `send` and `want_reset`.
        submissions: the rows that it submits.
        failure: the error that ended its thread or its cuts; the run must end with it.
    """

    handler: StartHandler
    context: RegionContext
    callbacks: Callbacks
    submissions: Submissions
    buffer: PushBuffer
    failure: BaseException | None = None
    _newest: int = 0
    _states: dict[int, int] = field(default_factory=dict)
    _is_fresh: bool = True
    _is_over: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _cutting: threading.Lock = field(default_factory=threading.Lock)
    _cutter: threading.Thread | None = None
    _own: threading.Thread | None = None

    @classmethod
    def of(
        cls, handler: StartHandler, context: RegionContext, *, submissions: Submissions, buffer: PushBuffer
    ) -> StartHost:
        callbacks = Callbacks(handler=handler, context=context, kind="start", waits=context.region)
        host = cls(handler=handler, context=context, callbacks=callbacks, submissions=submissions, buffer=buffer)
        callbacks.bind()
        context.gate.ask, context.send, context.want_reset = submissions.ask, submissions.send, host._fail
        return host

    # --- for the run -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Bring the handler to its newest cut, and start its thread.

        Rows that are cut and not committed are pending: the region replays them. Rows that are not cut are gone.

        Raises:
            ResetTimeout: a thread kept its permit, or the lock; a cut, or the handler's own reset, did not end.
            CheckpointUnreadable: see `Checkpoint.read`.
        """
        seconds = self.context.reset_timeout
        if not self._cutting.acquire(timeout=seconds):
            raise self.callbacks.late(ResetTimeout, "a cut did not end", seconds)
        try:
            self._reset(seconds)
        finally:
            self._cutting.release()
        self._begin()

    def check(self) -> None:
        """Raise the error of the handler's thread or of a cut: the run ends, and the next claim counts an attempt."""
        if self.failure is not None:
            raise self.failure

    @property
    def is_running(self) -> bool:
        """Say whether it has a thread in `run`."""
        return self._own is not None

    def completed(self, sequence_id: int, cut: int) -> None:
        """Tell the handler that the region has committed an id, with all cuts up to `cut` (inclusive)."""
        try:
            with self.callbacks.locked(), self.callbacks.blaming("region_checkpointed"):
                self.context.committed_cut = max(cut, self.context.committed_cut)
                self.handler.region_checkpointed(sequence_id)
        except DrainmarkError as error:  # the state is established all the same; the run ends with it
            self._fail(error)
        with self._guard:
            done = [number for number in self._states if number <= cut]
            state = max((self._states.pop(number) for number in done), default=0)
        self.context.gate.completed(state)

    def retire(self, cut: int) -> None:
        """Tell the handler to retire its checkpoints up to a cut (inclusive), except the newest: a reset needs that."""
        number = min(cut, self._newest - 1)
        if number > 0:
            with self.callbacks.locked(), self.callbacks.blaming("retire_checkpoint"):
                self.handler.retire_checkpoint(number)

    def close(self) -> None:
        """Stop permits and cuts, and wait for the threads; a thread that asks for a permit gets an error."""
        with self._guard:
            self._is_over = True
        self.submissions.close()
        self.context.gate.close()
        for thread in (self._cutter, self._own):
            if thread is not None:
                thread.join(_END_SECONDS)

    # --- cuts --------------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Make a cut: drain, freeze, checkpoint and seal. No cut is made of a permit that an error ended."""
        gate, seconds = self.context.gate, self.context.drain_timeout
        if not gate.drain(self._drain, seconds):
            raise self.callbacks.late(DrainTimeout, "a permit was not given back", seconds)
        if not self._may_cut():  # it ended, or failed, while the gate waited for its permit
            gate.resume()
            return
        number = self._newest + 1
        writer = CheckpointWriter(sequence_id=number)
        with self.callbacks.locked():
            rows = self.submissions.take()
            if self.handler.non_blocking:
                with self.callbacks.blaming("prepare_for_non_blocking_checkpoint"):
                    self.handler.prepare_for_non_blocking_checkpoint(number)
            else:
                self.callbacks.written(writer)
            self.context.sequence_id, self.context.reset_attempt = number + 1, NO_ID
        if not self.handler.non_blocking:
            self._seal(number, rows, writer)
            gate.resume()
            return
        with self._guard:  # the gate counts this state when the flow resumes, before the region knows the cut
            self._states[number] = gate.resumed + 1
        gate.resume()
        self.callbacks.written(writer)
        self._seal(number, rows, writer)

    def _seal(self, number: int, rows: pa.Table, writer: CheckpointWriter) -> None:
        with self._guard:
            self._states.setdefault(number, self.context.gate.resumed + 1)
        with self.callbacks.blaming("submit"):
            is_mine = self.buffer.seal_with(number, rows.to_pylist(maps_as_pydicts="strict"), packed(writer))
        if is_mine:
            self._newest = number
        else:  # an owner that had been stopped sealed this number first: its cut counts, and ours is made again
            self._reset(self.context.reset_timeout)
            self._begin()

    def _drain(self) -> None:
        with self.callbacks.locked(), self.callbacks.blaming("drain"):
            self.handler.drain()

    # --- resets ------------------------------------------------------------------------------------------------------

    def _reset(self, seconds: float) -> None:
        until = world.monotonic() + seconds
        if not self.context.gate.stop(seconds):
            raise self.callbacks.late(ResetTimeout, "a permit was not given back", seconds)
        self.callbacks.restored(lambda: self._restore_until(until), until, "start-reset")
        self.context.gate.resume(after_reset=True)

    def _restore_until(self, until: float) -> None:
        with self.callbacks.locked_until(until, "the lock was not given back"):
            self._restore()

    def _restore(self) -> None:
        self.submissions.take()
        self._newest, state = self.buffer.newest_state()
        with self._guard:
            self._states.clear()
        self.callbacks.restore(unpacked(state) if state is not None else None, is_fresh=self._is_fresh)
        self._is_fresh = False
        self.context.sequence_id = self._newest + 1
        self.context.reset_attempt += 1

    # --- threads -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_over or self.failure is not None:
            return
        name = f"start {self.context.operator}"
        if self._cutter is None:
            self._cutter = threading.Thread(target=self._cut_when_due, daemon=True, name=f"{name} cuts")
            self._cutter.start()
        with self._guard:
            if self._own is None:
                self._own = threading.Thread(target=self._run, daemon=True, name=name)
                self._own.start()

    def _run(self) -> None:
        """Call `run`; call it again if a reset came meanwhile, which dropped rows that it had submitted."""
        is_over = False
        while not is_over:
            resets = self.context.gate.resets
            is_over = not self._has_run()
            with self._guard:  # a later reset sees that there is no thread, and starts one
                if is_over or self._is_over or self.context.gate.resets == resets:
                    is_over, self._own = True, None

    def _has_run(self) -> bool:
        """Call `run`; return False if it failed."""
        try:
            with self.callbacks.blaming("run"):
                self.handler.run(self.context)
        except ResetWanted:
            return False  # `want_reset` has noted it
        except BaseException as error:
            if not (self._is_over and isinstance(error, PermitViolation)):
                self._fail(error)
            return False
        self.submissions.ask()
        return True

    def _cut_when_due(self) -> None:
        while self.submissions.await_due():
            with self._cutting:
                try:
                    if self._may_cut():
                        self._cut()
                except BaseException as error:
                    if not self._is_over:
                        self._fail(error)
                    return
            if not self._may_cut():
                if self.failure is not None:
                    return
                world.sleep(SOON_SECONDS)

    def _may_cut(self) -> bool:
        """Say whether rows and state fit together, as far as the ends of the thread's permits tell."""
        is_ending = self._is_over or self.failure is not None
        return not is_ending and not self.context.gate.is_torn(_UNWINDING_SECONDS)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error


def start_hosts(blueprint: Blueprint, outside: Outside, attempts: int) -> dict[str, StartHost]:
    """Return a host with a new handler for each threaded start of a region.

    Args:
        attempts: see `context_of`.

    Raises:
        OperatorFailed: a class makes no handler.
    """
    from pyspark.sql.types import StructType

    hosts = {}
    for start in (each for each in blueprint.region.starts if isinstance(each, SlicedSource)):
        name, reads = start.name, start.reads
        if not isinstance(reads, ThreadedStart):
            continue
        context = context_of(start, blueprint, attempts)
        context.is_trigger_operator = blueprint.region.parameters.trigger == TriggerKind.OPERATOR_DRIVEN
        schema = arrow_schema(StructType.fromDDL(reads.schema))
        with blaming("start", context, "__init__"):
            handler = reads.handler()
        hosts[name] = StartHost.of(
            handler,
            context,
            submissions=Submissions(schema=schema, rows=reads.rows, seconds=reads.seconds),
            buffer=PushBuffer(outside.access.buffer(name), rows=reads.rows, seconds=reads.seconds),
        )
    return hosts
