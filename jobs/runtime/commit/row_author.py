"""The author of the rows of a checkpoint table, and how such a row is made."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The fields that name the author of a row; every row of one owner has the same.

    Attributes:
        code: digest of the files of the code that claims; "" for a verb, which needs no code.
    """

    region: str
    run_id: str
    drainmark_version: str
    graph_fingerprint: str = ""
    params_hash: str = ""
    code: str = ""

    def row(
        self,
        kind: RowKind,
        *,
        epoch: int,
        sequence_id: int,
        attempt: str,
        recorded_at: dt.datetime,
        values: Mapping[str, Any],
    ) -> CheckpointRow:
        """Return a row; values without a column go into its detail, unless they are None."""
        columns = {name: value for name, value in values.items() if name in CheckpointRow.__dataclass_fields__}
        return CheckpointRow(
            kind=kind,
            epoch=epoch,
            sequence_id=sequence_id,
            attempt=attempt,
            recorded_at=recorded_at,
            region=self.region,
            run_id=self.run_id,
            drainmark_version=self.drainmark_version,
            graph_fingerprint=self.graph_fingerprint,
            params_hash=self.params_hash,
            detail={name: value for name, value in values.items() if name not in columns and value is not None},
            **columns,
        )
