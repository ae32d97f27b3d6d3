"""Facts about the code of a run, as a row of kind `claim` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.protocol.stage_flow import Links, links_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What the code of a run says of its region; a verb has none.

    Attributes:
        operators: fingerprint by name; kept in the claim's row, so that other code can be compared with it.
        states: label by operator, of the states that are not their first generation, as the code was analysed.
        dropped: operators whose state begins anew with the claim, under the label in `states`.
        stages: by name of a stage, where there are several, its operators but for the starts.
        channels: those between them, by name.
    """

    operators: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    channels: Links = field(default_factory=dict)

    def to_detail(self) -> dict[str, Any]:
        """Return the fields of the claim's row; None where there is nothing to say."""
        dropped = {name: self.states[name] for name in sorted(self.dropped)}
        stages = {name: list(operators) for name, operators in self.stages.items()}
        return {
            "operators": dict(self.operators) or None,
            "dropped_states": dropped or None,
            "stages": stages or None,
            "channels": links_to_json(self.channels) or None,
        }


NO_CODE = Code()
