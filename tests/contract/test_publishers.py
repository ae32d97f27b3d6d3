"""The promises of every table of a region, for both kinds of commits: a verb is one commit, even if it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import passing
from publishers import (
    KEYS,
    REGION,
    SCHEMA,
    START,
    VERBS,
    Deltalake,
    DeltaSpark,
    LostReplyError,
    Publisher,
    Row,
    Table,
    content,
    fail_before,
    given_rows,
    lose_replies,
    rows,
    staged,
)

from drainmark.jobs.errors import AccountingError, CommitOutcomeUnknown, SchemaMismatch, SplitBrain
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.state.keyed_rows import last_per_key
from drainmark.resources.delta import commits
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import Folder

WITH_SPACE = "with space/orders"
MANAGED = pytest.mark.parametrize(
    "publisher",
    ["deltalake", "deltalake-s3", pytest.param("delta-spark", marks=[pytest.mark.spark, pytest.mark.slow])],
    indirect=True,
)
"""Tests that differ little with delta-spark, which takes seconds for each: with it only in the slow tests."""


@pytest.fixture(params=["deltalake", "deltalake-s3", pytest.param("delta-spark", marks=pytest.mark.spark)])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> Publisher:
    if request.param == "delta-spark":
        return DeltaSpark(tmp_path, request.getfixturevalue("engine"), request.getfixturevalue("template"))
    return Deltalake(request.getfixturevalue("s3_place") if request.param == "deltalake-s3" else tmp_path)


@pytest.fixture
def table(publisher: Publisher) -> Table:
    return publisher.table(WITH_SPACE)


@pytest.fixture
def history(publisher: Publisher) -> ManagedTable:
    return publisher.history()


@pytest.fixture(autouse=True)
def no_setting_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Require that no setting stays. A transaction id in the session would make Delta skip the next statement."""
    yield
    if "delta-spark" in request.node.name:
        session = request.getfixturevalue("engine").session
        names = ("write.txnAppId", "write.txnVersion", "commitInfo.userMetadata")
        assert [session.conf.get(f"spark.databricks.delta.{name}", None) for name in names] == [None, None, None]
        assert session.conf.get("spark.databricks.delta.commit.idempotencyCheck.enabled") == "false"


# --- publish ------------------------------------------------------------------------------------------------------


@MANAGED
@pytest.mark.seed("H3", "H40")
def test_a_publish_happens_once_and_in_commit_order(table: Table) -> None:
    first, second = staged(table, ("a", 1, 10, 1), ("b", 1, 5, 2)), staged(table, ("a", 2, 20, 3))
    assert not table.publish(txn_version(1, 2), first).done_before
    assert not table.publish(txn_version(1, 3), second).done_before
    before = table.delta_version()

    for epoch, sequence_id, files in ((1, 2, first), (1, 3, second)):
        again = table.publish(txn_version(epoch, sequence_id), files)
        assert again.done_before
        assert again.delta_version == before

    assert content(table) == [("a", 1, 10, 1), ("a", 2, 20, 3), ("b", 1, 5, 2)]
    assert table.txn_version() == txn_version(1, 3)
    assert table.row_count() == 3
    assert table.newest_id() == 3


@MANAGED
@pytest.mark.seed("H3")
@pytest.mark.parametrize("is_others", [False, True])
def test_an_answer_without_a_commit_is_found_out(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_others: bool
) -> None:
    """Not even where the entry behind the checked version is another commit of the region."""
    files, really = staged(table, ("a", 1, 10, 1)), commits.transact

    def silent(folder: Folder, opened: Any, region: str, version: int | None, **changes: Any) -> None:
        monkeypatch.setattr(commits, "transact", really)
        if is_others:
            really(folder, opened, region, txn_version(1, 1))

    monkeypatch.setattr(commits, "transact", silent)
    assert not table.publish(txn_version(1, 2), files).done_before
    assert content(table) == [("a", 1, 10, 1)]
    assert table.txn_version() == txn_version(1, 2)


@MANAGED
@pytest.mark.seed("H4")
def test_an_empty_publish_still_raises_the_version(table: Table) -> None:
    assert not table.publish(txn_version(1, 7), ()).done_before
    assert table.txn_version() == txn_version(1, 7)
    assert content(table) == []


@MANAGED
@pytest.mark.seed("H8")
def test_a_publish_refuses_files_that_are_gone_or_changed(table: Table) -> None:
    (file,) = staged(table, ("a", 1, 10, 1))
    wrong = StagedFile(path=file.path, size=file.size + 1, rows=1, first_id=1, last_id=1)
    with pytest.raises(AccountingError):
        table.publish(txn_version(1, 1), [wrong])
    table.folder.delete("_staged")
    with pytest.raises(AccountingError):
        table.publish(txn_version(1, 1), [file])
    assert table.txn_version() is None


