"""Three ways to freeze a state in `prepare_for_non_blocking_checkpoint`, so that the flow can go on.

| way | prepare costs | memory beside the state | values |
|---|---|---|---|
| `Copied` | a deep copy | the state once more | anything that can be copied |
| `SerialisedCopy` | an encoding | its bytes | anything that you encode |
| `CowDict` | nothing | what is touched meanwhile | immutables, dicts, lists, sets |
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, TypeVar

from drainmark.jobs.state.handlers.cow_dict import CowDict, CowList, CowSet

T = TypeVar("T")
Frozen = TypeVar("Frozen")


class _Kept(Generic[T, Frozen]):
    """A value, and what is made of it when it is frozen."""

    def __init__(self, value: T, keep: Callable[[T], Frozen]) -> None:
        self.value = value
        self._keep = keep
        self._frozen: tuple[Frozen] | None = None

    def freeze(self) -> Frozen:
        """Freeze the value, and return the frozen version."""
        self._frozen = (self._keep(self.value),)
        return self._frozen[0]

    @property
    def frozen(self) -> Frozen:
        """Return the frozen version.

        Raises:
            RuntimeError: nothing is frozen.
        """
        if self._frozen is None:
            raise RuntimeError("nothing is frozen: call freeze() in prepare_for_non_blocking_checkpoint")
        return self._frozen[0]

    def thaw(self) -> None:
        """Release the frozen version."""
        self._frozen = None


class Copied(_Kept[T, T]):
    """A value that is copied when it is frozen; the checkpoint encodes the copy later.

    Args:
        value: the value that the tuple handler uses and changes, as `value`.
        copier: makes the copy; a deep copy by default.

    Example:
        @dm.operator(output="items bigint")
        class Seen(dm.StateHandler):
            non_blocking = True

            def __init__(self):
                self.items = dm.Copied([])

            def process(self, orders, context):
                self.items.value = sorted({*self.items.value, *orders["item"].to_pylist()})
                return pa.table({"items": [len(self.items.value)]})

            def prepare_for_non_blocking_checkpoint(self, sequence_id):
                self.items.freeze()

            def checkpoint(self, checkpoint):
                checkpoint.write(self.items.frozen)

            def reset(self, checkpoint):
                self.items.value = checkpoint.read()

            def reset_to_initial_state(self):
                self.items.value = []
    """

    def __init__(self, value: T, copier: Callable[[T], T] = copy.deepcopy) -> None:
        super().__init__(value, copier)


class SerialisedCopy(_Kept[T, bytes]):
    """A value that is encoded when it is frozen; the checkpoint writes the bytes later.

    Args:
        value: the value that the tuple handler uses and changes, as `value`.
        encode: returns its bytes.
        decode: returns the value from its bytes.

    Example:
        @dm.operator(output="orders bigint")
        class Tally(dm.StateHandler):
            non_blocking = True

            def __init__(self):
                self.n = dm.SerialisedCopy(0, encode=lambda n: str(n).encode(), decode=int)

            def process(self, orders, context):
                self.n.value += orders.num_rows
                return pa.table({"orders": [self.n.value]})

            def prepare_for_non_blocking_checkpoint(self, sequence_id):
                self.n.freeze()

            def checkpoint(self, checkpoint):
                checkpoint.write(self.n.frozen)

            def reset(self, checkpoint):
                self.n.restore(checkpoint.read())

            def reset_to_initial_state(self):
                self.n.value = 0
    """

    def __init__(self, value: T, encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> None:
        super().__init__(value, encode)
        self._decode = decode

    def restore(self, content: bytes) -> None:
        """Set the value from bytes that `frozen` returned."""
        self.value = self._decode(content)
        self.thaw()


__all__ = ["Copied", "CowDict", "CowList", "CowSet", "SerialisedCopy"]
