"""The staged files that checkpoint rows still need (H8, H29)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest
from checkpoint_rows import NOON, group, published, rewind, row

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.retention import files_within_horizon, first_id_within_horizon

TABLE = "state/app/words"
LATE = NOON + dt.timedelta(days=2)


def staged(first: int, count: int = 1, *, image: bool = False) -> list[CheckpointRow]:
    """Return the rows of a group that staged one file, `g<first>`, and optionally an image, `i<last>`."""
    last = first + count - 1
    images = [{"table": TABLE, "at": last, "files": [file(f"i{last}")]}] if image else []
    manifest = {"files": {TABLE: [file(f"g{first}")]}, "upserts": [], "images": images, "lookups": {}}
    rows = group(first, list(range(first, last + 1)), manifest=manifest)
    return [dataclasses.replace(member, attempt=f"a{first}") for member in rows]


def file(path: str) -> dict[str, Any]:
    return {"path": path, "size": 1, "rows": 1, "first_id": 1, "last_id": 1}


def kept(rows: list[CheckpointRow], *, horizon: int, withdrawn_since: dt.datetime = NOON) -> set[str]:
    history = RegionHistory.from_rows(rows)
    first = first_id_within_horizon(history, horizon=horizon, withdrawn_since=withdrawn_since)
    near = [row for row in rows if row.sequence_id >= first]
    return set(files_within_horizon(history, near, horizon=horizon, withdrawn_since=withdrawn_since).get(TABLE, ()))


def test_no_rows_keep_nothing() -> None:
    assert kept([], horizon=10) == set()


def test_groups_within_the_horizon_are_kept_whole() -> None:
    rows = [*staged(1), *staged(2, 3), *staged(5), published(5)]
    assert kept(rows, horizon=100) == {"g1", "g2", "g5"}
    assert kept(rows, horizon=1) == {"g2", "g5"}, "4 is within, and its file holds 2 and 3 as well"
    assert kept(rows, horizon=0) == {"g5"}


def test_what_is_committed_and_not_published_is_kept_whatever_the_horizon() -> None:
    rows = [*staged(1), *staged(2), *staged(3), published(1)]
    assert kept(rows, horizon=0) == {"g2", "g3"}


@pytest.mark.seed("H29")
def test_the_newest_image_at_or_below_the_horizon_is_kept_and_older_ones_are_not() -> None:
    rows = [*staged(1, image=True), *staged(2, image=True), *staged(3), *staged(4, image=True), published(4)]
    assert kept(rows, horizon=1) == {"i2", "g3", "g4", "i4"}
    assert kept(rows, horizon=0) == {"g4", "i4"}
    assert kept([*staged(1, image=True), *staged(2), published(2)], horizon=0) == {"i1", "g2"}


@pytest.mark.seed("H29")
def test_the_image_that_stands_in_for_dropped_changes_is_kept_whatever_the_horizon() -> None:
    rows = [*staged(1, image=True), *staged(2, image=True), published(2, dropped={TABLE: 1}), *staged(3, image=True)]
    rows += [*staged(4), published(4)]
    assert kept(rows, horizon=1) == {"i1", "g3", "i3", "g4"}, "2 is in reach by 1 and the changes after it"
    rows.append(published(4, dropped={TABLE: 3}))
    assert kept(rows, horizon=1) == {"g3", "i3", "g4"}


def test_what_a_rewind_withdrew_is_kept_for_a_day() -> None:
    rows = [*staged(1), *staged(2, 2), *staged(4), published(4), rewind(5, 2), published(5), *staged(6), published(6)]
    assert kept(rows, horizon=100, withdrawn_since=NOON) == {"g1", "g2", "g4", "g6"}
    assert kept(rows, horizon=100, withdrawn_since=LATE) == {"g1", "g2", "g6"}, "2 of the group 2..3 is in force"


def test_the_image_of_a_withdrawn_state_is_none() -> None:
    rows = [*staged(1, image=True), *staged(2, image=True), published(2), rewind(3, 1), published(3), *staged(4)]
    rows.append(published(4))
    assert kept(rows, horizon=0, withdrawn_since=LATE) == {"i1", "g4"}


def test_rows_that_were_replaced_are_kept_whatever_the_horizon() -> None:
    rows = [*staged(1), *staged(2), *staged(3), published(3)]
    rows[1].detail["manifest"]["replaced"] = {"ids": {"1": 2}, "files": {TABLE: [file("r2")]}}  # type: ignore[index]
    assert kept(rows, horizon=0) == {"r2", "g3"}


def test_replaced_rows_are_kept_where_a_rewind_took_back_the_row_that_names_them() -> None:
    """The last row of a group has the manifest; a rewind into the group leaves the replacement in force without it."""
    rows = [*staged(1), *staged(2, 3), published(4), rewind(5, 3), published(5)]
    rows[3].detail["manifest"]["replaced"] = {"ids": {"1": 2}, "files": {TABLE: [file("r2")]}}  # type: ignore[index]
    assert "r2" in kept(rows, horizon=100, withdrawn_since=LATE)


def test_a_skip_and_a_refusal_name_no_files() -> None:
    rows = [*staged(1), row(RowKind.REFUSED, 1, reason="why"), published(1)]
    assert kept(rows, horizon=100) == {"g1"}
