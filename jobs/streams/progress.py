"""`Progress`: the positions of a `StreamStart` that are submitted, cut, and committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.streams.acknowledgement import Acknowledged
from drainmark.jobs.streams.references import RefCounter, release


@dataclass(frozen=True, slots=True)
class Entered:
    """A datum that was read: the references to release when its rows are submitted, and when they are committed."""

    submitted: RefCounter
    committed: RefCounter


class Progress:
    """Two prefixes of the positions that were read: the submitted ones, and the ones in committed cuts.

    The operator's lock must be held, except for `enter`, `has` and the properties.

    Args:
        acknowledge: called with the newest position of the second prefix.
        position, beyond: of the cut from which the run continues. The cut has the rows of all positions up to and
            including `position`, and those of the positions `beyond`.
        cut: the number of that cut.
        is_told: that position is acknowledged already.
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
        if position is not None and not is_told:  # the last run may have ended before it acknowledged this position
            self._cuts[cut] = [self._begun(self._committed, position)]

    @property
    def position(self) -> Any:
        """Return the last position (inclusive) up to which all rows are submitted; None if there is none."""
        return self._submitted.position

    def state(self) -> tuple[Any, Sequence[Any]]:
        """Return `position`, and the positions after it that have their rows submitted, too."""
        return self._submitted.position, [*self._submitted.beyond(), *self._skipped]

    def has(self, position: Any) -> bool:
        """Say whether a position is one of `beyond`: the cut from which the run continues has its rows already."""
        return position in self._skipped

    def skip(self, position: Any) -> None:
        """Count a position of `beyond` as submitted when the source yields it again."""
        self._skipped.remove(position)
        committed = self._begun(self._committed, position)
        self._begun(self._submitted, position).release()
        self._cuts.setdefault(self._cut, []).append(committed)

    def enter(self, position: Any) -> Entered:
        """Enter the next position; no rows of it are submitted yet."""
        return Entered(self._begun(self._submitted, position), self._begun(self._committed, position))

    def submitted(self, entered: Sequence[Entered]) -> None:
        """Note that all rows of some data are submitted: the next cut has them."""
        for one in entered:
            one.submitted.release()
            self._uncut.append(one.committed)

    @property
    def uncut(self) -> int:
        """Return the number of data that no cut has yet."""
        return len(self._uncut)

    def cut(self, number: int) -> None:
        """Note that a cut is made."""
        self._cuts[number], self._uncut = self._uncut, []

    def committed(self, cut: int) -> None:
        """Note that the region committed all cuts up to and including `cut`: release their data and acknowledge."""
        done = [self._cuts.pop(number) for number in sorted(self._cuts) if number <= cut]
        with self._committed.together():
            release([reference for references in done for reference in references])

    def _begun(self, positions: Acknowledged, position: Any) -> RefCounter:
        reference = positions.begin(position)
        reference.retain()
        return reference
