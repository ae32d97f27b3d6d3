"""One `StartHandler` in the process of a run that stays: its thread, its cuts, its resets (V126–V138, N13–N20, E21).

A cut is the drain of a start: rows and state of one moment, sealed together in the start's buffer. It has no sequence
id yet; the region's scan finds it as a trigger like any other, and the group that takes it says what became of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, DrainTimeout, OperatorFailed, ResetTimeout
from drainmark.jobs.errors.handlers import PermitViolation, ResetWanted
from drainmark.jobs.graph.annotations import Trigger
from drainmark.jobs.operators.sources.push_buffer import PushBuffer
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.operators.sources.threaded_start import ThreadedStart
from drainmark.jobs.runtime.hosting.region_context import NO_ID, RegionContext
from drainmark.jobs.runtime.timeout import in_background
from drainmark.jobs.state.handlers.checkpoint import CheckpointWriter
from drainmark.jobs.state.handlers.locks import held
from drainmark.jobs.state.handlers.single_checkpoints import packed, unpacked
from drainmark.jobs.state.handlers.start_handler import StartHandler
from drainmark.jobs.state.handlers.state_handler import note_initial_state

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.runtime.adapters import Outside
    from drainmark.jobs.runtime.analysis.physical_plan import Blueprint

_REMEDY = "look for what holds a permit or the operator's lock, or raise the time-out in @consistent"
_IDLE_SECONDS = 3600.0
_END_SECONDS = 5.0
_SOON_SECONDS = 0.5  # in which who waits for the lock says so itself


@dataclass(slots=True, kw_only=True)
class StartHost:
    """Hosts one start.

    Attributes:
        make: makes the handler, once.
        context: what the handler is told; its gate and its ways out are bound here.
        schema: of the rows that it submits.
        rows, seconds: as of `ThreadedStart`.
        failure: what ended its thread, or keeps it from being cut: the run is to end with it.
    """

    make: Callable[[], StartHandler]
    context: RegionContext
    schema: pa.Schema
    buffer: PushBuffer
    rows: int
    seconds: float
    handler: StartHandler = field(init=False)
    failure: BaseException | None = None
    _sent: list[pa.Table] = field(default_factory=list)
    _sent_rows: int = 0
    _sent_since: float = 0.0
    _newest: int = 0
    _states: dict[int, int] = field(default_factory=dict)
    _is_fresh: bool = True
    _is_asked: bool = False
    _is_over: bool = False
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _cutting: threading.Lock = field(default_factory=threading.Lock)
    _cutter: threading.Thread | None = None
    _own: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.handler = self.make()
        note_initial_state(self.handler)
        self.context.gate.lock = self.handler.lock
        self.context.gate.ask = self._ask
        self.context.send = self._send
        self.context.want_reset = self._fail
        with suppress(AttributeError):  # a class with slots gets it in `run` alone
            self.handler.context = self.context  # type: ignore[attr-defined]

    # --- for the run -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Bring the handler to its newest cut, and have its thread run (N5, N11, V105).

        What is cut and not committed is pending: the region replays it. What is submitted and not cut is gone.

        Raises:
            ResetTimeout: a thread kept its permit, or the lock; a cut, or the handler's own reset, did not end (V37).
            CheckpointUnreadable: see `Checkpoint.read`.
        """
        seconds = self.context.reset_timeout
        if not self._cutting.acquire(timeout=seconds):
            raise self._late(ResetTimeout, "a cut did not end", seconds)
        try:
            self._reset(seconds)
        finally:
            self._cutting.release()
        self._begin()

    def check(self) -> None:
        """Raise what failed in the handler's thread or in a cut: the run ends, and the next claim counts an attempt."""
        if self.failure is not None:
            raise self.failure

    @property
    def is_running(self) -> bool:
        """Is its thread in `run`?"""
        return self._own is not None

    def completed(self, sequence_id: int, cut: int) -> None:
        """Tell that every operator of the region has the state of an id, which covers the cuts up to one (N20)."""
        try:
            with self._locked(), self._blaming("region_checkpointed"):
                self.context.committed_cut = max(cut, self.context.committed_cut)
                self.handler.region_checkpointed(sequence_id)
        except DrainmarkError as error:  # the state is established all the same; the run ends with it
            self._fail(error)
        with self._wake:
            done = [number for number in self._states if number <= cut]
            state = max((self._states.pop(number) for number in done), default=0)
        self.context.gate.completed(state)

    def retire(self, through: int) -> None:
        """Tell that no rewind goes back to an id or behind it any more (E17)."""
        with self._locked(), self._blaming("retire_checkpoint"):
            self.handler.retire_checkpoint(through)

    def close(self) -> None:
        """End: no more permits and cuts; threads that ask for one get an error, and end."""
        with self._wake:
            self._is_over = True
            self._wake.notify_all()
        self.context.gate.close()
        for thread in (self._cutter, self._own):
            if thread is not None:
                thread.join(_END_SECONDS)

    # --- cuts --------------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Drain, freeze, checkpoint and seal (N13, N14, V130, V131)."""
        gate, seconds = self.context.gate, self.context.drain_timeout
        if not gate.drain(self._drain, seconds):
            raise self._late(DrainTimeout, "a permit was not given back", seconds)
        number = self._newest + 1
        writer = CheckpointWriter(sequence_id=number)
        with self._locked():
            rows = self._taken()
            if self.handler.non_blocking:
                with self._blaming("prepare_for_non_blocking_checkpoint"):
                    self.handler.prepare_for_non_blocking_checkpoint(number)
            else:
                self._write(writer)
            self.context.sequence_id, self.context.reset_attempt = number + 1, NO_ID
        if not self.handler.non_blocking:
            self._seal(number, rows, writer)
            gate.resume()
            return
        with self._wake:  # a state that counts as the flow goes on, before it is known to the region
            self._states[number] = gate.resumed + 1
        gate.resume()
        self._write(writer)
        self._seal(number, rows, writer)

    def _seal(self, number: int, rows: pa.Table, writer: CheckpointWriter) -> None:
        with self._wake:
            self._states.setdefault(number, self.context.gate.resumed + 1)
        with self._blaming("submit"):
            is_mine = self.buffer.seal_with(number, rows.to_pylist(maps_as_pydicts="strict"), packed(writer))
        if is_mine:
            self._newest = number
        else:  # by an owner that was stopped and has woken: its cut counts, and what it has not seen is made again
            self._reset(self.context.reset_timeout)
            self._begin()

    def _drain(self) -> None:
        with self._locked(), self._blaming("drain"):
            self.handler.drain()

    def _write(self, writer: CheckpointWriter) -> None:
        with self._blaming("checkpoint"):
            self.handler.checkpoint(writer)
        writer.finish()

    def _taken(self) -> pa.Table:
        import pyarrow as pa

        with self._wake:  # who asked before now gave its permit back before the gate closed: this cut is its
            self._is_asked = False
            sent, self._sent, self._sent_rows = self._sent, [], 0
        return pa.concat_tables([self.schema.empty_table(), *sent])

    # --- resets ------------------------------------------------------------------------------------------------------

    def _reset(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        if not self.context.gate.stop(seconds):
            raise self._late(ResetTimeout, "a permit was not given back", seconds)
        left = max(0.0, until - time.monotonic())
        restored = in_background(lambda: self._restore_within(left, seconds), "start-reset")
        if wait([restored], left + _SOON_SECONDS).not_done:
            raise self._late(ResetTimeout, "reset() did not return", seconds)
        restored.result()
        self.context.gate.resume(after_reset=True)

    def _restore_within(self, left: float, seconds: float) -> None:
        with held(self.handler.lock, left) as is_mine:
            if not is_mine:
                raise self._late(ResetTimeout, "the lock was not given back", seconds)
            self._restore()

    def _restore(self) -> None:
        self._taken()
        self._newest, state = self.buffer.newest_state()
        with self._wake:
            self._states.clear()
        if state is not None:
            with self._blaming("reset"):
                self.handler.reset(unpacked(state))
        elif not self._is_fresh:
            with self._blaming("reset_to_initial_state"):
                self.handler.reset_to_initial_state()
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
        with self._wake:
            if self._own is None:
                self._own = threading.Thread(target=self._run, daemon=True, name=name)
                self._own.start()

    def _run(self) -> None:
        """Call `run`, and again where a reset came meanwhile: it may have been returning, and what it made is gone."""
        is_over = False
        while not is_over:
            resets = self.context.gate.resets
            is_over = not self._has_run()
            with self._wake:  # a reset that comes later finds that there is no thread, and begins one
                if is_over or self._is_over or self.context.gate.resets == resets:
                    is_over, self._own = True, None

    def _has_run(self) -> bool:
        """Call `run`; False where it failed."""
        try:
            with self._blaming("run"):
                self.handler.run(self.context)
        except ResetWanted:
            return False  # noted already
        except BaseException as error:
            if not (self._is_over and isinstance(error, PermitViolation)):
                self._fail(error)
            return False
        self._ask()
        return True

    def _cut_when_due(self) -> None:
        while self._is_cut_due():
            with self._cutting:
                try:
                    if not self._is_over:
                        self._cut()
                except BaseException as error:
                    if not self._is_over:
                        self._fail(error)
                    return

    def _is_cut_due(self) -> bool:
        """Wait until a cut is due; False when the run is over."""
        with self._wake:
            while not self._is_over:
                left = _IDLE_SECONDS
                if self._sent_rows:
                    left = self._sent_since + self.seconds - time.monotonic()
                if self._is_asked or left <= 0 or self._sent_rows >= self.rows:
                    return True
                self._wake.wait(left)
        return False

    def _ask(self) -> None:
        with self._wake:
            self._is_asked = True
            self._wake.notify_all()

    def _send(self, rows: pa.Table) -> None:
        lacking = [name for name in self.schema.names if name not in rows.column_names]
        if lacking or rows.num_columns != len(self.schema.names):
            raise ValueError(f"it declares the columns {self.schema.names}, and gave {rows.column_names}")
        with self._wake:
            if self._is_over:
                raise PermitViolation("the run is over: nothing is taken any more", remedy="end the thread")
            if not self._sent_rows:
                self._sent_since = time.monotonic()
            self._sent.append(rows.select(self.schema.names).cast(self.schema))
            self._sent_rows += rows.num_rows
            self._wake.notify_all()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        seconds = self.context.drain_timeout
        if not self.handler.lock.acquire(timeout=seconds):
            raise self._late(DrainTimeout, "the lock was not given back", seconds)
        try:
            yield
        finally:
            self.handler.lock.release()

    @contextmanager
    def _blaming(self, callback: str) -> Iterator[None]:
        try:
            yield
        except (DrainmarkError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise OperatorFailed(
                f"start {self.context.operator!r} failed in {callback}(): {type(error).__name__}: {error}",
                operator=self.context.operator, location=self.context.location,
                remedy="mend the class, then: drainmark resume REGION",
            ) from error  # fmt: skip

    def _late(self, kind: type[DrainmarkError], what: str, seconds: float) -> DrainmarkError:
        return kind(
            f"{self.context.region}: {what} within {seconds:g} s", operator=self.context.operator,
            location=self.context.location, remedy=_REMEDY,
        )  # fmt: skip


def threaded_starts(blueprint: Blueprint) -> Mapping[str, ThreadedStart]:
    """Return what the starts of a region read that have threads of their own, by name."""
    found = ((start.name, start.reads) for start in blueprint.region.starts if isinstance(start, SlicedSource))
    return {name: reads for name, reads in found if isinstance(reads, ThreadedStart)}


def start_hosts(blueprint: Blueprint, outside: Outside) -> dict[str, StartHost]:
    """Return hosts with new handlers of the threaded starts of a region."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    region, hosts = blueprint.region, {}
    for name, reads in threaded_starts(blueprint).items():
        operator = region.operator(name)
        context = RegionContext(
            region=region.name,
            index=region.index_of(operator),
            is_start_of_region=True,
            is_end_of_region=operator in region.ends,
            is_trigger_operator=region.parameters.trigger == Trigger.OPERATOR_DRIVEN,
            drain_timeout=region.parameters.group_timeout.total_seconds(),
            reset_timeout=region.parameters.reset_timeout.total_seconds(),
            params=blueprint.params,
            operator=name,
            location=operator.location,
        )
        hosts[name] = StartHost(
            make=reads.handler,
            context=context,
            schema=to_arrow_schema(StructType.fromDDL(reads.schema), timezone="UTC"),
            buffer=PushBuffer(outside.reach.buffer(name), rows=reads.rows, seconds=reads.seconds),
            rows=reads.rows,
            seconds=reads.seconds,
        )
    return hosts
