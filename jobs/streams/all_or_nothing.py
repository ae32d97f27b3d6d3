"""`Wholes`: a grouping of data that share outputs, so that all outputs of a datum are submitted, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Whole:
    """Data that share outputs, directly or through other data.

    Attributes:
        data: the numbers of the data; unsorted after a merge.
        outputs: with their numbers; unsorted after a merge.
        open: the count of data that have not ended.
    """

    data: list[int] = field(default_factory=list)
    outputs: list[tuple[int, Any]] = field(default_factory=list)
    open: int = 0


class Wholes:
    """A grouping of outputs by the data that they were made from; not safe to use from several threads.

    A datum may give several outputs, at several times, and an output may be made from several data. When no more
    outputs can come from any datum of a whole, the whole is complete: its outputs can be submitted together.
    """

    def __init__(self) -> None:
        self._of: dict[int, Whole] = {}
        self._outputs = 0

    @property
    def open(self) -> int:
        """Return the number of data in wholes that are not complete."""
        return len(self._of)

    def begin(self, number: int) -> None:
        """Enter a datum."""
        self._of[number] = Whole(data=[number], open=1)

    def add(self, output: Any, numbers: Iterable[int]) -> None:
        """Enter an output of data that have begun and not ended. From now on these data are one whole."""
        wholes = list({id(whole): whole for whole in (self._of[number] for number in numbers)}.values())
        largest = max(wholes, key=lambda whole: len(whole.data))
        for whole in wholes:
            if whole is not largest:
                self._merge(whole, largest)
        self._outputs += 1
        largest.outputs.append((self._outputs, output))

    def end(self, number: int) -> tuple[Sequence[int], Sequence[Any]] | None:
        """Note that no more outputs come from a datum.

        Returns:
            the data and outputs of its whole, both in order, if the whole is complete now; None otherwise.
        """
        whole = self._of[number]
        whole.open -= 1
        if whole.open:
            return None
        for one in whole.data:
            del self._of[one]
        return sorted(whole.data), [output for _, output in sorted(whole.outputs, key=lambda entry: entry[0])]

    def _merge(self, whole: Whole, into: Whole) -> None:
        into.data += whole.data
        into.outputs += whole.outputs
        into.open += whole.open
        for number in whole.data:
            self._of[number] = into
