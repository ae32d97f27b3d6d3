"""Sinks on tables that others made: run, refuse, rewind, take over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from harness import run_once, starts_of_spark, write

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import AdoptionRefused, ForeignTable, Halted, TableRefused
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.regions.explain import as_json, as_mermaid, as_text
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.checkpoints.as_of import RegionReader, read_at
from drainmark.resources.checkpoints.spark_views import view_of
from drainmark.resources.delta import commits
from drainmark.resources.delta.keyed import keyed_changes, keyed_merge

pytestmark = pytest.mark.spark

REGION = "adopting/lines"
FEATURES = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"


def declare(inbox: Path, *sinks: Any, shape: Callable[[Any], Any] = lambda rows: rows) -> Opened:
    """Return an application that writes `k` and `n` of each CSV line to these sinks."""
    with dm.application("adopting") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def shaped(lines: Any) -> Any:
            return shape(dm.select(lines, "k", "n"))

        for sink in sinks:
            dm.sink(shaped, sink)
    return open_application(dm.build_application(declared))


def make(workplace: Workplace, table: str, columns: str, *further: str, partitioned: str = "") -> Path:
    """Create a table as its owner would; then run the `further` statements, with its name in place of `{}`."""
    root = workplace.home / "lake" / table
    name = f"delta.`{root}`"
    by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
    session = workplace.engine.session
    session.sql(f"CREATE TABLE {name} ({columns}) USING delta {by} TBLPROPERTIES ({FEATURES})")
    for statement in further:
        session.sql(statement.format(name))
    return root


def seen(workplace: Workplace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return rows as Spark reads them, which is the view of all other users."""
    frame = workplace.engine.session.read.format("delta").load(str(workplace.home / "lake" / table))
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


COLUMNS = "k STRING NOT NULL, n BIGINT, twice BIGINT GENERATED ALWAYS AS (n * 2), parity INT, note STRING"


def test_rows_arrive_beside_those_of_others_and_a_rewind_leaves_theirs(workplace: Workplace, inbox: Path) -> None:
    """The table has column mapping, deletion vectors, NOT NULL, a constraint, a generated column and partitions."""
    make(
        workplace, "orders", COLUMNS, "ALTER TABLE {} ADD CONSTRAINT small CHECK (n < 100)",
        "INSERT INTO {} (k, n, parity, note) VALUES ('theirs', 7, 1, 'keep')", partitioned="parity",
    )  # fmt: skip

    def shape(rows: Any) -> Any:
        return rows.withColumn("parity", (F.col("n") % 2).cast("int"))

    both = declare(inbox, dm.DeltaAppend("orders", adopt=True), dm.DeltaUpsert("plain", ["k"]), shape=shape)
    write(inbox, "a,1\nb,2\n", "a,3\n", "c,4\n")
    run_once(workplace, both)

    theirs = ("theirs", 7, 14, 1, "keep", None)
    columns = ("k", "n", "twice", "parity", "note", "_sequence_id")
    mine = [("a", 1, 2, 1, None, 1), ("b", 2, 4, 0, None, 1), ("a", 3, 6, 1, None, 2), ("c", 4, 8, 0, None, 3)]
    assert seen(workplace, "orders", *columns) == sorted([*mine, theirs], key=repr)

    plan = plan_reset(workplace, REGION, RewindTarget(to=2))
    assert plan.rows["lake/orders"] == 1
    reset(workplace, plan)
    assert seen(workplace, "orders", *columns) == sorted([*mine[:3], theirs], key=repr)
    run_once(workplace, both)
    keys = RegionReader(workplace.settings, "adopting").visible("orders").column("k").to_pylist()
    assert sorted(keys) == ["a", "a", "b", "c", "theirs"]

    found = read_at("adopting", "orders", at=2, home=str(workplace.home))
    assert sorted(found.column("n").to_pylist()) == [1, 2, 3]
    assert found.column_names == ["_sequence_id", "k", "n", "parity"]
    staged = workplace.home / "lake" / "orders" / "_staged"
    assert not list(staged.iterdir()), "what is published is not kept twice"
    require_verbs_without_a_session(workplace)


