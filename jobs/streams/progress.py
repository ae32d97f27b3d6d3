"""`Progress`: how far a `StreamStart` is, in its cuts and in what it may acknowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.streams.acknowledgement import Acknowledged
from drainmark.jobs.streams.references import RefCounter, release


@dataclass(frozen=True, slots=True)
class Entered:
    """A datum that was read: what is let go when its rows are submitted, and when they are committed."""

    submitted: RefCounter
    committed: RefCounter


class Progress:
    """Two prefixes of the positions that were read: whose rows are submitted, and whose cuts are committed.

    All but `enter` and the properties is called under the operator's lock.

    Args:
        acknowledge: called with the newest position of the second prefix.
        position, beyond: of the cut from which it goes on: everything up to a position, and these behind it.
        cut: the number of that cut.
        is_told: its position is acknowledged.
    """

    def __init__(
        self,
        acknowledge: Callable[[Any], Any],
        position: Any = None,
        beyond: Iterable[Any] = (),
        cut: int = 0,
        *,
        is_told: bool = False,
    ) -> None:
        self._submitted = Acknowledged(after=position)
        self._committed = Acknowledged(acknowledge)
        self._skipped = list(beyond)
        self._cut = cut
        self._uncut: list[RefCounter] = []
        self._cuts: dict[int, list[RefCounter]] = {}
        if position is not None and not is_told:  # of a run that may have ended before it told the source
            self._cuts[cut] = [self._begun(self._committed, position)]

    @property
    def position(self) -> Any:
        """Return the position up to which all rows are submitted; None before any."""
        return self._submitted.position

    def state(self) -> tuple[Any, Sequence[Any]]:
        """Return that position, and those behind it whose rows are submitted, too."""
        return self._submitted.position, [*self._submitted.beyond(), *self._skipped]

    def has(self, position: Any) -> bool:
        """Say whether the cut from which this goes on has a position's rows, behind its prefix."""
        return position in self._skipped

    def skip(self, position: Any) -> None:
        """Pass over such a position, whose turn has come."""
        self._skipped.remove(position)
        committed = self._begun(self._committed, position)
        self._begun(self._submitted, position).release()
        self._cuts.setdefault(self._cut, []).append(committed)

    def enter(self, position: Any) -> Entered:
        """Enter the next position; nothing of it is submitted."""
        return Entered(self._begun(self._submitted, position), self._begun(self._committed, position))

    def submitted(self, entered: Sequence[Entered]) -> None:
        """Note that all rows of data are submitted: the next cut has them."""
        for one in entered:
            one.submitted.release()
            self._uncut.append(one.committed)

    def cut(self, number: int) -> None:
        """Note that a cut is made."""
        self._cuts[number], self._uncut = self._uncut, []

    def committed(self, cut: int) -> None:
        """Note that the region has a committed state of all cuts up to one: let go, and acknowledge."""
        done = [self._cuts.pop(number) for number in sorted(self._cuts) if number <= cut]
        with self._committed.together():
            release([reference for references in done for reference in references])

    def _begun(self, positions: Acknowledged, position: Any) -> RefCounter:
        reference = positions.begin(position)
        reference.retain()
        return reference
