"""Change streams through operators to sinks that delete keys, by Spark, in several groupings."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from change_stream import marked
from followed import follow
from harness import run_once, settle

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import OperatorFailed, SchemaMismatch, StateIncompatible
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.plan import plan_upgrade
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.checkpoints.spark_views import view_of

pytestmark = pytest.mark.spark

REGION = "mirroring/lines"
Keys = dict[str, int]


def declare(inbox: Path, sinks: Callable[[Any], Any]) -> Opened:
    """Return an application whose lines are changes: key, value, and whether the row is gone."""
    with dm.application("mirroring") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint, d string", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned.drop("source_file")

        changed = marked(lines, "d = 'x'", name="changed", hidden=("d",))
        sinks(changed)
    return open_application(dm.build_application(declared))


def every_operator(changed: Any) -> None:
    """Declare a way through all operators that take changes: keys with small values go each another way."""

    @dm.functor(inputs=[changed])
    def shaped(changed: Any) -> Any:
        return dm.select(changed, "k", (F.col("n") * 10).alias("n"))

    @dm.filter
    def wanted(shaped: Any) -> Any:
        return F.col("k") != "hidden"

    checked = dm.expect(wanted, "n < 900", name="checked")
    ways = dm.split(checked, outputs={"small": "n < 50"}, otherwise="large", name="ways")
    both = dm.union(ways["small"], ways["large"], name="both")
    dm.sink(both, dm.DeltaUpsert("mirror", keys=["k"]))
    dm.sink(both, dm.DatabaseUpsert("crm", "mirror", keys=["k"]))


def in_stages(changed: Any) -> None:
    every_operator(dm.buffered(changed))


def write(inbox: Path, number: int, changes: list[tuple[str, int, bool]]) -> None:
    text = "".join(f"{key},{value},{'x' if gone else ''}\n" for key, value, gone in changes)
    (inbox / f"{number:03}.csv").write_text(text)
    settle(inbox)


def drawn(draw: random.Random, now: Keys) -> list[tuple[str, int, bool]]:
    """Return inserts, updates (the old row, gone, and the new one) and deletes, in any order; `now` follows them."""
    changes = []
    for key in draw.sample(["a", "b", "c", "d", "hidden"], draw.choice([0, 1, 3])):
        if key in now:
            changes.append((key, now.pop(key), True))
        elif draw.random() < 0.2:
            changes.append((key, 7, True))  # a key that is not there
        if draw.random() < 0.6:
            now[key] = draw.choice([1, 4, 6, 95])
            changes.append((key, now[key], False))
    draw.shuffle(changes)
    return changes


def seen(now: Keys) -> Keys:
    return {key: value * 10 for key, value in now.items() if key != "hidden" and value * 10 < 900}


def keys_of(rows: Any) -> Keys:
    assert set(rows.column_names) == {"k", "n", "_sequence_id"}
    return {row["k"]: row["n"] for row in rows.to_pylist()}


@pytest.mark.seed("DL1")
@pytest.mark.parametrize(("size", "way"), [(1, every_operator), (3, every_operator), (2, in_stages)])
def test_a_mirror_has_the_rows_that_are_not_gone(
    workplace: Workplace, inbox: Path, tmp_path: Path, size: int, way: Any
) -> None:
    draw, now, at = random.Random(size), dict[str, int](), dict[int, Keys]()
    place, tables = workplace, ("mirror", "database/crm/mirror")
    place.settings.databases["crm"] = f"sqlite:///{tmp_path / 'crm.db'}"
    application = declare(inbox, way)
    for number in range(1, 6):
        write(inbox, number, drawn(draw, now))
        at[number] = seen(now)
    run_once(place, application, max_group=size)
    reader = RegionReader(place.settings, REGION)
    for table in tables:
        assert keys_of(reader.visible(table)) == seen(now)
        for number in at:
            assert keys_of(reader.as_of(table, number)) == at[number], (table, number)
    for number, wanted in ((None, seen(now)), (1, at[1]), (3, at[3])):
        view = view_of(place.engine.session, place.settings, "mirror", number)
        assert {row.k: row.n for row in view.collect()} == wanted, number
    with owning(region_owner(place, REGION)) as owner:
        owner.rewind(3, 100)
    for table in tables:
        assert keys_of(reader.visible(table)) == at[3]
    run_once(place, application, max_group=size)
    for table in tables:
        assert keys_of(reader.visible(table)) == seen(now)


@pytest.mark.seed("DL2")
@pytest.mark.parametrize("size", [1, 3])
def test_an_overwritten_table_is_emptied_by_a_trigger_without_rows(
    workplace: Workplace, inbox: Path, size: int
) -> None:
    with dm.application("mirroring") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned.drop("source_file")

        dm.sink(lines, dm.DeltaOverwrite("emptied", empty=True))
        dm.sink(lines, dm.DeltaOverwrite("kept"))
    application = open_application(dm.build_application(declared))
    files = ["a,1\n", "", "b,2\nc,3\n", "d,4\n", "", ""]
    for number, text in enumerate(files, 1):
        (inbox / f"{number}.csv").write_text(text)
    settle(inbox)
    run_once(workplace, application, max_group=size)
    reader = RegionReader(workplace.settings, REGION)

    def shown(table: str, at: int | None = None) -> Keys:
        return keys_of(reader.visible(table) if at is None else reader.as_of(table, at))

    wanted = [{}, {"a": 1}, {}, {"b": 2, "c": 3}, {"d": 4}, {}, {}]
    assert shown("emptied") == {}
    assert shown("kept") == {"d": 4}
    assert [shown("emptied", at) for at in range(7)] == wanted
    for to in (5, 4, 2, 1):
        with owning(region_owner(workplace, REGION)) as owner:
            owner.rewind(to, 100)
        assert shown("emptied") == wanted[to], to
    run_once(workplace, application, max_group=size)
    reader = RegionReader(workplace.settings, REGION)
    assert shown("emptied") == {}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda changed: changed.select("k", "n"), "_gone"),
        (lambda changed: changed.where(F.rand() < 0.5), "rand"),
        (lambda changed: changed.groupBy("_sequence_id", "k").agg(F.max("_gone").alias("_gone")), "Aggregate"),
    ],
)
def test_a_function_that_treats_rows_that_are_gone_otherwise_is_refused(
    workplace: Workplace, inbox: Path, function: Any, said: str
) -> None:
    def sinks(changed: Any) -> None:
        shaped = dm.functor(function, name="shaped", inputs=[changed])
        dm.sink(shaped, dm.DeltaUpsert("mirror", keys=["k"]))

    write(inbox, 1, [("a", 1, False)])
    with pytest.raises(OperatorFailed, match=said) as refused:
        run_once(workplace, declare(inbox, sinks))
    assert refused.value.operator == "shaped"
    assert refused.value.remedy


def test_a_column_of_the_authors_is_not_taken_for_the_tag(workplace: Workplace, inbox: Path) -> None:
    with dm.application("mirroring") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint, d string", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned.drop("source_file")

        @dm.functor
        def shaped(lines: Any) -> Any:
            return lines.withColumn("_gone", F.col("d").isNotNull())

        dm.sink(shaped, dm.DeltaUpsert("mirror", keys=["k"]))
    write(inbox, 1, [("a", 1, False)])
    with pytest.raises(OperatorFailed, match="_gone"):
        run_once(workplace, open_application(dm.build_application(declared)))


@pytest.mark.seed("DL1")
def test_a_plain_mirror_goes_on_with_deletes_and_the_history_gets_the_tag(workplace: Workplace, inbox: Path) -> None:
    def plainly(changed: Any) -> None:
        dm.sink("lines", dm.DeltaUpsert("mirror", keys=["k"]))  # type: ignore[arg-type]

    def with_deletes(changed: Any) -> None:
        shown = dm.functor(
            lambda changed: dm.select(changed, "k", "n", F.lit(None).cast("string").alias("d")),
            name="shown", inputs=[changed],
        )  # fmt: skip
        dm.sink(shown, dm.DeltaUpsert("mirror", keys=["k"]), name="mirror_sink")

    write(inbox, 1, [("a", 1, False), ("b", 2, False)])
    run_once(workplace, declare(inbox, plainly))
    write(inbox, 2, [("a", 1, True), ("c", 3, False)])
    run_once(workplace, declare(inbox, with_deletes))
    reader = RegionReader(workplace.settings, REGION)
    assert {row["k"]: row["n"] for row in reader.visible("mirror").to_pylist()} == {"b": 2, "c": 3}
    with owning(region_owner(workplace, REGION)) as owner:
        owner.rewind(1, 100)
    assert {row["k"]: row["n"] for row in reader.visible("mirror").to_pylist()} == {"a": 1, "b": 2}


@pytest.mark.seed("AC1")
def test_applied_changes_take_a_plain_table_over_by_what_the_refusals_say(workplace: Workplace, inbox: Path) -> None:
    def declared(columns: list[str] | None, *, is_plain: bool = False) -> Opened:
        with dm.application("mirroring") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint, d string", settle=0))
            def lines(scanned: Any) -> Any:
                return scanned

            given: dict[str, Any] = {"keys": ["k"], "sequence_by": "n", "apply_as_deletes": "d = 'x'"}
            rows = lines if is_plain else dm.apply_changes(lines, **given, columns=columns, name="applied")
            dm.sink(rows, dm.DeltaUpsert("mirror", keys=["k"]))
        return open_application(dm.build_application(declared))

    write(inbox, 1, [("a", 5, False), ("b", 6, False)])
    run_once(workplace, declared(None, is_plain=True))
    write(inbox, 2, [("a", 3, False), ("b", 7, True), ("c", 1, False)])
    with pytest.raises(StateIncompatible) as refused:
        run_once(workplace, declared(None))
    follow(refused.value.remedy, "reset", workplace.home)
    with pytest.raises(SchemaMismatch) as mismatch:
        run_once(workplace, declared(None))
    assert "source_file" in mismatch.value.facts["columns"]
    assert '"source_file" in columns=' in (mismatch.value.remedy or "")
    run_once(workplace, declared(["k", "n", "d", "source_file"]))
    rows = RegionReader(workplace.settings, REGION).visible("mirror").to_pylist()
    found = {row["k"]: (row["n"], row["source_file"].rpartition("/")[2]) for row in rows}
    assert found == {"a": (5, "001.csv"), "c": (1, "002.csv")}


def filtered(applied: Any) -> Any:
    kept = dm.filter(lambda applied: F.col("n") > 0, name="kept", inputs=[applied])
    return dm.functor(lambda kept: dm.select(kept, "k", "n", "d"), name="shaped", inputs=[dm.buffered(kept)])


def joined_by_plain_rows(applied: Any) -> Any:
    others = dm.filter(lambda lines: F.col("n") < 0, name="others", inputs=["lines"])
    return dm.union(dm.split(applied, outputs={"some": "n > 0"}, name="ways")["some"], others, name="both")


def aggregated(applied: Any) -> Any:
    checked = dm.expect(applied, "n > 0", name="checked")
    values = {"n": dm.max("n"), "d": dm.max("d")}
    totals = dm.aggregate(checked, keys=["k"], values=values, name="totals")
    return dm.throttle(totals, rows_per_second=1e9, name="slowed")


BETWEEN = {"applied": [lambda applied: applied, filtered], "totals": [aggregated]}
"""By the operator whose state knows the rows: what may stand behind applied changes, which all kinds can but a sink."""


@pytest.mark.seed("AC1")
def test_no_changes_go_on_with_rows_that_their_state_does_not_know(
    workplace: Workplace, inbox: Path, tmp_path: Path
) -> None:
    place = workplace
    place.settings.databases["crm"] = f"sqlite:///{tmp_path / 'crm.db'}"

    def declared(*, way: Callable[[Any], Any] | None = None, name: str = "applied", sink: Any = None) -> Opened:
        with dm.application("mirroring") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint, d string", settle=0))
            def lines(scanned: Any) -> Any:
                return scanned.drop("source_file")

            given: dict[str, Any] = {"keys": ["k"], "sequence_by": "n", "apply_as_deletes": "d = 'x'"}
            rows = lines if way is None else way(dm.apply_changes(lines, **given, name=name))
            dm.sink(rows, sink or dm.DeltaUpsert("mirror", keys=["k"]), name="stored" if sink else "mirrored")
        return open_application(dm.build_application(declared))

    def refused(code: Opened, *said: str, table: str = "lake/mirror") -> StateIncompatible:
        epoch = place.history(REGION).epoch
        assert not plan_upgrade(place, code, code.plan.regions).is_compatible
        with pytest.raises(StateIncompatible) as found:
            run_once(place, code)
        assert found.value.operator in ("mirrored", "stored")
        assert found.value.facts["table"] == table
        assert all(each in str(found.value) for each in said), str(found.value)
        assert place.history(REGION).epoch == epoch
        return found.value

    def shown() -> Keys:
        return keys_of(RegionReader(place.settings, REGION).visible("mirror").drop_columns(["d"]))

    write(inbox, 1, [("a", 5, False), ("b", 6, False)])
    run_once(place, declared())
    write(inbox, 2, [("a", 3, False), ("b", 7, True), ("c", 1, False)])
    for state, ways in BETWEEN.items():
        for way in ways:
            error = refused(declared(way=way), "plain rows", f"state/mirroring/{state}")
    follow(error.remedy, "reset", place.home)
    run_once(place, declared(way=filtered))
    assert shown() == {"a": 5, "c": 1}
    refused(declared(way=aggregated), "applied", "totals")
    refused(declared(), "applied", "plain rows")
    error = refused(declared(way=filtered, name="renamed"), "applied", "renamed")
    assert 'name="applied"' in (error.remedy or "")
    write(inbox, 3, [("a", 8, True), ("e", -1, False)])
    run_once(place, declared(way=joined_by_plain_rows))  # the state knows its rows, and plain ones come beside them
    assert shown() == {"c": 1, "e": -1}
    write(inbox, 4, [("f", 2, False)])
    database = dm.DatabaseUpsert("crm", "mirror", keys=["k"])
    run_once(place, declared(sink=database))
    refused(declared(way=filtered, name="anew", sink=database), "plain rows", table="database/crm/mirror")


@pytest.mark.parametrize("way", [lambda applied: applied, filtered])
def test_changes_go_on_in_a_home_that_did_not_note_whose_state_knows_the_rows(
    workplace: Workplace, inbox: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Any], Any]
) -> None:
    """So did earlier versions, with applied changes."""

    def declared(name: str = "applied") -> Opened:
        with dm.application("mirroring") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="k string, n bigint, d string", settle=0))
            def lines(scanned: Any) -> Any:
                return scanned.drop("source_file")

            applied = dm.apply_changes(lines, keys=["k"], sequence_by="n", apply_as_deletes="d = 'x'", name=name)
            dm.sink(way(applied), dm.DeltaUpsert("mirror", keys=["k"]), name="mirrored")
        return open_application(dm.build_application(declared))

    noted = RegionTable.to_json
    with monkeypatch.context() as before:
        before.setattr(RegionTable, "to_json", lambda table: noted(dataclasses.replace(table, withdrawn_by=())))
        write(inbox, 1, [("a", 5, False), ("b", 6, False)])
        run_once(workplace, declared())
    assert not any(table.withdrawn_by for table in workplace.history(REGION).tables)
    with pytest.raises(StateIncompatible):
        run_once(workplace, declared("anew"))
    assert plan_upgrade(workplace, declared(), declared().plan.regions).is_compatible
    write(inbox, 2, [("b", 7, True), ("c", 1, False)])
    run_once(workplace, declared())
    assert keys_of(RegionReader(workplace.settings, REGION).visible("mirror").drop_columns(["d"])) == {"a": 5, "c": 1}
    assert any(table.withdrawn_by for table in workplace.history(REGION).tables)


@pytest.mark.seed("DL1")
def test_an_adopted_table_loses_the_keys_by_merge(workplace: Workplace, inbox: Path) -> None:
    root = workplace.home / "lake" / "mirror"
    session = workplace.engine.session
    session.sql(f"CREATE TABLE delta.`{root}` (k STRING, n BIGINT, note STRING) USING delta")
    session.sql(f"INSERT INTO delta.`{root}` VALUES ('theirs', 9, 'keep'), ('taken', 9, 'keep')")  # noqa: S608
    application = declare(inbox, lambda changed: dm.sink(changed, dm.DeltaUpsert("mirror", keys=["k"], adopt=True)))

    def shown() -> Keys:
        return {row.k: row.n for row in session.read.format("delta").load(str(root)).collect()}

    write(inbox, 1, [("a", 1, False), ("b", 2, False), ("none", 0, True)])
    write(inbox, 2, [("a", 1, True), ("b", 2, True), ("b", 3, False)])
    write(inbox, 3, [("taken", 9, True), ("a", 5, False)])
    for wanted in ({"a": 1, "b": 2}, {"b": 3}, {"b": 3, "a": 5}):
        run_once(workplace, application, max_group=1, max_triggers=1, scan=wanted == {"a": 1, "b": 2})
        assert shown() == {"theirs": 9, **wanted, **({} if "a" in wanted and wanted["a"] == 5 else {"taken": 9})}
    for to, wanted in ((2, {"b": 3}), (1, {"a": 1, "b": 2}), (0, {})):
        with owning(region_owner(workplace, REGION)) as owner:
            owner.rewind(to, 100)
        assert shown() == {"theirs": 9, **wanted}
