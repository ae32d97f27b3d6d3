"""A checkpoint table of any length: compactions in tiers, and facts from a digest and the rows after it (H7, H30)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from harness import passing
from places import ON_A_DISK

from drainmark.jobs.errors import Fenced, FormatTooNew
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, CheckpointRow, RowKind
from drainmark.resources.checkpoints import checkpoint_archive, checkpoint_table, newest_rows
from drainmark.resources.checkpoints.checkpoint_archive import LiveFile
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
from drainmark.resources.checkpoints.newest_rows import GroupSums
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.storage.folder import Folder

REGION = "shop/orders"


def row(kind: RowKind, sequence_id: int, *, epoch: int = 1, detail: dict[str, Any] | None = None) -> CheckpointRow:
    found = CheckpointRow(
        kind=kind, region=REGION, epoch=epoch, sequence_id=sequence_id, attempt=uuid4().hex,
        recorded_at=dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), run_id="run", drainmark_version="0.1.0",
        graph_fingerprint="g", params_hash="p", detail=detail or {},
    )  # fmt: skip
    if kind is not RowKind.STATE:
        return found
    return dataclasses.replace(
        found, trigger_uri=f"f{sequence_id}", trigger_order=sequence_id, trigger_identity={"size": sequence_id},
        group_first=sequence_id, group_last=sequence_id,
    )  # fmt: skip


def commit(table: CheckpointTable, number: int) -> None:
    """Commit a state as a run does: after the note about the state before it, in the same commit."""
    note = {"through": number - 1, "versions": {"lake/a": number}, "commit_seconds": {str(number - 1): number / 8}}
    table.append([row(RowKind.PUBLISHED, number - 1, detail=note), row(RowKind.STATE, number)], sequence_id=number)


@pytest.fixture
def table(place: Folder) -> CheckpointTable:
    table = CheckpointTable(place / "checkpoints" / REGION, REGION)
    table.create()
    table.claim(row(RowKind.CLAIM, 1))
    return table


def parts(table: CheckpointTable) -> list[LiveFile]:
    return sorted(map(LiveFile.of, file_lists.live_paths(delta_tables.open_table(table.folder))))


def reopened(table: CheckpointTable) -> CheckpointTable:
    return CheckpointTable(table.folder, REGION)


def require_same(table: CheckpointTable, numbers: range) -> None:
    """Require that a new object, the next look of this object, and a fold of all rows give the same facts."""
    whole = RegionHistory.from_rows(reopened(table).rows())
    for history in (table.history(), reopened(table).history()):
        assert dict(history.states) == dict(whole.states)
        assert list(history.states) == list(numbers)
        for name in ("epoch", "next_id", "versions", "unpublished", "totals", "last_outcome", "attempts", "withdrawn"):
            assert getattr(history, name) == getattr(whole, name), name


@pytest.mark.seed("H7", "H30")
@ON_A_DISK
def test_files_stay_few_and_every_row_is_found(table: CheckpointTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_archive, "TIER_FILES", 3)
    for number in range(1, 41):
        commit(table, number)
        if number % 2 == 0:
            assert table.compact(files_at_least=2)
    tiers = [part.tier for part in parts(table)]
    assert len(tiers) <= 3 * 3
    assert max(tiers) == 3
    require_same(table, range(1, 41))
    assert [each.sequence_id for each in reopened(table).rows(since=38) if each.kind is RowKind.STATE] == [38, 39, 40]
    some = reopened(table).rows(since=7, through=9)
    assert [each.sequence_id for each in some if each.kind is RowKind.STATE] == [7, 8, 9]
    history = reopened(table).history()
    assert [history.states[number].checkpoint_seconds for number in (1, 20, 39)] == [0.25, 21 / 8, 5.0]
    assert history.newest_by_uri({"f7", "f40"}) == {"f7": 7, "f40": 40}


@ON_A_DISK
def test_a_look_reads_the_digest_and_what_came_after_it(
    table: CheckpointTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 9):
        commit(table, number)
    assert table.compact(files_at_least=2)
    commit(table, 9)
    read: list[int] = []
    original = checkpoint_table.read_rows

    def noted(*arguments: Any) -> Any:
        found = original(*arguments)
        read.extend(len(rows) for rows in found.values())
        return found

    monkeypatch.setattr(checkpoint_table, "read_rows", noted)
    other = reopened(table)
    assert other.history().committed_id == 9
    assert read == [2]
    commit(table, 10)
    assert other.history().committed_id == 10
    assert read == [2, 2]
    assert table.compact(files_at_least=2)
    read.clear()
    assert other.history().committed_id == 10
    assert read == []
    assert not other.history().states.rows.recent, "what a compaction archived is let go of"


@ON_A_DISK
@pytest.mark.parametrize("is_all", [True, False])
def test_rows_that_others_optimised_beside_an_owner_are_found(table: CheckpointTable, *, is_all: bool) -> None:
    """The name of such a file does not tell its rows, and the digest of its rows may be gone, too."""
    for number in range(1, 21):
        commit(table, number)
    assert table.compact(files_at_least=8)
    commit(table, 21)
    history = table.history()
    assert history.states.rows.archived, "else nothing is looked up"
    live = delta_tables.open_table(table.folder)
    if is_all:
        live.optimize.compact()
    else:
        live.optimize.compact(target_size=max(file_lists.live_sizes(live).values()) - 1)
    commit(table, 22)
    for known in (history, table.history()):
        assert known.states[5].trigger_uri == "f5"
    require_same(table, range(1, 23))


@ON_A_DISK
def test_rewound_refused_and_replaced_files_outlive_a_compaction(table: CheckpointTable) -> None:
    for number in range(1, 6):
        commit(table, number)
    table.append([row(RowKind.REWIND, 6, detail={"to": 2, "tables": []})], sequence_id=6)
    assert table.compact(files_at_least=2)
    require_same(table, range(1, 3))
    assert [each.trigger_uri for each in reopened(table).history().withdrawn] == ["f3", "f4", "f5"]
    again = dataclasses.replace(row(RowKind.STATE, 4), sequence_id=7, group_first=7, group_last=7)
    table.append([again], sequence_id=7)
    refused = dataclasses.replace(row(RowKind.REFUSED, 7), trigger_uri="f3", trigger_identity={"size": 3})
    table.append([refused], sequence_id=7)
    assert [each.trigger_uri for each in reopened(table).history().withdrawn] == ["f5"]
    assert table.compact(files_at_least=2)
    history = reopened(table).history()
    assert [each.trigger_uri for each in history.withdrawn] == ["f5"]
    assert history.refused == (refused,)
    assert list(history.states) == [1, 2, 7]


@ON_A_DISK
@pytest.mark.seed("H7", "H10")
@pytest.mark.parametrize("ending", [pytest.param("before_commit", marks=pytest.mark.slow), "after_commit"])
def test_a_compaction_that_is_cut_off_leaves_the_rows_as_they_are(table: CheckpointTable, ending: str) -> None:
    def cut(point: str) -> None:
        if point == f"compact.{ending}":
            raise KeyboardInterrupt

    for number in range(1, 6):
        commit(table, number)
    before = table.rows()
    with passing(cut), pytest.raises(KeyboardInterrupt):
        CheckpointTable(table.folder, REGION).compact(files_at_least=2)
    assert reopened(table).rows() == before
    require_same(table, range(1, 6))
    commit(table, 6)
    commit(table, 7)
    assert table.compact(files_at_least=2)
    require_same(table, range(1, 8))


@ON_A_DISK
@pytest.mark.seed("H7")
def test_a_digest_never_speaks_for_rows_that_are_not_in_its_file(
    table: CheckpointTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that lands between the read of the file list and the read of the rows stops the compaction."""
    for number in range(1, 4):
        commit(table, number)
    original = CheckpointTable.history

    def later(self: CheckpointTable) -> RegionHistory:
        if number == 3:
            commit(reopened(table), 4)
        return original(self)

    monkeypatch.setattr(CheckpointTable, "history", later)
    assert not reopened(table).compact(files_at_least=2)
    monkeypatch.undo()
    require_same(table, range(1, 5))


