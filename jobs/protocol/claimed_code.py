"""What a row of kind `claim` keeps: facts about the claim and about the code of a run; and the code that made an id."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, Outcome
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.stage_flow import Links, links_from_json, links_to_json


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

    @property
    def begun(self) -> dict[str, str]:
        """Return the labels of the states that begin anew, by operator."""
        return {name: self.states[name] for name in sorted(self.dropped)}

    def to_detail(self) -> dict[str, Any]:
        """Return the fields of the claim's row; an empty field is None."""
        stages = {name: list(operators) for name, operators in self.stages.items()}
        return {
            "operators": dict(self.operators) or None,
            "dropped_states": self.begun or None,
            "stages": stages or None,
            "channels": links_to_json(self.channels) or None,
            "rewind_horizon": self.horizon,
        }

    @classmethod
    def from_detail(cls, detail: Mapping[str, Any]) -> Code:
        """Return what a claim's row has of it: of `states` only the labels of those that begin anew."""
        begun = detail.get("dropped_states") or {}
        return cls(
            operators=detail.get("operators") or {},
            states=begun,
            dropped=frozenset(begun),
            stages={name: tuple(operators) for name, operators in (detail.get("stages") or {}).items()},
            channels=links_from_json(detail.get("channels")),
            horizon=detail.get("rewind_horizon"),
        )


NO_CODE = Code()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The contents of the row of a claim.

    Attributes:
        previous: how the owner before ended.
        error: of that owner, if it failed.
        tables: of the region; () in a row that does not name them.
        code: digest of the files of the code that claims; "" for a verb.
        declared: what that code declares; `NO_CODE` for a verb.
    """

    previous: Outcome = Outcome.NONE
    error: Mapping[str, Any] | None = None
    tables: tuple[RegionTable, ...] = ()
    code: str = ""
    declared: Code = NO_CODE

    def to_detail(self) -> dict[str, Any]:
        """Return the values of the row; an empty value is None."""
        return {
            "previous": self.previous.value,
            "error": dict(self.error) if self.error else None,
            "tables": [table.to_json() for table in self.tables],
            "code": self.code or None,
            **self.declared.to_detail(),
        }

    @classmethod
    def from_row(cls, row: CheckpointRow) -> Claim:
        detail = row.detail
        return cls(
            previous=Outcome(detail.get("previous", Outcome.NONE)),
            error=detail.get("error"),
            tables=tuple(RegionTable.from_json(table) for table in detail.get("tables") or ()),
            code=detail.get("code") or "",
            declared=Code.from_detail(detail),
        )


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
    before: tuple[Deploy, ...], epoch: int, claim: Claim, next_id: int, operators: Mapping[str, str]
) -> tuple[Deploy, ...]:
    """Return the codes after a claim; a code that made no id is left out.

    Args:
        epoch: of the claim.
        next_id: the first id that the claim's code may make.
        operators: fingerprints of the code before.
    """
    code, now = claim.code, claim.declared.operators
    if not code or (before and before[-1].code == code):
        return before
    changed = {name for name in {*operators, *now} if operators.get(name) != now.get(name)} if operators else set()
    if before and before[-1].first_id == next_id:
        changed.update(before[-1].operators)
        before = before[:-1]
        if before and before[-1].code == code:  # the code in between made nothing
            return before
    return (*before, Deploy(epoch, next_id, code, tuple(sorted(changed))))


def deploy_of(deploys: Sequence[Deploy], sequence_id: int) -> Deploy | None:
    """Return the code that made an id; None if that is not known."""
    place = bisect.bisect_right(deploys, sequence_id, key=lambda deploy: deploy.first_id)
    return deploys[place - 1] if place else None
