"""`StateHandler`: the methods by which an operator with state of its own is saved, restored and retired.

An operator of `@dm.operator` has one more method, `process(self, rows, context)`, and declares its rows by `output=`
(`jobs/operators/handler.py`); a start has `run` (`StartHandler`). All methods here are optional. An operator of the
library declares its state instead: `KeptState` in `jobs/graph/operator.py`.

The runtime calls these methods under the operator's lock, except `checkpoint` of a `non_blocking` handler. So a handler
without threads needs no lock of its own.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from drainmark.jobs.state.handlers.checkpoint import Checkpoint
from drainmark.jobs.state.handlers.cow_dict import CowDict
from drainmark.jobs.state.handlers.permits import OperatorLock


class StateHandler:
    """Base class for operators with state of their own. Every callback is optional.

    | when | calls, in this order |
    |---|---|
    | a state, blocking | `drain`, `checkpoint` |
    | a state, `non_blocking` | `drain`, `prepare_for_non_blocking_checkpoint`; then, while tuples flow, `checkpoint` |
    | the whole region has the state | `region_checkpointed`, on starts only |
    | a reset | `reset`, or `reset_to_initial_state` if the region never had a state, or is rewound to none |
    | the id lies below the rewind horizon | `retire_checkpoint` |

    A dataclass without `checkpoint` and `reset` is saved automatically: its fields are its state, and their first
    values are the initial state. With `non_blocking` its fields are copied, and those of type `CowDict` frozen, while
    no rows flow.

    Attributes:
        non_blocking: `checkpoint` writes the state that `prepare_for_non_blocking_checkpoint` froze, in the background,
            without the lock, while tuples are processed.
        lock: the operator's lock, for threads of your own; take a permit before it.

    Example:
        @dm.operator(output="orders bigint")
        class Counter(dm.StateHandler):
            def __init__(self):
                self.n = 0

            def process(self, orders, context):
                self.n += orders.num_rows
                return pa.table({"orders": [self.n]})

            def checkpoint(self, checkpoint):
                checkpoint.write(self.n)

            def reset(self, checkpoint):
                self.n = checkpoint.read()

            def reset_to_initial_state(self):
                self.n = 0
    """

    non_blocking: ClassVar[bool] = False

    lock: OperatorLock
    _initial: dict[str, Any]
    _frozen: dict[str, Any]

    def __new__(cls, *_: Any, **__: Any) -> Any:
        made = super().__new__(cls)
        made.lock = OperatorLock()
        return made

    def drain(self) -> None:
        """Finish the work in progress, because a state begins. It may submit: it holds an implicit permit."""

    def prepare_for_non_blocking_checkpoint(self, sequence_id: int) -> None:
        """Freeze the state: called right after `drain`, while no other thread changes it."""
        if is_automatic(type(self)):
            self._frozen = {
                name: value.freeze() if isinstance(value, CowDict) else copy.deepcopy(value)
                for name, value in _fields_of(self).items()
            }

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write the state; a `non_blocking` handler writes the frozen version, without later changes."""
        if is_automatic(type(self)):
            fields = self._frozen if self.non_blocking else _fields_of(self)
            checkpoint.write(list(fields))
            for value in fields.values():
                checkpoint.write(value)
            self._thaw()

    def region_checkpointed(self, sequence_id: int) -> None:
        """Take note that every operator of the region is checkpointed; called on starts only."""

    def reset(self, checkpoint: Checkpoint) -> None:
        """Restore the state from the values that `checkpoint` wrote, reading in the same order."""
        if is_automatic(type(self)):
            self.reset_to_initial_state()
            for name in checkpoint.read(list):
                value = checkpoint.read()
                if name in self._initial:
                    setattr(self, name, CowDict(value) if isinstance(getattr(self, name), CowDict) else value)

    def reset_to_initial_state(self) -> None:
        """Go back to the state before the first tuple."""
        if is_automatic(type(self)):
            self._thaw()
            for name, value in self._initial.items():
                setattr(self, name, _copied(value))

    def retire_checkpoint(self, sequence_id: int) -> None:
        """Take note that this id and all lower ones will not be used again; not called for each id."""

    def _thaw(self) -> None:
        for value in _fields_of(self).values():
            if isinstance(value, CowDict):
                value.thaw()
        self._frozen = {}


