"""The newest rows of a checkpoint table, for display: of a large group its last row and its sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """What the states of one commit add up to, as far as they were read.

    Attributes:
        first_id: smallest sequence id.
        states: how many there are.
        rows_in, bytes_in: of their files.
    """

    first_id: int
    states: int
    rows_in: int
    bytes_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRows:
    """Rows in commit order, however long the table is.

    Attributes:
        rows: all that are no states, states with which a group ends, states of which something is quarantined, up to a
            number of them; and the newest states, up to another number.
        sums: by attempt, of every group that has a row here.
    """

    rows: tuple[CheckpointRow, ...] = ()
    sums: Mapping[str, GroupSums] = field(default_factory=dict)
