"""Promises of adopted tables alone: commits that delta-spark skips or loses, late commits, rows of others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from harness import passing
from publishers import KEYS, REGION, SCHEMA, DeltaSpark, content, given_rows, make, rows, staged
from pyspark.sql.functions import udf
from waiting import SOON, eventually

from drainmark.jobs.errors import AccountingError, SplitBrain
from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.protocol.records.ids import app_id, txn_version
from drainmark.jobs.state.keyed_rows import last_per_key
from drainmark.resources.delta.adopted.adopted_table import AdoptedTable
from drainmark.resources.delta.adopted.spark_commits import SparkCommit, no_rows, session_settings
from drainmark.resources.delta.delta_tables import open_table
from drainmark.resources.delta.file_lists import live_paths
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark


@pytest.fixture
def table(engine: Any, template: Path, tmp_path: Path) -> AdoptedTable:
    return DeltaSpark(tmp_path, engine, template).table("orders")


def commit_of(table: AdoptedTable, engine: Any, version: int) -> SparkCommit:
    return SparkCommit(session=engine.session, folder=table.folder, region=REGION, version=version)


# --- commits that are not what they seem --------------------------------------------------------------------------


def test_a_commit_that_is_acknowledged_and_not_in_the_log_is_no_success(
    table: AdoptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local disk, a JVM commits with a rename: a rename of another JVM at the same moment replaces the commit."""
    monkeypatch.setattr(SparkCommit, "append", lambda *_: None)
    with pytest.raises(SplitBrain, match="acknowledged"):
        table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1)))


@pytest.mark.slow
def test_a_skip_that_nothing_explains_is_no_success(table: AdoptedTable, engine: Any) -> None:
    """A process that is no owner used the transaction id of the region between check and commit."""

    def meanwhile(point: str) -> None:
        if point == "publish.before_commit":
            rows_ = no_rows(engine.session, table.folder)
            transaction = {"txnAppId": app_id(REGION), "txnVersion": str(txn_version(9, 9))}
            rows_.write.format("delta").mode("append").options(**transaction).save(table.folder.uri)

    with passing(meanwhile), pytest.raises(SplitBrain, match="no owner"):
        table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1)))


@pytest.mark.seed("H3")
def test_a_late_append_of_an_older_owner_is_refused_by_the_table(
    table: AdoptedTable, engine: Any, tmp_path: Path
) -> None:
    """A server goes on with the append of a dead client while the next owner publishes the same row.

    So claims need no fence in the table: an append under way always belongs to a committed row, and a claim first
    publishes all committed rows to the table.
    """
    files = staged(table, ("a", 1, 1, 1), ("b", 1, 2, 1))
    begun, go = tmp_path / "begun", tmp_path / "go"

    def held() -> str:
        begun.touch()
        until = time.monotonic() + SOON
        while not go.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return ""

    found = engine.session.createDataFrame(rows(("a", 1, 1, 1), ("b", 1, 2, 1))).coalesce(1)  # leaves cores to others
    slow = found.select(
        udf(lambda customer: customer + held(), "string")("customer").alias("customer"), "day", "total", "_sequence_id"
    )
    raised: list[BaseException] = []

    def zombie() -> None:
        try:
            options = {"txnAppId": app_id(REGION), "txnVersion": str(txn_version(1, 1)), "userMetadata": "zombie"}
            slow.write.format("delta").mode("append").options(**options).save(table.folder.uri)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    eventually(lambda: begun.exists() or raised, "a task of the zombie, which has read the version of the table")
    assert not table.publish(txn_version(1, 1), files).done_before
    go.touch()
    thread.join(SOON)
    assert len(raised) == 1
    assert "ConcurrentTransaction" in str(raised[0])
    assert content(table) == [("a", 1, 1, 1), ("b", 1, 2, 1)]


