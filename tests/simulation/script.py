"""A history as data: the steps of each actor, and what happens at the seams of each step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.setup import Setup

SLOW = "Z"
"""The actor that stands still for long in a duel; see `Setup.stall`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an actor does as one process.

    Attributes:
        id: names the step in a script for ever: what it draws does not depend on the steps beside it.
    """

    id: int
    actor: str
    verb: str
    region: str

    def random(self, seed: int) -> Random:
        """Return the source of what the step draws itself."""
        return Random(f"{seed}/{self.id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One history.

    Attributes:
        phases: the steps in order; all steps of a phase end before the next one begins.
        choices: what happens at a seam, by `STEP.THREAD/N`: the N-th seam of a thread of a step, whose own thread is 0.
            Nothing happens at a seam that is not named. None: what happens is drawn from the seed.
    """

    seed: int
    setup: Setup
    phases: tuple[tuple[Step, ...], ...]
    choices: Mapping[str, str] | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Script:
        from simulation.setup import Setup

        found = json.loads(text)
        return Script(
            seed=found["seed"],
            setup=Setup(**{name: _frozen(value) for name, value in found["setup"].items()}),
            phases=tuple(tuple(Step(**step) for step in steps) for steps in found["phases"]),
            choices=found["choices"],
        )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