def require_verbs_without_a_session(workplace: Workplace) -> None:
    """Assert that an operator's verb starts no session if nothing is to be published."""
    other = Workplace(workplace.settings)
    starts = starts_of_spark(other)
    with owning(region_owner(other, REGION)) as owner:
        owner.halts.resume("looked at")
    assert starts == []
    assert other.history(REGION).last_outcome is Outcome.CLEAN
    other.registry.close()


@pytest.mark.parametrize(
    ("most_bytes", "to_initial"),
    [
        pytest.param(2**40, True, id="at once", marks=pytest.mark.slow),
        pytest.param(500, True, id="in parts to the beginning", marks=pytest.mark.slow),
        pytest.param(500, False, id="in parts", marks=pytest.mark.slow),
    ],
)
def test_an_upsert_goes_back_key_by_key(
    workplace: Workplace, inbox: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, to_initial: bool
) -> None:
    """With all changed rows in this process, and with too many rows for that: then Spark reads them from files."""
    monkeypatch.setattr(keyed_merge, "_FEW_BYTES", most_bytes)
    monkeypatch.setattr(keyed_merge, "_PART_BYTES", most_bytes)
    at_once = keyed_changes.KeyedChanges.at_once if most_bytes > 500 else None
    monkeypatch.setattr(keyed_changes.KeyedChanges, "at_once", at_once)
    make(workplace, "newest", "k STRING, n BIGINT, note STRING",
         "INSERT INTO {} (k, n, note) VALUES ('theirs', 7, 'keep')")  # fmt: skip
    application = declare(inbox, dm.DeltaUpsert("newest", ["k"], adopt=True))
    write(inbox, "a,1\nb,2\n", "a,3\n", "c,4\n")
    run_once(workplace, application)
    theirs = ("theirs", 7, "keep", None)
    columns = ("k", "n", "note", "_sequence_id")
    assert seen(workplace, "newest", *columns) == [("a", 3, None, 2), ("b", 2, None, 1), ("c", 4, None, 3), theirs]
    reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=1)))
    assert seen(workplace, "newest", *columns) == [("a", 1, None, 1), ("b", 2, None, 1), theirs]
    if to_initial:
        reset(workplace, plan_reset(workplace, REGION, RewindTarget(to_initial=True)))
        assert seen(workplace, "newest", *columns) == [theirs]


@pytest.mark.parametrize(
    "sink",
    [
        dm.DeltaAppend("strict", adopt=True),
        pytest.param(dm.DeltaUpsert("strict", ["k"], adopt=True), marks=pytest.mark.slow),
    ],
)
def test_rows_that_break_a_constraint_halt_before_they_are_committed(
    workplace: Workplace, inbox: Path, sink: Any
) -> None:
    """After the commit point the rows would have to be published, and they never could be."""
    make(workplace, "strict", "k STRING, n BIGINT", "ALTER TABLE {} ADD CONSTRAINT small CHECK (n < 100)")
    application = declare(inbox, sink)
    write(inbox, "a,1\n", "b,2\nb,500\n")
    with pytest.raises(Halted) as halted:
        run_once(workplace, application, max_group=1)
    assert "constraint small (n < 100)" in str(halted.value)
    assert halted.value.facts["trigger"].endswith("1.csv")
    history = workplace.history(REGION)
    assert len(history.states) == 1
    assert history.last_error is not None
    assert (history.last_error["id"], history.last_error["operator"]) == ("CONSTRAINT_VIOLATED", "strict_sink")
    assert not history.unpublished
    assert seen(workplace, "strict", "k", "n") == [("a", 1)]


def test_null_breaks_what_delta_says_it_breaks(workplace: Workplace, inbox: Path) -> None:
    """A CHECK that is null, and NOT NULL, are judged as by delta-spark: else a commit could not be published."""
    make(workplace, "strict", "k STRING NOT NULL, n BIGINT", "ALTER TABLE {} ADD CONSTRAINT small CHECK (n < 100)")
    session = workplace.engine.session
    root = workplace.home / "lake" / "strict"
    with pytest.raises(Exception, match="small"):
        session.sql(f"INSERT INTO delta.`{root}` VALUES ('a', null)")  # noqa: S608
    application = declare(inbox, dm.DeltaAppend("strict", adopt=True))
    write(inbox, "a,\n")
    with pytest.raises(Halted, match="small"):
        run_once(workplace, application)