@ON_A_DISK
def test_a_table_compacted_before_there_were_tiers_gets_a_digest(table: CheckpointTable) -> None:
    for number in range(1, 6):
        commit(table, number)
    staged = table._files.sorted_rows(parts(table))
    from drainmark.resources.delta.commits import replace, txn_version
    from drainmark.resources.delta.delta_tables import open_table
    from drainmark.resources.delta.file_lists import live_files
    from drainmark.resources.delta.staging import Staging

    opened = open_table(table.folder)
    files = Staging(table.folder, 1, uuid4().hex).write(staged, "compacted")
    assert replace(
        table.folder, REGION, txn_version(opened, REGION) or 0, replaced=live_files(opened, table.folder),
        rewritten=files, writer=None,
    )  # fmt: skip
    require_same(table, range(1, 6))
    commit(table, 6)
    assert reopened(table).compact(files_at_least=2)
    assert [part.tier for part in parts(table)] == [1]
    require_same(table, range(1, 7))


@ON_A_DISK
def test_the_digest_of_a_newer_format_is_refused_as_its_rows_are(table: CheckpointTable) -> None:
    newer = dataclasses.replace(row(RowKind.STATE, 1), format_version=FORMAT_VERSION + 1, drainmark_version="9.1.0")
    table.append([newer], sequence_id=1)
    with pytest.raises(FormatTooNew):
        table.history()
    with pytest.raises(FormatTooNew):
        table.compact(files_at_least=2)