@MANAGED
@pytest.mark.seed("H13")
def test_a_table_that_vanished_is_an_error_not_a_new_table(table: Table) -> None:
    files = staged(table, ("a", 1, 10, 1))
    table.folder.delete("_delta_log")
    with pytest.raises(SplitBrain):
        table.publish(txn_version(1, 1), files)


# --- merge --------------------------------------------------------------------------------------------------------


@MANAGED
@pytest.mark.seed("H5")
def test_a_merge_replaces_rows_of_equal_keys_nulls_included_and_adds_new_keys(table: Table) -> None:
    table.merge(txn_version(1, 1), given_rows(rows((None, 1, 1, 1), ("a", None, 1, 1), (None, None, 1, 1)), KEYS))
    table.merge(txn_version(1, 2), given_rows(rows((None, 1, 2, 2), (None, None, 2, 2), ("b", 1, 2, 2)), KEYS))
    expected = [(None, 1, 2, 2), (None, None, 2, 2), ("a", None, 1, 1), ("b", 1, 2, 2)]
    assert content(table) == sorted(expected, key=repr)


@MANAGED
@pytest.mark.seed("H5")
def test_two_rows_of_one_new_key_are_refused(table: Table) -> None:
    with pytest.raises(AccountingError) as refused:
        table.merge(txn_version(1, 1), given_rows(rows((None, 1, 1, 1), (None, 1, 2, 1)), KEYS))
    assert refused.value.facts["rows"] == 1
    assert table.txn_version() is None


@MANAGED
def test_a_merge_of_no_rows_and_a_repeated_merge_leave_the_rows(table: Table) -> None:
    table.merge(txn_version(1, 1), given_rows(rows(("a", 1, 1, 1)), KEYS))
    assert not table.merge(txn_version(1, 2), given_rows(rows(), KEYS)).done_before
    assert table.txn_version() == txn_version(1, 2)
    assert table.merge(txn_version(1, 1), given_rows(rows(("a", 1, 99, 1)), KEYS)).done_before
    assert content(table) == [("a", 1, 1, 1)]


@MANAGED
def test_columns_may_have_any_names(publisher: Publisher) -> None:
    names = ["Mixed Case", "a.b", 'quo"te', "back`tick", "_sequence_id"]
    table = publisher.table_of("odd", names)
    for version in (1, 2):
        source = pa.table({name: [1, version] if name == "_sequence_id" else [7, 8] for name in names})
        table.merge(version, given_rows(source, names[:4]))
    assert sorted(table.read(columns=["_sequence_id"]).column(0).to_pylist()) == [1, 2]


@MANAGED
@pytest.mark.seed("H17")
def test_rows_with_unknown_or_retyped_columns_are_not_merged(table: Table) -> None:
    good = rows(("a", 1, 1, 1))
    for source in (good.append_column("x", [[1]]), good.set_column(2, "total", [["many"]])):
        with pytest.raises(SchemaMismatch):
            table.merge(txn_version(1, 1), given_rows(source, KEYS))
    assert table.txn_version() is None


# --- rewind -------------------------------------------------------------------------------------------------------


@MANAGED
def test_a_rewind_takes_back_what_is_above(table: Table) -> None:
    table.publish(txn_version(1, 2), staged(table, ("a", 1, 1, 1), ("b", 1, 2, 2)))
    table.publish(txn_version(1, 5), staged(table, ("c", 1, 3, 3), ("d", 1, 4, 4), ("e", 1, 5, 5)))

    done = table.rewind_rows(txn_version(2, 7), 3, Staging(table.folder, 2, "r"))

    assert not done.done_before
    assert content(table) == [("a", 1, 1, 1), ("b", 1, 2, 2), ("c", 1, 3, 3)]
    assert table.rewind_rows(txn_version(2, 7), 3, Staging(table.folder, 2, "r")).done_before


@MANAGED
@pytest.mark.seed("H4")
def test_a_rewind_commits_where_nothing_leaves_so_a_late_publish_finds_it_done(table: Table) -> None:
    table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1)))
    late = staged(table, ("b", 1, 2, 2))

    table.rewind_rows(txn_version(2, 3), 1, Staging(table.folder, 2, "r"))
    assert table.txn_version() == txn_version(2, 3)

    assert table.publish(txn_version(1, 2), late).done_before
    assert content(table) == [("a", 1, 1, 1)]


@pytest.fixture
def pair(table: Table, history: ManagedTable) -> Callable[..., None]:
    """Return a function that publishes a group: changes to the history, the last of each key to the visible table."""

    def publish(epoch: int, sequence_id: int, *changes: Row) -> None:
        history.publish(txn_version(epoch, sequence_id), staged(history, *changes))
        table.merge(txn_version(epoch, sequence_id), given_rows(last_per_key(rows(*changes), KEYS), KEYS))

    return publish


