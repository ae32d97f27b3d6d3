"""From a script that shows a fault to a smaller one that shows it, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from simulation.script import Script

T = TypeVar("T")

Fails = Callable[[Script], Mapping[str, str] | None]
"""Plays a script; returns the choices that were made if it shows the fault, else None."""


def shrink(script: Script, fails: Fails, seconds: float = 60.0) -> Script:
    """Return the smallest script found within a time that shows the same fault; its choices are written out.

    Raises:
        ValueError: the script does not show the fault.
    """
    made = fails(script)
    if made is None:
        msg = "the script shows no fault"
        raise ValueError(msg)
    search = _Search(replace(script, choices=made), fails, time.monotonic() + seconds)
    while search.has_time() and any([search.phases(), search.steps(), search.setup(), search.choices()]):
        pass
    return search.best


@dataclass(slots=True)
class _Search:
    """The best script so far. Each method takes away what it can, and returns whether it took anything."""

    best: Script
    fails: Fails
    until: float

    def has_time(self) -> bool:
        return time.monotonic() < self.until

    def phases(self) -> bool:
        return self._drop(self.best.phases, lambda phases: replace(self.best, phases=tuple(phases)))

    def steps(self) -> bool:
        places = [(number, step) for number, steps in enumerate(self.best.phases) for step in steps]

        def having(kept: Sequence[Any]) -> Script:
            phases = (tuple(step for at, step in kept if at == number) for number in range(len(self.best.phases)))
            return replace(self.best, phases=tuple(phases))

        return self._drop(places, having)

    def choices(self) -> bool:
        made = list((self.best.choices or {}).items())
        return self._drop(made, lambda kept: replace(self.best, choices=dict(kept)))

    def setup(self) -> bool:
        tried = [self._try(replace(self.best, setup=smaller)) for smaller in self._smaller_setups()]
        return any(tried)

    def _smaller_setups(self) -> Iterator[Any]:
        setup = self.best.setup
        used = {step.region for steps in self.best.phases for step in steps}
        if len(used) < setup.regions:
            yield replace(setup, regions=setup.regions - 1)
        for sink in setup.sinks:
            yield replace(self.best.setup, sinks=tuple(kept for kept in self.best.setup.sinks if kept != sink))

    def _drop(self, items: Sequence[T], having: Callable[[Sequence[T]], Script]) -> bool:
        """Take away all items, then halves of what is left, quarters, and so on to single ones."""
        kept, size, took = list(items), len(items), False
        while size:
            start = 0
            while start < len(kept) and self.has_time():
                less = kept[:start] + kept[start + size :]
                if self._try(having(less)):
                    kept, took = less, True
                else:
                    start += size
            size //= 2
        return took

    def _try(self, script: Script) -> bool:
        """Keep a script if it shows the fault, without the choices that it did not come to."""
        if not self.has_time():
            return False
        made = self.fails(script)
        if made is None:
            return False
        self.best = replace(script, choices=dict(made))
        return True