@pytest.mark.parametrize("is_view", [False, True])
def test_a_state_is_whole_while_a_run_publishes_it(
    workplace: Workplace, inbox: Path, monkeypatch: pytest.MonkeyPatch, is_view: bool
) -> None:
    """The run publishes just before it is asked what it has published, or just after."""
    make(workplace, "orders", "k STRING, n BIGINT")
    application = declare(inbox, dm.DeltaAppend("orders", adopt=True))
    write(inbox, "a,1\n")
    with pytest.raises(InjectedFailure):
        run_twice_failing(workplace, application)
    arm("")
    asked = commits.txn_version

    def overtaken(table: Any, region: str) -> int | None:
        monkeypatch.setattr(commits, "txn_version", asked)
        found = asked(table, region) if is_view else None
        run_once(workplace, application)
        return found if is_view else asked(table, region)

    monkeypatch.setattr(commits, "txn_version", overtaken)
    if is_view:
        rows = view_of(workplace.engine.session, workplace.settings, "orders", 1).toArrow()
    else:
        rows = read_at("adopting", "orders", at=1, home=str(workplace.home))
    assert rows.column("n").to_pylist() == [1]
    assert not workplace.history(REGION).unpublished


@pytest.mark.slow
def test_a_constraint_added_after_the_check_says_how_to_go_on(workplace: Workplace, inbox: Path) -> None:
    root = make(workplace, "strict", "k STRING, n BIGINT")
    application = declare(inbox, dm.DeltaAppend("strict", adopt=True))
    write(inbox, "a,500\n")
    arm("publish.before_commit:raise")
    with pytest.raises(InjectedFailure):
        run_twice_failing(workplace, application)
    arm("")
    session = workplace.engine.session
    session.sql(f"ALTER TABLE delta.`{root}` ADD CONSTRAINT small CHECK (n < 100)")
    with pytest.raises(Halted) as halted:
        run_once(workplace, application)
    assert isinstance(halted.value.__cause__, TableRefused)
    assert "small" in str(halted.value)
    with pytest.raises(Halted), owning(region_owner(workplace, REGION)):
        pass  # an operator's verb does not get past it either
    session.sql(f"ALTER TABLE delta.`{root}` DROP CONSTRAINT small")
    with owning(region_owner(workplace, REGION)) as owner:
        owner.halts.resume("the constraint is gone")
    run_once(workplace, application)
    assert seen(workplace, "strict", "k", "n", "_sequence_id") == [("a", 500, 1)]


def give_feature(root: Path, name: str) -> None:
    """Let a table have a feature of writers that no program of today has, as a program of tomorrow would."""
    opened = DeltaTable(root)
    protocol = opened.protocol()
    writers = sorted({*(protocol.writer_features or ()), "appendOnly", "invariants", name})
    value: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": 7,
        "writerFeatures": writers,
    }
    if protocol.reader_features:
        value["readerFeatures"] = protocol.reader_features
    about = {"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL"}}
    entry = root / "_delta_log" / f"{opened.version() + 1:020d}.json"
    entry.write_text("".join(f"{json.dumps(line)}\n" for line in (about, {"protocol": value})))


def test_a_feature_that_spark_cannot_write_is_refused_by_name_and_at_once(workplace: Workplace, inbox: Path) -> None:
    root = make(workplace, "newer", "k STRING, n BIGINT")
    application = declare(inbox, dm.DeltaAppend("newer", adopt=True))
    write(inbox, "a,1\n")
    run_once(workplace, application)
    give_feature(root, "brandNew")
    (inbox / "9.csv").write_text("a,2\n")
    with pytest.raises(Halted) as halted:
        run_once(workplace, application)
    cause = halted.value.__cause__
    assert isinstance(cause, TableRefused)
    assert ("brandNew" in str(cause), "newer" in str(cause), "DROP FEATURE" in (cause.remedy or "")) == (True,) * 3


