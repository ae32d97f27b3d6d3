"""Short helpers that build rows of a checkpoint table."""

from __future__ import annotations

import datetime as dt
from typing import Any

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
COLUMNS = frozenset(CheckpointRow.__dataclass_fields__)


def row(kind: RowKind, sequence_id: int, *, epoch: int = 1, **values: Any) -> CheckpointRow:
    """Return one row; values that are not columns go into `detail`."""
    columns = {name: values.pop(name) for name in list(values) if name in COLUMNS}
    return CheckpointRow(
        kind=kind, sequence_id=sequence_id, epoch=epoch, region="app/start", attempt=columns.pop("attempt", "a"),
        recorded_at=NOON, run_id="run", drainmark_version="1", graph_fingerprint="g", params_hash="p",
        detail=values, **columns,
    )  # fmt: skip


def claim(next_id: int, epoch: int, previous: str = "none", **values: Any) -> CheckpointRow:
    return row(RowKind.CLAIM, next_id, epoch=epoch, previous=previous, **values)


def group(first: int, files: list[int], *, epoch: int = 1, **detail: Any) -> list[CheckpointRow]:
    """Return the state rows of a group: one id per file, from `first`; files are given as places in the input order."""
    last = first + len(files) - 1
    return [
        row(
            RowKind.STATE, first + index, epoch=epoch, group_first=first, group_last=last,
            **input_of(file), **(detail if first + index == last else {}),
        )
        for index, file in enumerate(files)
    ]  # fmt: skip


def input_of(file: int) -> dict[str, Any]:
    return {
        "trigger_uri": f"f{file}", "trigger_kind": "file", "trigger_order": file,
        "trigger_identity": {"size": file, "mtime_ns": 1},
    }  # fmt: skip


def skip(sequence_id: int, file: int, epoch: int = 1) -> CheckpointRow:
    return row(
        RowKind.SKIP, sequence_id, epoch=epoch, group_first=sequence_id, group_last=sequence_id, reason="broken",
        **input_of(file),
    )  # fmt: skip


def published(through: int, epoch: int = 1, **detail: Any) -> CheckpointRow:
    return row(RowKind.PUBLISHED, through, epoch=epoch, through=through, versions=detail.pop("versions", {}), **detail)


def rewind(sequence_id: int, to: int, epoch: int = 1) -> CheckpointRow:
    return row(RowKind.REWIND, sequence_id, epoch=epoch, to=to, tables=[])
