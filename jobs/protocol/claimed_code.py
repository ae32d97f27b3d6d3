"""Facts about the code of a run, which a row of kind `claim` keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.protocol.stage_flow import Links, links_to_json


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