@MANAGED
@pytest.mark.seed("H5", "H37")
def test_an_upsert_table_goes_back_into_the_middle_of_a_group(
    table: Table, history: ManagedTable, pair: Callable[..., None]
) -> None:
    pair(1, 2, ("a", 1, 1, 1), (None, 1, 1, 1), ("a", 1, 2, 2), ("same", 1, 2, 2))
    pair(1, 5, ("a", 1, 3, 3), (None, 1, 4, 4), ("a", 1, 5, 5), ("new", 1, 5, 5), (None, None, 5, 5))

    table.rewind_upsert(txn_version(2, 6), Restored(3, history, KEYS, SCHEMA.names))

    assert content(table) == sorted([("a", 1, 3, 3), (None, 1, 1, 1), ("same", 1, 2, 2)], key=repr)
    assert table.rewind_upsert(txn_version(2, 6), Restored(3, history, KEYS, SCHEMA.names)).done_before


# --- lost replies and lost races ----------------------------------------------------------------------------------


AFTER: dict[str, list[Row]] = {
    "publish": [*START, ("n", 1, 4, 4)],
    "publish nothing": [*START],
    "merge": [("a", 1, 4, 4), *START[1:], ("n", 1, 4, 4)],
    "merge nothing": [*START],
    "rewind rows": [START[0]],
    "rewind upsert": [START[0]],
}


def started(publisher: Publisher) -> tuple[Table, ManagedTable]:
    """Return a table and a history with three ids published."""
    history = publisher.history()
    for target in (publisher.table("started"), history):
        target.publish(txn_version(1, 3), staged(target, *START))
    return publisher.table("started"), history


def both(*sample: str) -> list[Any]:
    """Return (publisher, verb) for all verbs. With delta-spark, a second each, only the sample runs by default."""
    cells = [pytest.param("deltalake", verb) for verb in VERBS]
    cells += [pytest.param("deltalake-s3", verb, marks=pytest.mark.slow) for verb in VERBS]
    for verb in VERBS:
        marks = (pytest.mark.spark, *([] if verb in sample else [pytest.mark.slow]))
        cells.append(pytest.param("delta-spark", verb, marks=marks))
    return cells


@pytest.mark.seed("H10")
@pytest.mark.parametrize(("publisher", "verb"), both("publish"), indirect=["publisher"])
def test_a_lost_reply_is_found_out_and_nothing_is_done_twice(publisher: Publisher, verb: str) -> None:
    table, history = started(publisher)
    before = table.delta_version()

    with passing(lose_replies):
        VERBS[verb](table, history)

    assert table.delta_version() == before + 1
    assert content(table) == AFTER[verb]
    assert (table.txn_version() or 0) > txn_version(1, 3)


@pytest.mark.seed("H10")
@pytest.mark.parametrize(("publisher", "verb"), both(), indirect=["publisher"])
def test_a_failure_before_the_commit_is_passed_on_and_leaves_the_table(publisher: Publisher, verb: str) -> None:
    table, history = started(publisher)
    with passing(fail_before), pytest.raises(LostReplyError):
        VERBS[verb](table, history)
    assert content(table) == [*START]
    assert table.txn_version() == txn_version(1, 3)


@pytest.mark.seed("H2", "H3")
@pytest.mark.parametrize(("publisher", "verb"), both("rewind upsert"), indirect=["publisher"])
def test_a_commit_behind_a_successor_is_not_made(publisher: Publisher, verb: str) -> None:
    """Another owner publishes the same row and more between check and commit."""
    successor = publisher.table("started")

    def meanwhile(point: str) -> None:
        if point.endswith(".before_commit") and successor.txn_version() == txn_version(1, 3):
            successor.publish(txn_version(2, 5), staged(successor, ("late", 1, 5, 5)))

    table, history = started(publisher)
    with passing(meanwhile):
        VERBS[verb](table, history)
    assert content(table) == [*START, ("late", 1, 5, 5)]
    assert table.txn_version() == txn_version(2, 5)


@MANAGED
@pytest.mark.seed("H10")
def test_a_commit_that_never_lands_is_given_up_as_unknown(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = started(publisher)
    files = staged(table, ("n", 1, 4, 4))

    def fail(*_: Any, **__: Any) -> None:
        raise LostReplyError("before it was sent")

    monkeypatch.setattr("drainmark.resources.delta.commits.transact", fail)
    monkeypatch.setattr("drainmark.resources.delta.adopted.spark_commits.SparkCommit.append", fail)
    with pytest.raises(CommitOutcomeUnknown) as unknown:
        table.publish(txn_version(1, 4), files)
    assert isinstance(unknown.value.__cause__, LostReplyError)
    assert table.txn_version() == txn_version(1, 3)


@MANAGED
def test_the_region_is_the_transactions_name(table: Table) -> None:
    """The versions of two regions are separate, in both kinds of tables."""
    table.publish(txn_version(1, 7), ())
    assert type(table)(table.folder, "shop/returns", *_engine_of(table)).txn_version() is None
    assert table.region == REGION


def _engine_of(table: Table) -> list[Any]:
    return [] if isinstance(table, ManagedTable) else [lambda: None]
