"""One handler in the driver process during a run: it is called id by id, drained, checkpointed, reset.

The protocol sets the order at each id: rows, `drain`, no more permits, then `checkpoint`; or `prepare`, and
`checkpoint` in the background while the next id is processed. So the state of every id is known, in any grouping.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import DrainTimeout, Interrupted, ResetTimeout
from drainmark.jobs.errors.operator_code import CheckpointUnreadable, ResetWanted
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, arrow_schema
from drainmark.jobs.runtime.hosting.callbacks import SOON_SECONDS, Callbacks, as_declared, blaming
from drainmark.jobs.runtime.hosting.checkpoint_cleanup import entry_of
from drainmark.jobs.runtime.hosting.region_context import NO_ID, RegionContext, context_of
from drainmark.jobs.state.handlers.checkpoint import HEADER, CheckpointReader, CheckpointWriter, Header
from drainmark.jobs.state.handlers.encoding import RESTORE
from drainmark.jobs.state.handlers.handler_state import chunk_rows
from drainmark.jobs.state.handlers.permits import held
from drainmark.jobs.state.handlers.state_handler import StateHandler
from drainmark.jobs.state.handlers.stored_checkpoints import StoredCheckpoints
from drainmark.jobs.world import Answer

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.operators.handler import Handled
    from drainmark.jobs.runtime.analysis.blueprint import Blueprint
    from drainmark.jobs.state.handlers.data_store import DataStore


@dataclass(slots=True)
class GroupCheckpoints:
    """The checkpoints of a group: the finished ones, in the order of ids, and the pending one, if there is one."""

    finished: list[CheckpointWriter] = field(default_factory=list)
    pending: Answer[CheckpointWriter] | None = None


@dataclass(slots=True, kw_only=True)
class HandlerHost:
    """The host of one handler.

    Attributes:
        entry: name of the operator's checkpoints, see `entry_of`.
        context: the handler's view of the region; `of` sets its gate and its functions `send` and `want_reset`.
        schema: of the output, without tags.
        stored: the store of the chunks; None if chunks are rows of the state's table.
    """

    entry: str
    handler: StateHandler
    context: RegionContext
    callbacks: Callbacks
    schema: pa.Schema
    stored: StoredCheckpoints | None = None
    _sent: list[pa.Table] = field(default_factory=list)
    _is_fresh: bool = True
    _header: Header | None = None
    _drained: dict[int, GroupCheckpoints] = field(default_factory=dict)
    _storing: threading.Lock = field(default_factory=threading.Lock)
    _under_way: Answer[CheckpointWriter] | None = None
    _wanted: ResetWanted | None = None

    @classmethod
    def of(
        cls,
        handler: StateHandler,
        context: RegionContext,
        *,
        entry: str,
        schema: pa.Schema,
        stored: StoredCheckpoints | None = None,
    ) -> HandlerHost:
        callbacks = Callbacks(handler=handler, context=context, kind="operator", waits=entry)
        host = cls(entry=entry, handler=handler, context=context, callbacks=callbacks, schema=schema, stored=stored)
        callbacks.bind()
        context.send, context.want_reset = host._send, host._note_wanted
        return host

    # --- a group -----------------------------------------------------------------------------------------------------

    def step(
        self, ids: Iterable[int], rows: Mapping[int, pa.Table], nothing: pa.Table, life: int | None = None
    ) -> tuple[pa.Table, pa.Table]:
        """Process the ids of a group in order, each with its rows, and checkpoint each.

        Args:
            nothing: an empty table, for ids without rows.
            life: in which the group was begun, by default the present one.

        Returns:
            the output, with its tags; and the changes of the state, without those of a last checkpoint that is still
            under way: `take` returns them.

        Raises:
            ResetWanted, DrainTimeout, Interrupted, Exception: the whole group is void; `reset` comes next.
        """
        import pyarrow as pa

        life, group = self.life if life is None else life, GroupCheckpoints()
        outputs = []
        for number in ids:
            self._process(life, number, rows.get(number, nothing))
            outputs.append(self._establish(life, number, group))
        if group.pending is not None and group.pending.is_there:
            self._settle(life, group)
        self._drained[life] = group
        return pa.concat_tables(outputs), chunk_rows(
            self.entry, group.finished, are_headers_all=self.stored is not None
        )

    def _process(self, life: int, number: int, rows: pa.Table) -> None:
        with self.context.gate.permit(), self._locked(life):
            self.context.sequence_id = number
            self._is_fresh = False
            made = self.handler.process(rows, self.context)  # type: ignore[attr-defined]
            for table in _tables(made):
                self._send(table)

    def _establish(self, life: int, number: int, group: GroupCheckpoints) -> pa.Table:
        """Drain, freeze and checkpoint; return the rows that were submitted for this id."""
        gate, seconds = self.context.gate, self.context.drain_timeout
        if not gate.drain(lambda: self._drain(life), seconds, life=life):
            self._require(life)
            raise self.callbacks.late(DrainTimeout, "a permit was not given back", seconds)
        self._settle(life, group)  # one frozen version at a time
        with self._locked(life):
            output = self._taken(number)
            writer = CheckpointWriter(sequence_id=number, previous=self._header)
            if self.handler.non_blocking:
                self.handler.prepare_for_non_blocking_checkpoint(number)
                self._under_way = group.pending = Answer(lambda: self.callbacks.written(writer), "handler-checkpoint")
            else:
                group.finished.append(self.callbacks.written(writer))
                self._header = writer.finish()
            self.context.reset_attempt = NO_ID
        gate.resume(life=life)
        return output

    def _drain(self, life: int) -> None:
        with self._locked(life):
            self.handler.drain()

    def _settle(self, life: int, group: GroupCheckpoints) -> None:
        """Wait for the checkpoint under way, of this group or the one before: the next one is compared with it."""
        under_way = self._under_way
        if under_way is None:
            return
        writer = under_way.get()
        with self._locked(life):  # an attempt that was abandoned while it waited must not change the reset handler
            self._under_way, self._header = None, writer.finish()
        if group.pending is under_way:
            group.finished.append(writer)
            group.pending = None

    # --- checkpoints -------------------------------------------------------------------------------------------------

    @property
    def life(self) -> int:
        """Return the number of resets begun: it differs between work begun before and after a reset."""
        return self.context.gate.life

    def take(self, life: int) -> Callable[[], pa.Table]:
        """Return the function to call before the group that was just drained is committed (see `Late`).

        Args:
            life: in which the group was processed.

        Raises:
            Interrupted: here, or in the returned function: the handler was reset since, and the group was abandoned.
        """
        self._require(life)
        group = self._drained.pop(life, GroupCheckpoints())

        def finish() -> pa.Table:
            late = [group.pending.get()] if group.pending is not None else []
            with self._storing:  # a reset withdraws stored checkpoints: an abandoned group must not store after it
                self._require(life)
                if self.stored is not None:
                    self.stored.save([*group.finished, *late])
            return chunk_rows(self.entry, late, are_headers_all=self.stored is not None)

        return finish

    def _require(self, life: int) -> None:
        if life != self.life:
            raise Interrupted("the group was abandoned", operator=self.context.operator)

    def checkpointed(self) -> dict[int, bytes]:
        """Return the chunks of the newest checkpoint of the group that was just drained, for `reset`."""
        group = self._drained.get(self.life, GroupCheckpoints())
        writers = group.finished + ([group.pending.get()] if group.pending is not None else [])
        found: dict[int, bytes] = {}
        for writer in writers:
            found.update({HEADER: writer.finish().to_bytes(), **writer.changed})
        return found

    def reset(self, chunks: Mapping[int, bytes]) -> None:
        """Bring the handler back to a state.

        Args:
            chunks: of the state at the last committed id, by index; empty for the initial state.

        Raises:
            ResetTimeout: a thread kept its permit, or the lock; or the handler's own reset did not end.
            CheckpointUnreadable: see `Checkpoint.read`.
        """
        seconds, until = self.context.reset_timeout, world.monotonic() + self.context.reset_timeout
        if not self.context.gate.stop(seconds, for_reset=True):
            raise self.callbacks.late(ResetTimeout, "a permit was not given back", seconds)
        self._give_up(until)
        try:
            self.callbacks.restored(lambda: self._restore_until(until, chunks), until, "handler-reset")
        except CheckpointUnreadable as error:
            if error.remedy == RESTORE:
                error.remedy = f"{RESTORE}, or go back a state: drainmark reset {self.context.region} --by 1"
            raise
        self.context.reset_attempt += 1
        self.context.sequence_id = (self._header.sequence_id if self._header else 0) + 1
        self.context.gate.resume(after_reset=True)

    def _give_up(self, until: float) -> None:
        """Wait for a background checkpoint, which reads the fields that a reset changes; its result is dropped."""
        under_way, self._under_way = self._under_way, None
        self._drained.clear()
        if under_way is not None and not under_way.wait(max(0.0, until - world.monotonic())):
            raise self.callbacks.late(ResetTimeout, "a checkpoint did not end", self.context.reset_timeout)

    def _restore_until(self, until: float, chunks: Mapping[int, bytes]) -> None:
        with (
            self.callbacks.locked_until(until, "the lock was not given back"),
            self.callbacks.locked_until(until, "the storing of a checkpoint did not end", self._storing),
        ):
            self._restore(chunks)

    def _restore(self, chunks: Mapping[int, bytes]) -> None:
        self._sent.clear()
        self._wanted = None
        self._header = Header.from_bytes(chunks[HEADER]) if chunks else None
        stored = self.stored
        fetch = stored.chunk if stored is not None else lambda index, at: chunks[index]
        checkpoint = CheckpointReader(header=self._header, fetch=fetch) if self._header is not None else None
        self.callbacks.restore(checkpoint, is_fresh=self._is_fresh)
        if stored is not None:
            stored.withdraw(self._header.sequence_id if self._header is not None else 0)
        self._is_fresh = self._header is None

    def retire(self, through: int) -> None:
        """Retire the checkpoints up to an id (inclusive).

        A handler that is at work is not waited for: a later call covers the same ids.
        """
        with held(self.handler.lock, SOON_SECONDS) as is_mine, self.callbacks.blaming("retire_checkpoint"):
            if is_mine:
                self.handler.retire_checkpoint(through)
        if self.stored is not None:
            with self._storing:
                self.stored.retire(through)

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, life: int) -> Iterator[None]:
        """Hold the operator's lock; raise if this attempt was abandoned, or if the handler asked for a reset."""
        with self.callbacks.locked():
            self._require(life)
            if self._wanted is not None:
                raise self._wanted
            yield

    def _send(self, rows: pa.Table) -> None:
        self._sent.append(as_declared(self.schema, rows))

    def _note_wanted(self, wanted: ResetWanted) -> None:
        self._wanted = wanted

    def _taken(self, number: int) -> pa.Table:
        sent, self._sent = self._sent, []
        return _tagged(sent, self.schema, number)


