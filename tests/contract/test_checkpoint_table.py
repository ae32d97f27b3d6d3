"""The promises of the checkpoint table: claims fence, commits are found again, rows come back in commit order."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import QueryBuilder
from harness import passing
from places import ON_A_DISK, remove
from publishers import LostReplyError, fail_before, lose_replies

from drainmark.jobs.errors import CommitOutcomeUnknown, Fenced, ForeignTable, FormatTooNew, SplitBrain
from drainmark.jobs.errors.environment import FileDamaged
from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, CheckpointRow, RowKind
from drainmark.jobs.world import Seam, World, entered
from drainmark.resources.checkpoints import checkpoint_rows
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.delta_tables import open_table
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.storage.folder import Folder

REGION = "shop/orders"


def row(kind: RowKind, epoch: int, sequence_id: int, **more: Any) -> CheckpointRow:
    fields: dict[str, Any] = {
        "attempt": uuid4().hex,
        "recorded_at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        "run_id": "run",
        "drainmark_version": "0.1.0",
        "graph_fingerprint": "graph",
        "params_hash": "params",
    }
    return CheckpointRow(kind=kind, region=REGION, epoch=epoch, sequence_id=sequence_id, **(fields | more))


def claim(epoch: int, next_id: int = 1) -> CheckpointRow:
    return row(RowKind.CLAIM, epoch, next_id)


def state(epoch: int, sequence_id: int, **more: Any) -> CheckpointRow:
    return row(RowKind.STATE, epoch, sequence_id, **more)


def shown(table: CheckpointTable) -> list[tuple[str, int, int]]:
    return [(row.kind.value, row.epoch, row.sequence_id) for row in table.rows()]


@pytest.fixture
def root(place: Folder) -> Folder:
    root = place / "checkpoints" / REGION
    CheckpointTable(root, REGION).create()
    return root


@pytest.fixture
def table(root: Folder) -> CheckpointTable:
    return CheckpointTable(root, REGION)


# --- rows ---------------------------------------------------------------------------------------------------------


def test_a_new_table_is_empty_and_creation_may_be_repeated(place: Folder) -> None:
    table = CheckpointTable(place / "new", REGION)
    assert not table.exists()
    table.create()
    table.create()
    assert table.exists()
    assert table.rows() == ()
    assert table.txn() == (0, 0)
    with pytest.raises(ForeignTable):
        CheckpointTable(place / "new", "shop/returns").create()


class _Stale(World):
    """A store whose listings show nothing of what was written lately."""

    def across(self, seam: Seam, deed: Callable[[], Any], on: object = None) -> Any:
        return [] if seam is Seam.STORE_LIST else deed()


def test_a_table_is_known_for_its_own_where_listings_lag(table: CheckpointTable, place: Folder) -> None:
    """A sink outside Delta keeps this identity for good: none would make it a sink of nobody."""
    later = CheckpointTable(place / "none", REGION)
    with entered(_Stale()):
        assert table.identity() is not None
        assert table.identity() == CheckpointTable(table.folder, REGION).identity()
        assert later.identity() is None
    later.create()
    opened = _Opened()
    with entered(opened):
        assert {later.identity() for _ in range(5)} == {CheckpointTable(later.folder, REGION).identity()}
    assert opened.number == 2, "a sink asks before each commit, and the log grows"


class _Opened(World):
    """Counts how often a table is opened."""

    number = 0

    def across(self, seam: Seam, deed: Callable[[], Any], on: object = None) -> Any:
        self.number += seam is Seam.DELTA_OPEN
        return deed()


@pytest.mark.seed("K2")
def test_every_field_comes_back(table: CheckpointTable) -> None:
    full = state(
        1,
        7,
        trigger_uri="file:///tmp/ü b.csv",
        trigger_kind="file",
        trigger_identity={"size": 10, "mtime_ns": 2**62, "etag": None},
        trigger_order=2**40,
        group_first=6,
        group_last=7,
        rows_in=3,
        bytes_in=10,
        drain_seconds=0.25,
        checkpoint_seconds=1e-9,
        detail={"manifest": {"files": {"lake/x": []}}, "note": "ünï\n"},
    )
    first = claim(1)
    table.claim(first)
    table.append([full], sequence_id=7)
    assert CheckpointTable(table.folder, REGION).rows() == (first, full)


def test_rows_come_in_commit_order_and_only_new_files_are_read(
    table: CheckpointTable, root: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.claim(claim(1))
    table.append([row(RowKind.PUBLISHED, 1, 0), state(1, 2), state(1, 1)], sequence_id=2)
    assert shown(table) == [("claim", 1, 1), ("published", 1, 0), ("state", 1, 2), ("state", 1, 1)]

    CheckpointTable(root, REGION).claim(claim(2, 3))
    read: list[str] = []
    reading = type(root).read_each
    monkeypatch.setattr(type(root), "read_each", lambda self, paths: read.extend(paths) or reading(self, paths))
    assert shown(table)[-1] == ("claim", 2, 3)
    assert len(table.rows()) == 5
    assert len(read) == 1


@pytest.mark.parametrize("place", ["local"], indirect=True)  # in a bucket, only a request tells the same file
def test_a_process_reads_a_commit_once_as_long_as_the_same_file_lies_at_its_path(
    table: CheckpointTable, root: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.claim(claim(1))
    before = CheckpointTable(root, REGION).rows()
    read: list[str] = []
    reading = type(root).read_each
    monkeypatch.setattr(type(root), "read_each", lambda self, paths: read.extend(paths) or reading(self, paths))
    assert CheckpointTable(root, REGION).rows() == before
    assert CheckpointTable(root, REGION).history().epoch == 1
    assert read == []

    (file,) = (Path(root.uri) / path for path in file_lists.live_paths(open_table(root)))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"x" * file.stat().st_size)
    damaged.replace(file)
    with pytest.raises(FileDamaged):
        CheckpointTable(root, REGION).rows()
    file.unlink()
    with pytest.raises(FileNotFoundError):
        CheckpointTable(root, REGION).history()


@ON_A_DISK
def test_a_process_lets_go_of_the_rows_of_commits_that_were_compacted(table: CheckpointTable, root: Folder) -> None:
    table.claim(claim(1))
    for number in range(1, 5):
        table.append([state(1, number)], sequence_id=number)
        table.history()
    assert table.compact(files_at_least=4)
    table.history()
    assert set(checkpoint_rows._kept[root.uri]) <= file_lists.live_paths(open_table(root))


def test_users_of_delta_can_query_it(table: CheckpointTable) -> None:
    table.claim(claim(1))
    table.append([state(1, 1, detail={"manifest": None})], sequence_id=1)
    query = "select kind, detail, recorded_at from t order by _position"
    found = QueryBuilder().register("t", open_table(table.folder)).execute(query).read_all()
    kinds, details, _ = (column.to_pylist() for column in found.columns)
    assert [str(kind) for kind in kinds] == ["claim", "state"]
    assert json.loads(str(details[1])) == {"manifest": None}


def test_a_newer_format_names_the_version_to_install(table: CheckpointTable) -> None:
    table.claim(claim(1))
    newer = state(1, 1, format_version=FORMAT_VERSION + 1, drainmark_version="9.1.0")
    table.append([newer], sequence_id=1)
    with pytest.raises(FormatTooNew) as refused:
        table.rows()
    assert refused.value.facts["drainmark_version"] == "9.1.0"
    assert "9.1.0" in (refused.value.remedy or "")


def test_a_table_that_vanished_is_an_error(place: Folder) -> None:
    with pytest.raises(SplitBrain):
        CheckpointTable(place / "none", REGION).rows()


# --- the fence ----------------------------------------------------------------------------------------------------


@pytest.mark.seed("H1")
def test_a_claim_needs_an_epoch_above_the_tables(table: CheckpointTable) -> None:
    table.claim(claim(2))
    assert table.txn() == (2, 0)
    for epoch in (1, 2):
        with pytest.raises(Fenced):
            table.claim(claim(epoch))
    table.claim(claim(5))
    assert shown(table) == [("claim", 2, 1), ("claim", 5, 1)]


@pytest.mark.seed("H1", "V103")
def test_an_older_owner_is_fenced_never_told_that_it_succeeded(table: CheckpointTable) -> None:
    table.claim(claim(1))
    table.claim(claim(2))
    for late in (state(1, 5), row(RowKind.HALT, 1, 0), row(RowKind.PUBLISHED, 1, 0), row(RowKind.REWIND, 1, 6)):
        with pytest.raises(Fenced) as fenced:
            table.append([late], sequence_id=late.sequence_id)
        assert fenced.value.facts["found"] == (2, 0)
    assert shown(table) == [("claim", 1, 1), ("claim", 2, 1)]


def test_nobody_commits_without_a_claim(table: CheckpointTable) -> None:
    with pytest.raises(Fenced):
        table.append([state(1, 1)], sequence_id=1)


@ON_A_DISK
@pytest.mark.seed("H1", "E16", "E13")
@pytest.mark.parametrize("kind", [RowKind.STATE, RowKind.SKIP, RowKind.REWIND])
def test_an_id_is_committed_once(table: CheckpointTable, kind: RowKind) -> None:
    table.claim(claim(1))
    table.append([state(1, 1), state(1, 2)], sequence_id=2)
    for sequence_id in (1, 2):
        with pytest.raises(Fenced):
            table.append([row(kind, 1, sequence_id)], sequence_id=sequence_id)
    table.append([row(kind, 1, 3)], sequence_id=3)
    assert table.txn() == (1, 3)


@ON_A_DISK
def test_what_is_no_state_may_stand_at_the_last_id(table: CheckpointTable) -> None:
    table.claim(claim(1))
    table.append([state(1, 2)], sequence_id=2)
    for kind in (RowKind.PUBLISHED, RowKind.REFUSED, RowKind.HALT, RowKind.RESUME):
        table.append([row(kind, 1, 2)], sequence_id=2)
    table.append([row(RowKind.PUBLISHED, 1, 2), state(1, 3)], sequence_id=3)
    assert [kind for kind, _, _ in shown(table)] == [
        *("claim", "state", "published", "refused", "halt", "resume", "published", "state")
    ]


def test_rows_that_cannot_be_one_commit_are_refused(table: CheckpointTable) -> None:
    table.claim(claim(1))
    for rows in ([], [state(1, 1), state(2, 1)], [claim(1)]):
        with pytest.raises(ValueError, match="one epoch"):
            table.append(rows, sequence_id=1)


# --- lost replies -------------------------------------------------------------------------------------------------


@pytest.mark.seed("H10")
def test_a_lost_reply_is_found_out(root: Folder) -> None:
    table = CheckpointTable(root, REGION)
    with passing(lose_replies):
        table.claim(claim(1))
        table.append([state(1, 1)], sequence_id=1)
        table.append([row(RowKind.HALT, 1, 1)], sequence_id=1)
        table.append([row(RowKind.REWIND, 1, 2, detail={"to": 0})], sequence_id=2)
        assert table.compact(files_at_least=2)
    assert shown(table) == [("claim", 1, 1), ("state", 1, 1), ("halt", 1, 1), ("rewind", 1, 2)]


@ON_A_DISK
@pytest.mark.seed("H10")
def test_a_lost_reply_is_found_out_even_behind_a_compaction(root: Folder) -> None:
    def compacted_meanwhile(point: str) -> None:
        if point == "checkpoint.after_commit":
            assert CheckpointTable(root, REGION).compact(files_at_least=2)
            raise LostReplyError(point)

    table = CheckpointTable(root, REGION)
    with passing(compacted_meanwhile):
        table.claim(claim(1))
        table.append([state(1, 1)], sequence_id=1)
    assert shown(table) == [("claim", 1, 1), ("state", 1, 1)]


@pytest.mark.seed("H10")
def test_a_failure_before_the_commit_leaves_nothing(root: Folder) -> None:
    table = CheckpointTable(root, REGION)
    with passing(fail_before), pytest.raises(LostReplyError):
        table.claim(claim(1))
    assert table.rows() == ()
    assert table.txn() == (0, 0)


@ON_A_DISK
def test_each_kind_of_commit_has_its_fail_points(root: Folder) -> None:
    passed: list[str] = []
    table = CheckpointTable(root, REGION)
    with passing(passed.append):
        table.claim(claim(1))
        for kind, sequence_id in ((RowKind.STATE, 1), (RowKind.SKIP, 2), (RowKind.REWIND, 3), (RowKind.HALT, 3)):
            table.append([row(kind, 1, sequence_id)], sequence_id=sequence_id)
    steps = ["claim", "checkpoint", "checkpoint", "rewind", "note"]
    commits = [point for point in passed if point.endswith("_commit")]
    assert commits == [f"{step}.{when}_commit" for step in steps for when in ("before", "after")]


@pytest.mark.seed("H1")
@ON_A_DISK
def test_the_same_attempt_may_commit_twice_and_each_commit_is_found_by_itself(root: Folder) -> None:
    """A row of an attempt does not prove that the next commit of the same attempt succeeded."""

    def refused(point: str) -> None:
        if point == "note.before_commit":
            commits.transact(root, delta_tables.open_table(root), "nobody", 1)

    table = CheckpointTable(root, REGION)
    table.claim(claim(1))
    table.append([state(1, 1, attempt="mine")], sequence_id=1)
    with passing(refused), pytest.raises(CommitOutcomeUnknown):
        table.append([row(RowKind.HALT, 1, 1, attempt="mine")], sequence_id=1)
    assert shown(table) == [("claim", 1, 1), ("state", 1, 1)]


# --- maintenance --------------------------------------------------------------------------------------------------


@pytest.mark.seed("H7", "H30")
@ON_A_DISK
def test_compaction_and_maintenance_change_no_row_and_no_version(table: CheckpointTable, root: Folder) -> None:
    table.claim(claim(3))
    for sequence_id in range(1, 6):
        table.append([state(3, sequence_id)], sequence_id=sequence_id)
    before, reader = table.rows(), CheckpointTable(root, REGION)
    reader.rows()

    assert not table.compact(files_at_least=7)
    assert table.compact(files_at_least=6)
    table.maintain()

    assert table.rows() == reader.rows() == CheckpointTable(root, REGION).rows() == before
    assert table.txn() == (3, 5)
    assert len(ManagedTable(root, REGION).files.live()) == 1
    table.append([state(3, 6)], sequence_id=6)
    assert [entry.sequence_id for entry in reader.rows()] == [1, 1, 2, 3, 4, 5, 6]
    with pytest.raises(Fenced):
        table.append([state(2, 9)], sequence_id=9)


@ON_A_DISK
@pytest.mark.seed("H7")
def test_a_compaction_that_meets_a_claim_is_given_up(root: Folder) -> None:
    owner = CheckpointTable(root, REGION)
    owner.claim(claim(1))
    owner.append([state(1, 1)], sequence_id=1)

    def taken_over(point: str) -> None:
        if point == "compact.before_commit":
            owner.claim(claim(2, 2))

    with passing(taken_over):
        assert not CheckpointTable(root, REGION).compact(files_at_least=2)
    assert owner.txn() == (2, 0)
    assert shown(owner) == [("claim", 1, 1), ("state", 1, 1), ("claim", 2, 2)]


def test_a_reader_goes_on_after_the_log_was_cleaned_under_it(table: CheckpointTable, root: Folder) -> None:
    table.claim(claim(1))
    reader = CheckpointTable(root, REGION)
    reader.rows()
    table.append([state(1, 1)], sequence_id=1)
    table.append([state(1, 2)], sequence_id=2)
    table.maintain()
    for name in [name for name in root.names("_delta_log") if name.endswith(".json")][:-1]:
        remove(root, f"_delta_log/{name}")
    table.append([state(1, 3)], sequence_id=3)
    assert [entry.sequence_id for entry in reader.rows()] == [1, 1, 2, 3]
