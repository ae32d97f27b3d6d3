"""`@operator`: an operator written in Python with state of its own, run in the driver process.

Its class is a `StateHandler`; the runtime calls it id by id, and keeps its state at every id. It gets the rows of a
group in the driver's memory. For many rows, and for state by key, use `@custom`, which runs on Spark's workers.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.row_order import type_of_made
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, port_to
from drainmark.jobs.graph.operator import KeptState, Operator, Positions, StepResult
from drainmark.jobs.state.handlers.checkpoint import Checkpoint
from drainmark.jobs.state.handlers.freezing import Copied, CowDict, SerialisedCopy
from drainmark.jobs.state.handlers.handler_state import CHUNK, ENTRY, VALUE
from drainmark.jobs.state.handlers.state_handler import StateHandler, callbacks_missing
from drainmark.jobs.state.placed_rows import ranked

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["Checkpoint", "Copied", "CowDict", "SerialisedCopy", "StateHandler", "operator"]

_CHANGES = f"{ENTRY} string, {CHUNK} bigint, {VALUE} binary, {SEQUENCE_ID} bigint"


@dataclass(frozen=True, kw_only=True)
class Handled(Operator):
    """A state handler in the driver process; may not start a region."""

    kind: ClassVar[str] = "handler"
    summary: ClassVar[str] = "a state handler in Python, called id by id in the driver process"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.OWN

    handler_class: type[StateHandler]
    output: str

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(keys=(ENTRY, CHUNK)),)

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "output": self.output, "class": digest_of_class(self.handler_class)}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        kind = self.handler_class
        if not (isinstance(kind, type) and issubclass(kind, StateHandler)):
            yield self.wrong("OPERATOR_CLASS", f"{kind!r} is no dm.StateHandler", "derive the class from it")
            return
        if not callable(getattr(kind, "process", None)):
            yield self.wrong("OPERATOR_CLASS", "it has no process(self, rows, context)", "write one")
        if len(self.inputs) != 1:
            yield self.wrong("OPERATOR_INPUTS", f"it has {len(self.inputs)} streams", "join them by a union first")
        if missing := callbacks_missing(kind):
            yield self.wrong("OPERATOR_CALLBACKS", f"it lacks {', '.join(missing)}", "write them, too")

    def step(self, frames: OperatorContext) -> StepResult:
        from pyspark.sql.types import StructType

        made, changed = self.made, StructType.fromDDL(_CHANGES)
        rows = ranked(frames, self, self.inputs[0])
        output, changes = frames.hosted(self, rows) if self.name in frames.hosts else (None, None)
        return StepResult(frames.local(self, output, made), {"": frames.local(self, changes, changed)})

    @property
    def made(self) -> StructType:
        """Return the types of the output, tags included."""
        return type_of_made(self.output)


def operator(
    handler: type[StateHandler] | None = None,
    /,
    *,
    output: str,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
) -> Any:
    """Declare an operator as a class of your own, below `StateHandler`.

    `process` is called once for each sequence id, in id order, with the rows of that id in the order of the file
    (perhaps none), and returns a table, several, or None. One object serves a run, in the driver process: the rows of a
    group (`max_group_bytes`) and its state have to fit there. Its state is kept at every id, so a rewind restores it;
    see `StateHandler` for the callbacks. It may call services that Spark cannot reach, and need not be deterministic:
    the rows that it made are the rows that are committed.

    Args:
        output: DDL of the columns of its rows.
        name: the operator's name, and the state's identity; the class's name in snake case by default.
        inputs: the stream, instead of the name of `process`'s first parameter after `self`.

    Example:
        @dm.operator(output="customer string, number bigint")
        @dataclass
        class Numbered(dm.StateHandler):
            n: int = 0

            def process(self, orders, context):  # pyarrow.Table, RegionContext
                first, self.n = self.n, self.n + orders.num_rows
                return pa.table({"customer": orders["customer"], "number": range(first, self.n)})
    """

    def wrap(kind: type[StateHandler]) -> Stream:
        ports = tuple(port_to(stream) for stream in (inputs if inputs is not None else _upstream(kind)))
        made = Handled(
            name=name or _snake(kind.__name__),
            inputs=ports,
            handler_class=kind,
            output=output,
        )
        stream = declare(made)
        stream.function = kind  # a call of the stream makes a handler, as a call of the class does
        return stream

    return wrap if handler is None else wrap(handler)


def _upstream(kind: type) -> Sequence[str]:
    process: Callable[..., Any] | None = getattr(kind, "process", None)
    return list(inspect.signature(process).parameters)[1:2] if process is not None else ()


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def digest_of_class(kind: type) -> str:
    """Return a hash of the class's source without comments and formatting, or of its names if it has no source."""
    try:
        meaning = ast.dump(ast.parse(textwrap.dedent(inspect.getsource(kind))))
    except (OSError, TypeError, SyntaxError):
        meaning = repr(sorted(name for name in vars(kind) if not name.startswith("__")))
    return hashlib.sha256(meaning.encode()).hexdigest()[:16]
