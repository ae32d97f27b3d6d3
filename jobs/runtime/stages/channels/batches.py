"""The content of a channel: batches of rows, each of a whole group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drainmark.jobs.runtime.stages.channels.rows import ChannelRows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The rows of one group of one stream; `_sequence_id` and `_position` are among their columns.

    Attributes:
        first_id, last_id: of the group; a group without rows is a batch, too.
        rows: perhaps shared with the other channels of the stream.
    """

    first_id: int
    last_id: int
    rows: ChannelRows

    def __post_init__(self) -> None:
        if not 0 < self.first_id <= self.last_id:
            raise ValueError(f"a batch has no ids {self.first_id}..{self.last_id}")

    @property
    def bytes(self) -> int:
        return self.rows.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """The results of a stage for a group.

    Attributes:
        made: the results, opaque here.
    """

    stage: str
    first_id: int
    last_id: int
    made: Any