def test_a_table_with_a_feature_that_spark_cannot_write_is_not_adopted(workplace: Workplace, inbox: Path) -> None:
    give_feature(make(workplace, "newer", "k STRING, n BIGINT"), "brandNew")
    write(inbox, "a,1\n")
    with pytest.raises(AdoptionRefused, match="brandNew"):
        run_once(workplace, declare(inbox, dm.DeltaAppend("newer", adopt=True)))


def run_twice_failing(workplace: Workplace, application: Opened) -> None:
    """Run the application; it fails when it publishes, and fails again when it rolls forward within the run."""
    arm("publish.before_commit:raise:1,publish.before_commit:raise:2")
    run_once(workplace, application)


@pytest.mark.parametrize(
    ("columns", "further", "said"),
    [
        ("k STRING, n BIGINT, i BIGINT GENERATED ALWAYS AS IDENTITY", (), "identity"),
        ("k STRING, n INT", (), "n is long, expected integer"),
        ("k STRING", (), "n is no column"),
        ("k STRING, n BIGINT GENERATED ALWAYS AS (CAST(1 AS BIGINT))", (), "n is generated"),
        ("k STRING, n BIGINT, m BIGINT NOT NULL", (), "m is NOT NULL without a default"),
        ("k STRING, n BIGINT", ("ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'TRUE')",), "append-only"),
        ("k STRING, n BIGINT", ("ALTER TABLE {} SET TBLPROPERTIES ('drainmark.region' = 'a/b')",), "region 'a/b'"),
        ("k CHAR(3), n BIGINT", (), "CHAR"),
    ],
)  # fmt: skip
def test_what_cannot_be_promised_is_refused_before_any_claim(
    workplace: Workplace, inbox: Path, columns: str, further: tuple[str, ...], said: str
) -> None:
    make(workplace, "theirs", columns, *further)
    write(inbox, "a,1\n")
    with pytest.raises(AdoptionRefused) as refused:
        run_once(workplace, declare(inbox, dm.DeltaAppend("theirs", adopt=True)))
    assert said in str(refused.value)
    assert refused.value.remedy
    assert not workplace.store(REGION).checkpoint.exists()


def test_a_merge_cannot_be_checked_against_columns_that_only_the_table_has(workplace: Workplace, inbox: Path) -> None:
    make(workplace, "theirs", "k STRING, n BIGINT, top BIGINT", "ALTER TABLE {} ADD CONSTRAINT low CHECK (n <= top)")
    write(inbox, "a,1\n")
    with pytest.raises(AdoptionRefused, match="low"):
        run_once(workplace, declare(inbox, dm.DeltaUpsert("theirs", ["k"], adopt=True)))


def test_a_table_is_adopted_on_request_only_and_must_exist(workplace: Workplace, inbox: Path) -> None:
    make(workplace, "theirs", "k STRING, n BIGINT")
    write(inbox, "a,1\n")
    with pytest.raises(ForeignTable) as foreign:
        run_once(workplace, declare(inbox, dm.DeltaAppend("theirs")))
    assert "adopt=True" in (foreign.value.remedy or "")
    with pytest.raises(AdoptionRefused, match="no Delta table"):
        run_once(workplace, declare(inbox, dm.DeltaAppend("nowhere", adopt=True)))
    run_once(workplace, declare(inbox, dm.DeltaAppend("managed")))
    with pytest.raises(AdoptionRefused, match="manages it"):
        run_once(workplace, declare(inbox, dm.DeltaAppend("managed", adopt=True)))


def test_graph_says_what_is_promised_on_which_condition(inbox: Path) -> None:
    plan = declare(inbox, dm.DeltaAppend("theirs", adopt=True), dm.DeltaAppend("mine")).plan
    text, (theirs, mine) = as_text(plan), as_json(plan)["regions"][0]["tables"]
    assert "exactly-once on condition" in text
    assert "theirs: as long as one JVM at a time writes to it" in text
    assert theirs["guarantee"] == mine["guarantee"] == "exactly-once"
    assert "rewind" in theirs["condition"]
    assert mine["condition"] is None
    assert "adopted: exactly-once on condition" in as_mermaid(plan)
