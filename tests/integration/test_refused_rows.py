"""`dm.quarantine`: rows that an operator refuses are kept with file, place and reason, and counted (I11, V110)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import rows, run_once, settle

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import DeclarationError, OperatorFailed
from drainmark.jobs.graph.params import bind_params
from drainmark.jobs.operators.sinks.quarantine import refused_rows
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.regions.plan import compile_application
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.verbs.inputs.quarantine import quarantined_files
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

REGION = "refusing/read"
TABLE = "refusing_quarantine"
CSV = {"pattern": "*.csv", "format": "csv", "schema": "name string, n int", "options": {"header": "true"}}
JSON = {"pattern": "*.json", "format": "json", "schema": "name string, n int"}


@dataclass
class Nothing:
    """A state that keeps nothing of interest."""

    rows: int = 0


def opened(inbox: Path, declare: Callable[[Any], None], **scan: Any) -> Opened:
    with dm.application("refusing") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), settle=0, **scan))
        def read(scanned: Any) -> Any:
            return scanned

        declare(read)
    application = dm.build_application(declared)
    plan = compile_application(application)
    return Opened(reference="refusing", plan=plan, params=bind_params(application.params_class, {}))


def refusing(read: Any) -> None:
    """Declare two refusals by functions of rows, one with its own reasons; the other rows are copied."""

    def negative(read: Any) -> Any:
        return F.col("n") < 0

    def named(read: Any) -> Any:
        found = dm.select(read.where("n > 100"), "name", "n", F.concat(F.lit("many: "), "n").alias("reason"))
        return found.select("*", F.explode(F.array(F.lit(1), F.lit(2))).alias("copy"))

    def good(read: Any) -> Any:
        return F.col("n").between(0, 100)

    dm.quarantine(dm.filter(negative, inputs=[read]), reason="below zero")
    dm.quarantine(dm.functor(named, inputs=[read]), name="too_many")
    dm.sink(dm.filter(good, inputs=[read]), dm.DeltaAppend("copied"))


@pytest.fixture
def large(tmp_path: Path, engine: SparkEngine) -> Iterator[Workplace]:
    """Yield a home in which Spark's tasks read the files of a group; that this process gives the same is shown by the
    other tests, and by `test_executors.py`."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, small_group_bytes=0))
    place.use_engine(engine)
    yield place
    place.registry.close()


def write(inbox: Path, kind: str) -> None:
    numbers = {"a": [1, -2, 3], "b": [4, 5], "c": [-6, 700, -8, 9]}
    inbox.mkdir()
    for name, values in numbers.items():
        if kind == "csv":
            text = "name,n\n" + "".join(f"{name}{place},{n}\n" for place, n in enumerate(values))
        else:
            text = "".join(json.dumps({"name": f"{name}{place}", "n": n}) + "\n" for place, n in enumerate(values))
        (inbox / f"{name}.{kind}").write_text(text)
    settle(inbox)


def refused(workplace: Workplace, inbox: Path) -> list[tuple[Any, ...]]:
    found = [
        (row["_sequence_id"], Path(row["source_file"]), row["position"], json.loads(row["raw"])["n"], row["reason"])
        for row in rows(workplace, REGION, TABLE)
    ]
    return sorted((number, str(path.relative_to(inbox)), *rest) for number, path, *rest in found)


@pytest.mark.spark
@pytest.mark.seed("I11")
@pytest.mark.parametrize("kind", ["csv", pytest.param("json", marks=pytest.mark.slow)])
def test_refused_rows_have_file_place_and_reason_and_are_counted(large: Workplace, tmp_path: Path, kind: str) -> None:
    """CSV and JSON: record numbers are the same, and all results in any grouping."""
    inbox = tmp_path / "inbox"
    write(inbox, kind)
    reports = run_once(large, opened(inbox, refusing, **(CSV if kind == "csv" else JSON)), max_group=3)
    assert refused(large, inbox) == [
        (1, f"a.{kind}", 2, -2, "below zero"),
        (3, f"c.{kind}", 1, -6, "below zero"),
        (3, f"c.{kind}", 2, 700, "many: 700"),
        (3, f"c.{kind}", 2, 700, "many: 700"),
        (3, f"c.{kind}", 3, -8, "below zero"),
    ]
    assert sorted(row["n"] for row in rows(large, REGION, "copied")) == [1, 3, 4, 5, 9]
    assert sum(report.rows_quarantined for report in reports) == 5
    states = [row for row in large.history(REGION).states.values() if row.kind is RowKind.STATE]
    assert [(row.rows_in, row.detail.get("rows_quarantined")) for row in states] == [(3, 1), (2, None), (4, 4)]
    assert [(file["sequence_id"], file["is_whole"], file["reasons"]) for file in quarantined_files(large, REGION)] == [
        (1, False, ["below zero"]), (3, False, ["below zero", "many: 700"]),
    ]  # fmt: skip


