"""Facts about the code of a run, which a row of kind `claim` keeps; and the code that made an id."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.stage_flow import Links, links_to_json

if TYPE_CHECKING:
    from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The facts about a region that the code of a run declares; a verb has no code, see `NO_CODE`.

    Attributes:
        operators: fingerprint by name; the claim's row keeps it, so that other code can be compared with it.
        states: by operator, the label of its state if that is not the first generation; set when the code is analysed.
        dropped: operators with a state that begins anew with the claim, under the label in `states`.
        stages: by name of a stage, its operators without the starts; empty for a region of one stage.
        channels: the channels between these stages, by name.
        horizon: number of ids that a rewind can go back; None if it is not known.
    """

    operators: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    channels: Links = field(default_factory=dict)
    horizon: int | None = None

    def to_detail(self) -> dict[str, Any]:
        """Return the fields of the claim's row; an empty field is None."""
        dropped = {name: self.states[name] for name in sorted(self.dropped)}
        stages = {name: list(operators) for name, operators in self.stages.items()}
        return {
            "operators": dict(self.operators) or None,
            "dropped_states": dropped or None,
            "stages": stages or None,
            "channels": links_to_json(self.channels) or None,
            "rewind_horizon": self.horizon,
        }


NO_CODE = Code()


@dataclass(frozen=True, slots=True)
class Deploy:
    """The first claim of other code than before: its epoch, the first id that it may have made, the digest of its
    files, and the names of the operators that differ from those before."""

    epoch: int
    first_id: int
    code: str
    operators: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return code_label(self.code)


def code_label(code: str) -> str:
    """Return the beginning of a digest of code, by which people name the code."""
    return code[:8]


def deployed(
    before: tuple[Deploy, ...], claim: CheckpointRow, next_id: int, operators: Mapping[str, str]
) -> tuple[Deploy, ...]:
    """Return the codes after a claim; a code that made no id is left out.

    Args:
        next_id: the first id that the claim's code may make.
        operators: fingerprints of the code before.
    """
    code, now = claim.detail.get("code"), claim.detail.get("operators") or {}
    if not code or (before and before[-1].code == code):
        return before
    changed = {name for name in {*operators, *now} if operators.get(name) != now.get(name)} if operators else set()
    if before and before[-1].first_id == next_id:
        changed.update(before[-1].operators)
        before = before[:-1]
        if before and before[-1].code == code:  # the code in between made nothing
            return before
    return (*before, Deploy(claim.epoch, next_id, code, tuple(sorted(changed))))


def deploy_of(deploys: Sequence[Deploy], sequence_id: int) -> Deploy | None:
    """Return the code that made an id; None if that is not known."""
    place = bisect.bisect_right(deploys, sequence_id, key=lambda deploy: deploy.first_id)
    return deploys[place - 1] if place else None