@ON_A_DISK
def test_an_older_owner_stays_fenced_behind_a_compaction(table: CheckpointTable) -> None:
    commit(table, 1)
    table.claim(row(RowKind.CLAIM, 2, epoch=2))
    assert table.compact(files_at_least=2)
    with pytest.raises(Fenced):
        commit(table, 3)
    assert table.attempts({table.rows()[0].attempt, "nobody"}) == {table.rows()[0].attempt}


@ON_A_DISK
def test_the_newest_rows_are_found_across_compactions(table: CheckpointTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_archive, "TIER_FILES", 3)
    monkeypatch.setattr(checkpoint_table, "ROWS_PER_GROUP", 4)
    for number in range(1, 14):
        commit(table, number)
        if number % 2 == 0:
            assert table.compact(files_at_least=2)
    rows = reopened(table).rows()
    for count in (1, 5, 20, len(rows), 1000):
        newest = reopened(table).newest(rows=count, states=0)
        assert newest.rows == rows[-count:]
    states = [row.sequence_id for row in reopened(table).newest(rows=1, states=7).rows if row.kind is RowKind.STATE]
    assert states == list(range(7, 14))


@ON_A_DISK
def test_of_a_large_group_its_last_row_its_quarantine_and_its_sums_are_read(table: CheckpointTable) -> None:
    group = [
        dataclasses.replace(
            row(RowKind.STATE, number, detail={"rows_quarantined": 2} if number == 7 else None),
            attempt="one", group_first=1, group_last=50, rows_in=number, bytes_in=10,
        )
        for number in range(1, 51)
    ]  # fmt: skip
    table.append(group, sequence_id=50)
    for _ in range(2):
        newest = reopened(table).newest(rows=100, states=3)
        assert [each.sequence_id for each in newest.rows if each.kind is RowKind.STATE] == [7, 48, 49, 50]
        assert newest.sums == {"one": GroupSums(first_id=1, states=50, rows_in=1275, bytes_in=500)}
        table.compact(files_at_least=2)


@ON_A_DISK
def test_what_is_read_for_the_newest_rows_does_not_grow(
    table: CheckpointTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_table, "ROWS_PER_GROUP", 4)
    for number in range(1, 13):
        commit(table, number)
    assert table.compact(files_at_least=2)
    read: list[int] = []
    original = newest_rows._others

    def counted(*arguments: Any) -> Iterator[Any]:
        for part in original(*arguments):
            read.append(part.num_rows)
            yield part

    monkeypatch.setattr(newest_rows, "_others", counted)
    assert len(reopened(table).newest(rows=6, states=2).rows) == 6
    assert sum(read) <= 6 + 4, "the last row groups"
    read.clear()
    for number in range(13, 16):
        commit(table, number)
        assert table.newest(rows=2, states=1).rows[-1].sequence_id == number
    assert sum(read) == 0, "rows of small commits are read once, with the history"