def note_initial_state(handler: StateHandler) -> None:
    """Remember the present fields of a handler that is saved automatically: they are its initial state."""
    if is_automatic(type(handler)):
        handler._frozen = {}
        handler._initial = {name: _copied(value) for name, value in _fields_of(handler).items()}


def is_automatic(kind: type[StateHandler]) -> bool:
    """Say whether the handlers of a class are saved automatically: a dataclass without `checkpoint` and `reset`."""
    written = (StateHandler.checkpoint, StateHandler.reset)
    return dataclasses.is_dataclass(kind) and (kind.checkpoint, kind.reset) == written


def callbacks_missing(kind: type[StateHandler]) -> tuple[str, ...]:
    """Return the callbacks that a class lacks beside those that it has: a state must be written, read and frozen."""
    own = {name for name in _CALLBACKS if getattr(kind, name) is not getattr(StateHandler, name)}
    needed: Mapping[str, tuple[str, ...]] = {
        "checkpoint": ("reset", "reset_to_initial_state"),
        "reset": ("checkpoint", "reset_to_initial_state"),
    }
    missing = [name for has, wanted in needed.items() if has in own for name in wanted if name not in own]
    freeze = "prepare_for_non_blocking_checkpoint"
    if kind.non_blocking and "checkpoint" in own and freeze not in own:
        missing.append(freeze)
    return tuple(dict.fromkeys(missing))


_CALLBACKS = (
    "drain", "prepare_for_non_blocking_checkpoint", "checkpoint", "region_checkpointed", "reset",
    "reset_to_initial_state", "retire_checkpoint",
)  # fmt: skip


def _fields_of(handler: Any) -> dict[str, Any]:
    return {field.name: getattr(handler, field.name) for field in dataclasses.fields(handler)}


def _copied(value: Any) -> Any:
    return CowDict(value) if isinstance(value, CowDict) else copy.deepcopy(value)


class StartHandler(StateHandler):
    """Base class for a source with its own thread, for `dm.ThreadedStart`.

    Its rows are cut when it asks for a cut, or by the limits `rows` and `seconds`. A cut has the rows since the
    previous cut and the state after them, both or none, and is durable. The region makes it a consistent state.

    | when | calls, in this order |
    |---|---|
    | a run begins, or the region is reset | `reset` to the newest cut; `reset_to_initial_state` if there is none and the handler is not fresh |
    | then | `run`, in a thread of its own; if it is still under way, once it has returned |
    | a cut | `drain`, `checkpoint`; with `non_blocking` `drain`, `prepare_for_non_blocking_checkpoint`, and, while `run` goes on, `checkpoint` |
    | every operator of the region has the state | `region_checkpointed` |
    | no rewind within the horizon replays the cut | `retire_checkpoint`, with the number of the cut |

    A region that is reset replays the cuts that are not committed. A reset, and the end of a run, lose the rows that
    were submitted since the newest cut; the handler makes them again from the state of that cut. So `run` reads its
    state after it has taken a permit.

    Cuts get their ids when the region takes them, so `checkpoint.sequence_id` and `context.sequence_id` count cuts;
    `region_checkpointed` gets the sequence id, and `context.committed_cut` is then the cut that it covers.

    Example:
        @dataclass
        class Numbers(dm.StartHandler):
            at: int = 0

            def run(self, context):
                while not context.wait(1.0):
                    with context.permit(), self.lock:
                        context.submit(pa.table({"n": [self.at]}))
                        self.at += 1
                    with context.permit():
                        context.make_consistent()  # False: the region was reset

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.ThreadedStart(handler=Numbers, schema="n bigint"))
        def numbers(scanned):
            return scanned
    """  # noqa: E501 - a table's rows cannot be broken

    def run(self, context: Any) -> None:
        """Take rows and submit them under permits, until there are no more or `context.wait` says that the run is over.

        An error in it fails the run, and counts as an attempt. After a reset of the region it is called again; if it is
        still under way, once it has returned: rows that it submitted may be gone.
        """
        raise NotImplementedError