@dataclass(frozen=True, slots=True)
class HandlerAttempt:
    """A handler for one attempt at a group: after a reset, its calls raise `Interrupted`."""

    host: HandlerHost
    life: int

    def step(self, ids: Iterable[int], rows: Mapping[int, pa.Table], nothing: pa.Table) -> tuple[pa.Table, pa.Table]:
        return self.host.step(ids, rows, nothing, self.life)


def host_of(
    operator: Handled, blueprint: Blueprint, store: DataStore | None, epoch: int = 0, *, attempts: int = 0
) -> HandlerHost:
    """Return a host with a new handler of an operator.

    Args:
        store: for chunks; None if they are rows of the state's table.
        epoch: of the region's owner.
        attempts: failed ones in a row, from which the handler's `reset_attempt` goes on: each has a new handler.

    Raises:
        OperatorFailed: the class makes no handler.
    """
    from pyspark.sql.types import StructType

    entry = entry_of(blueprint.kept[operator.name, ""])
    context = context_of(operator, blueprint, attempts)
    with blaming("operator", context, "__init__"):
        handler = operator.handler_class()
    return HandlerHost.of(
        handler,
        context,
        entry=entry,
        schema=arrow_schema(StructType.fromDDL(operator.output)),
        stored=StoredCheckpoints(store.create(entry), epoch) if store is not None else None,
    )


def _tagged(sent: Sequence[pa.Table], schema: pa.Schema, number: int) -> pa.Table:
    """Return the rows sent since the last state, with the tags of an id; the position is the order of sending."""
    import pyarrow as pa

    rows = pa.concat_tables([schema.empty_table(), *sent])
    count = rows.num_rows
    place = [pa.array([0] * count, pa.int64()), pa.array(range(count), pa.int64())]
    rows = rows.append_column(POSITION, pa.StructArray.from_arrays(place, ["block", "row"]))
    return rows.append_column(SEQUENCE_ID, pa.array([number] * count, pa.int64()))


def _tables(made: Any) -> Iterator[pa.Table]:
    """Yield the tables that `process` returned: none, one, or several."""
    import pyarrow as pa

    if made is None:
        return
    for table in [made] if isinstance(made, pa.Table | pa.RecordBatch) else made:
        yield pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
