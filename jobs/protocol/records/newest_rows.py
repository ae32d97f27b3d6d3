"""The newest rows of a checkpoint table, for display: for a large group, its last row and its sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """The sums over the states of one commit, as far as they were read.

    Attributes:
        first_id: smallest sequence id.
        states: number of states.
        rows_in, bytes_in: of their files.
    """

    first_id: int
    states: int
    rows_in: int
    bytes_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRows:
    """The newest rows in commit order; their number does not grow with the table.

    Attributes:
        rows: rows that are no states, states that end a group, and states with quarantined rows, up to a number of
            them; and the newest states, up to another number.
        sums: by attempt, of every group that has a row here.
    """

    rows: tuple[CheckpointRow, ...] = ()
    sums: Mapping[str, GroupSums] = field(default_factory=dict)