@pytest.mark.spark
def test_refused_rows_stand_beside_unreadable_ones_and_are_rewound(workplace: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    write(inbox, "csv")
    with (inbox / "c.csv").open("a") as file:
        file.write("c4,many\n")
    settle(inbox)
    run_once(workplace, opened(inbox, refusing, **CSV))
    found = sorted((row["_sequence_id"], row["reason"]) for row in rows(workplace, REGION, TABLE))
    assert len(found) == 6
    assert (3, "column 'n': 'many' is no int") in found
    last = workplace.history(REGION).states[3]
    assert (last.rows_in, last.detail["rows_quarantined"]) == (5, 5)
    rewind(workplace, REGION, 2, 1000)
    assert [row["_sequence_id"] for row in rows(workplace, REGION, TABLE)] == [1]
    run_once(workplace, opened(inbox, refusing, **CSV))
    assert sorted(row["reason"] for row in rows(workplace, REGION, TABLE)) == sorted(reason for _, reason in found)


@pytest.mark.spark
def test_behind_an_operator_of_many_rows_there_is_no_place_in_the_file(large: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    write(inbox, "csv")

    def counting(state: Nothing | None, read: Any) -> Any:
        return Nothing(), read[["n"]]

    def declare(read: Any) -> None:
        counted = dm.custom(counting, keys=["name"], state=Nothing, output="n int", inputs=[read])
        dm.quarantine(counted, reason="all of them")

    run_once(large, opened(inbox, declare, **CSV))
    found = rows(large, REGION, TABLE)
    assert len(found) == 9
    assert {row["position"] for row in found} == {None}
    assert {Path(row["source_file"]).name for row in found} == {"a.csv", "b.csv", "c.csv"}


@pytest.mark.spark
def test_nobody_says_why(workplace: Workplace, tmp_path: Path) -> None:
    write(tmp_path / "inbox", "csv")
    with pytest.raises(OperatorFailed, match=r"dm\.quarantine"):
        run_once(workplace, opened(tmp_path / "inbox", dm.quarantine, **CSV))


def test_outside_of_a_region_nobody_would_commit_it(tmp_path: Path) -> None:
    def declare(read: Any) -> None:
        apart = dm.autonomous(dm.filter(lambda read: F.lit(True), name="apart", inputs=[read]))
        dm.quarantine(apart, reason="lost")
        dm.sink(read, dm.DeltaAppend("copied"))

    with pytest.raises(DeclarationError) as caught:
        opened(tmp_path, declare, **CSV)
    assert "QUARANTINE_AUTONOMOUS" in {violation.rule for violation in caught.value.violations}


@pytest.mark.spark
def test_the_text_of_a_refused_row_has_its_values_as_they_were(engine: SparkEngine) -> None:
    made = "timestamp'2026-03-01 12:00:00.000009' as at, timestamp_ntz'2026-03-01 12:00:00.999999' as there, ' a ' as t"
    rows = engine.session.sql(f"select 1L as _sequence_id, {made}, cast(null as int) as n, X'00' as b, 1 as `k``y`")
    (row,) = refused_rows(rows, F.lit("why")).collect()
    assert json.loads(row["raw"]) == {
        "at": "2026-03-01T12:00:00.000009Z", "there": "2026-03-01T12:00:00.999999", "t": " a ", "k`y": 1
    }  # fmt: skip
    (empty,) = refused_rows(rows.select("_sequence_id", "b"), F.lit("why")).collect()
    assert empty["raw"] is None