def test_settings_are_put_back_after_a_failure_and_a_users_own_kept(engine: Any) -> None:
    """A transaction id that stays would make Delta skip the next statement of the session, and report success."""
    name, other = "spark.databricks.delta.write.txnVersion", "spark.databricks.delta.commit.idempotencyCheck.enabled"
    engine.session.conf.set(other, "true")
    try:
        with pytest.raises(ZeroDivisionError), session_settings(engine.session, {name: "7", other: "false"}):
            assert engine.session.conf.get(name) == str(7 // (engine.session.conf.get(other) == "true"))
        assert engine.session.conf.get(name, None) is None
        assert engine.session.conf.get(other) == "true"
    finally:
        engine.session.conf.unset(other)


def test_an_append_of_many_rows_goes_by_spark(table: AdoptedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drainmark.resources.delta.adopted.spark_writer._BY_ARROW_BYTES", 0)
    table.publish(txn_version(1, 1), staged(table, ("a", 1, 1, 1), (None, None, 2, 1)))
    assert content(table) == sorted([("a", 1, 1, 1), (None, None, 2, 1)], key=repr)


# --- files that executors wrote elsewhere -------------------------------------------------------------------------


@contextmanager
def losing(table: AdoptedTable, damage: Callable[[Path], None]) -> Iterator[list[Path]]:
    """Damage the files that an append commits, as if an executor wrote to its own disk; yield these files."""
    root, hit = Path(table.folder.uri), list[Path]()

    def damaging(point: str) -> None:
        if point == "publish.after_commit":
            hit.extend(path for path in root.rglob("*.parquet") if "_staged" not in path.parts and path not in before)
            for path in hit:
                damage(path)

    before = set(root.rglob("*.parquet"))
    with passing(damaging):
        yield hit


def hide(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))


def cut(path: Path) -> None:
    hide(path)
    path.write_bytes(path.with_suffix(".elsewhere").read_bytes()[:-9])


@pytest.mark.seed("DX1")
@pytest.mark.parametrize("damage", [hide, pytest.param(cut, marks=pytest.mark.slow)])
def test_what_is_committed_and_not_here_keeps_its_staged_files_until_it_is(
    table: AdoptedTable, damage: Callable[[Path], None]
) -> None:
    """A second publish finds the commit done; but it fails again, and does not delete the only rows that are here."""
    files = staged(table, ("a", 1, 1, 1), ("b", 1, 2, 1))
    with losing(table, damage) as lost:
        for _ in range(2):
            with pytest.raises(AccountingError) as refused:
                table.publish(txn_version(1, 1), files)
            assert refused.value.facts["path"] in str(lost[0])
            assert (Path(table.folder.uri) / files[0].path).exists()
    for path in lost:
        path.with_suffix(".elsewhere").rename(path)
    assert table.publish(txn_version(1, 1), files).done_before
    assert content(table) == [("a", 1, 1, 1), ("b", 1, 2, 1)]
    assert not (Path(table.folder.uri) / files[0].path).exists()


@pytest.mark.slow
@pytest.mark.seed("DX1")
def test_what_is_lost_is_appended_by_hand(table: AdoptedTable, engine: Any) -> None:
    """The error tells how. A table that was only restored is refused, too: delta-spark would skip the rows."""
    session, name = engine.session, f"delta.`{table.folder.uri}`"
    before = table.delta_version()
    files = staged(table, ("a", 1, 1, 1), ("b", 1, 2, 1))
    with losing(table, Path.unlink), pytest.raises(AccountingError):
        table.publish(txn_version(1, 1), files)
    session.sql(f"RESTORE TABLE {name} TO VERSION AS OF {before}")
    with pytest.raises(AccountingError) as refused:
        table.publish(txn_version(1, 1), files)
    assert (refused.value.facts["rows"], refused.value.facts["expected"]) == (0, 2)
    SparkCommit(session=session, folder=table.folder, region="by/hand", version=1).append(
        session.read.parquet(str(Path(table.folder.uri) / files[0].path))
    )
    assert table.publish(txn_version(1, 1), files).done_before
    assert content(table) == [("a", 1, 1, 1), ("b", 1, 2, 1)]


@pytest.mark.seed("DX1")
def test_an_append_of_other_rows_than_were_staged_is_found(table: AdoptedTable, engine: Any) -> None:
    read = table._writer.staged
    table._writer.staged = lambda *each: read(*each).limit(1)  # type: ignore[method-assign]
    files = staged(table, ("a", 1, 1, 1), ("b", 1, 2, 1))
    with pytest.raises(AccountingError) as refused:
        table.publish(txn_version(1, 1), files)
    assert (refused.value.facts["rows"], refused.value.facts["expected"]) == (1, 2)
    assert (Path(table.folder.uri) / files[0].path).exists()


@pytest.mark.slow
def test_what_others_rewrote_since_is_in_the_table(table: AdoptedTable, engine: Any) -> None:
    """The published files left the table before its owner deleted the staged ones, and may be vacuumed."""
    files = staged(table, ("a", 1, 1, 1), ("b", 1, 2, 1))
    kept = Path(table.folder.uri) / files[0].path
    copy = kept.read_bytes()
    table.publish(txn_version(1, 1), files)
    engine.session.sql(f"UPDATE delta.`{table.folder.uri}` SET total = 5")  # noqa: S608
    engine.session.sql(f"OPTIMIZE delta.`{table.folder.uri}`")
    for path in set(kept.parents[2].glob("*.parquet")) - {kept.parents[2] / live for live in live_paths_of(table)}:
        path.unlink()
    kept.parent.mkdir(parents=True)
    kept.write_bytes(copy)
    assert table.publish(txn_version(1, 1), files).done_before
    assert content(table) == [("a", 1, 5, 1), ("b", 1, 5, 1)]


def live_paths_of(table: AdoptedTable) -> set[str]:
    return live_paths(open_table(table.folder))


@pytest.mark.seed("DX1")
def test_executors_are_asked_before_an_operators_verb_commits(
    table: AdoptedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb publishes without a run; a run would have asked."""
    asked: list[Path] = []

    def refuse(_: SparkEngine, folders: Sequence[Path]) -> None:
        asked.extend(folders)
        raise ClusterRefused("they write elsewhere")

    files = staged(table, ("a", 1, 1, 1))
    monkeypatch.setattr(SparkEngine, "require_outputs", refuse)
    with pytest.raises(ClusterRefused):
        table.publish(txn_version(1, 1), files)
    assert asked == [Path(table.folder.uri)]
    assert table.txn_version() is None
    assert (Path(table.folder.uri) / files[0].path).exists()


@pytest.mark.slow
@pytest.mark.seed("DX1")
def test_what_a_merge_committed_is_here(table: AdoptedTable) -> None:
    with losing(table, hide) as lost:
        for _ in range(2):
            with pytest.raises(AccountingError) as refused:
                table.merge(txn_version(1, 1), given_rows(rows(("a", 1, 1, 1)), KEYS))
            assert refused.value.facts["path"] in str(lost[0])


# --- rows and columns of others -----------------------------------------------------------------------------------


def test_rows_of_others_stay_whatever_the_region_does(table: AdoptedTable, engine: Any, tmp_path: Path) -> None:
    """A row of others with a key of the region belongs to the others: a rewind neither changes nor deletes it."""
    session, name = engine.session, f"delta.`{table.folder.uri}`"
    session.sql(f"INSERT INTO {name} (customer, day, total) VALUES ('theirs', 1, 9)")  # noqa: S608
    history = DeltaSpark(tmp_path, engine, tmp_path).history()
    groups = ([("a", 1, 1, 1), ("b", 1, 1, 1)], [("a", 1, 2, 2), ("b", 1, 2, 2), ("n", 1, 2, 2)])
    for number, changes in enumerate(groups, 1):
        history.publish(txn_version(1, number), staged(history, *changes))
        table.merge(txn_version(1, number), given_rows(last_per_key(rows(*changes), KEYS), KEYS))
    session.sql(f"DELETE FROM {name} WHERE customer = 'b'")  # noqa: S608
    session.sql(f"INSERT INTO {name} (customer, day, total) VALUES ('b', 1, 100)")  # noqa: S608

    table.rewind_upsert(txn_version(2, 3), Restored(1, history, KEYS, SCHEMA.names))

    found = sorted(tuple(row.values()) for row in table.read(["customer", "total", "cents"]).to_pylist())
    assert found == [("a", 1, 100), ("b", 100, 10000), ("theirs", 9, 900)]
    assert table.newest_id() == 1


def test_defaults_varchars_and_invariants_are_judged_as_delta_does(engine: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake" / "terms"
    make(engine, root, "customer VARCHAR(3), day INT DEFAULT 5, total BIGINT",
         "'delta.feature.allowColumnDefaults' = 'supported'")  # fmt: skip
    session = engine.session
    session.sql(f"ALTER TABLE delta.`{root}` ADD CONSTRAINT early CHECK (day < 6)")
    table = AdoptedTable(root, REGION, lambda: engine)
    table.create(_schema("customer string, total bigint, _sequence_id bigint", session))

    def breach(text: str) -> Any:
        found = table.breach(session.createDataFrame(pa.table({"customer": [text], "total": [1], "_sequence_id": [4]})))
        return found and (found.rule, found.rows, found.first_id)

    assert breach("abc") is None
    assert breach("abc  ") is None
    assert breach("abcd") == ("varchar(3) of customer", 1, 4)
    SparkCommit(session=session, folder=table.folder, region=REGION, version=1).append(
        session.createDataFrame(pa.table({"customer": ["abc"], "total": [1], "_sequence_id": [4]}))
    )
    assert table.read(["customer", "day"]).to_pylist() == [{"customer": "abc", "day": 5}]
    session.sql(f"ALTER TABLE delta.`{root}` DROP CONSTRAINT early")
    session.sql(f"ALTER TABLE delta.`{root}` ADD CONSTRAINT five CHECK (day = 5)")
    session.sql(f"ALTER TABLE delta.`{root}` ALTER COLUMN day SET DEFAULT 6")
    assert breach("abc") == ("constraint five", 1, 4)


def _schema(ddl: str, session: Any) -> str:
    return str(session.createDataFrame([], ddl).schema.json())
