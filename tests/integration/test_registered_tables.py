"""Sinks with tables that have names in a Spark catalogue: a real session, its own catalogue, and its failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from waiting import SOON, eventually

import drainmark as dm
from drainmark.jobs.errors import DeclarationError
from drainmark.jobs.errors.environment import CatalogueFailed
from drainmark.jobs.runtime import table_names
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.testing.running import Result, run_app
from drainmark.resources.delta import catalogue as catalogue_names
from drainmark.resources.spark.session import SparkEngine

SCHEMA = "registered"
HERE = f"spark_catalog.{SCHEMA}"
LINES = {"1.csv": "a,1\nb,2\n", "2.csv": "a,3\n"}


def application(*targets: Any) -> dm.Application:
    """Declare an application that writes its rows to some targets."""
    with dm.application("named") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="unused", format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        for target in targets:
            dm.sink(lines, target)
    return dm.build_application(declared)


@pytest.fixture
def catalogue(engine: SparkEngine) -> Iterator[SparkEngine]:
    """Yield the session; afterwards, restore its catalogue."""
    yield engine
    engine.session.sql(f"DROP SCHEMA IF EXISTS {HERE} CASCADE")


def lacking(result: Result) -> list[dict[str, str]]:
    """Return the names that tables should have and do not have, from `status --json`."""
    (status,) = statuses(result.workplace)
    found: list[dict[str, str]] = status["unregistered"]
    return found


def by_name(engine: SparkEngine, name: str) -> list[tuple[Any, ...]]:
    """Return the rows that Spark finds by the name of a table."""
    return sorted((row["k"], row["n"]) for row in engine.session.sql(f"SELECT k, n FROM {name}").collect())  # noqa: S608


@pytest.mark.spark
@pytest.mark.seed("AU8")
def test_tables_have_names_that_everybody_in_the_session_finds(catalogue: SparkEngine, tmp_path: Path) -> None:
    named = application(
        dm.DeltaAppend("in/all-rows", register=f"{HERE}.rows"),
        dm.DeltaUpsert("new-est", ["k"], register=HERE),
    )
    result = run_app(named, LINES, max_group=1, home=tmp_path / "it's a home")
    expected = {"rows": [("a", 1), ("a", 3), ("b", 2)], "new_est": [("a", 3), ("b", 2)]}
    assert {name: by_name(catalogue, f"{HERE}.{name}") for name in expected} == expected
    names = catalogue.session.sql(f"SHOW TABLES IN {HERE}").collect()
    assert {row["tableName"] for row in names if not row["isTemporary"]} == set(expected)  # other tests make views
    assert lacking(result) == []
    published = result.groups[-1].versions["lake/in/all-rows"]
    assert result.workplace.store(result.region.name).table("lake/in/all-rows").delta_version() == published

    told = told_of(result, {"3.csv": "c,4\n"})
    assert {numbers["failed"] for numbers in told} == {None}, "a session that has the names already"
    assert by_name(catalogue, f"{HERE}.new_est") == [("a", 3), ("b", 2), ("c", 4)]


def told_of(result: Result, files: dict[str, str]) -> list[dict[str, Any]]:
    """Run the region on further files, and return the reports about names."""
    from drainmark.orchestration.runs.region_runs import region_run
    from drainmark.orchestration.testing.processing import drive, scan

    told: list[dict[str, Any]] = []
    result.add(files)
    scan(result.workplace, result.opened, result.region)

    def report(step: str, numbers: Any) -> None:
        if step == "register":
            told.append(dict(numbers))

    result.groups += drive(region_run(result.workplace, result.opened, result.region, report=report, max_group=1))
    return told


@pytest.mark.spark
@pytest.mark.seed("AU8")
@pytest.mark.slow
@pytest.mark.parametrize("other", ["table", "view"])
def test_the_name_of_another_stays_as_it_is_and_nothing_is_lost(
    catalogue: SparkEngine, tmp_path: Path, other: str
) -> None:
    session, name = catalogue.session, f"{HERE}.totals"
    session.sql(f"CREATE SCHEMA {HERE}")
    if other == "table":
        write_deltalake(tmp_path / "theirs", pa.table({"k": ["theirs"], "n": [7]}))
        session.sql(f"CREATE TABLE {name} USING delta LOCATION '{tmp_path}/theirs'")
    else:
        session.sql(f"CREATE VIEW {name} AS SELECT 'theirs' AS k, 7 AS n")
    named = application(dm.DeltaAppend("totals", register=name))
    result = run_app(named, LINES, home=tmp_path / "home")
    assert len(result.sink("totals")) == 3
    assert by_name(catalogue, name) == [("theirs", 7)]
    (found,) = lacking(result)
    assert (found["table"], found["name"]) == ("lake/totals", name)
    assert name in found["error"]
    assert "drop" in found["error"]

    session.sql(f"DROP {other.upper()} {name}")
    result.add({"3.csv": "c,4\n"}).run()
    assert by_name(catalogue, name) == [("a", 1), ("a", 3), ("b", 2), ("c", 4)]
    assert lacking(result) == []


@pytest.mark.spark
def test_a_catalogue_that_is_not_there_fails_no_group(catalogue: SparkEngine, tmp_path: Path) -> None:
    named = application(dm.DeltaAppend("totals", register="sales.totals"))
    result = run_app(named, {"1.csv": "a,1\n"}, home=tmp_path / "home")
    told = told_of(result, {"2.csv": "b,2\n", "3.csv": "b,2\n"})
    assert result.workplace.history(result.region.name).committed_id == 3
    assert len(told) == 1, "once a run, and not with each group"
    (found,) = lacking(result)
    assert found["error"] == told[0]["failed"]
    assert "knows no catalogue sales" in found["error"]


@pytest.mark.spark
def test_a_catalogue_that_hangs_holds_nobody_up(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, asked = threading.Event(), []

    def hang(session: Any, name: str, uri: str) -> None:
        asked.append(name)
        released.wait(SOON)

    monkeypatch.setattr(catalogue_names, "register", hang)
    monkeypatch.setattr(table_names, "_END_SECONDS", 0.1)
    named = application(dm.DeltaAppend("totals", register=HERE))
    try:
        result = run_app(named, LINES, max_group=1, home=tmp_path / "home")
        assert len(result.groups) == 2
        assert eventually(lambda: asked) == [f"{HERE}.totals"]
        (found,) = lacking(result)
        assert "did not answer" in found["error"]
    finally:
        released.set()


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (dm.DeltaAppend("in/all-rows"), None),
        (dm.DeltaAppend("in/all-rows", register="spark_catalog"), "spark_catalog.default.in_all_rows"),
        (dm.DeltaUpsert("newest", ["k"], register="lake.sales"), "lake.sales.newest"),
        (dm.DeltaOverwrite("prices", register="lake.sales.price"), "lake.sales.price"),
    ],
)
def test_what_is_left_out_of_a_name_comes_from_the_table(target: Any, name: str | None) -> None:
    (sink,) = (operator for operator in application(target).operators if operator.is_sink)
    assert sink.registered == name


@pytest.mark.parametrize(
    ("rule", "targets"),
    [
        ("REGISTER_NAME", [dm.DeltaAppend("a", register="spark catalog")]),
        ("REGISTER_NAME", [dm.DeltaUpsert("a", ["k"], register="a.b.c.d")]),
        ("REGISTER_NAME", [dm.DeltaOverwrite("a", register="spark_catalog.")]),
        ("TWO_TABLES_OF_A_NAME", [dm.DeltaAppend(name, register="spark_catalog") for name in ("a/b", "A-b")]),
        ("TWO_TABLES_OF_A_NAME", [dm.DeltaAppend(name, register="spark_catalog.x.t") for name in ("a", "b")]),
    ],
)
def test_names_that_no_table_can_have(rule: str, targets: list[Any]) -> None:
    from drainmark.jobs.regions.plan import compile_application

    with pytest.raises(DeclarationError) as refused:
        compile_application(application(*targets))
    assert rule in {violation.rule for violation in refused.value.violations}


def test_a_table_outside_of_regions_has_no_name() -> None:
    from drainmark.jobs.regions.plan import compile_application

    with dm.application("named") as declared:

        @dm.source(dm.DirectoryScan(path="unused", format="csv", schema="k string", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(lines, dm.DeltaAppend("a", register="spark_catalog"))
    with pytest.raises(DeclarationError) as refused:
        compile_application(dm.build_application(declared))
    assert {violation.rule for violation in refused.value.violations} == {"AUTONOMOUS_REGISTER"}


@pytest.mark.spark
@pytest.mark.seed("AU8")
def test_no_table_is_made_where_there_is_none(catalogue: SparkEngine, tmp_path: Path) -> None:
    """Spark would create an empty table, with a commit of its own."""
    with pytest.raises(CatalogueFailed):
        catalogue_names.register(catalogue.session, f"{HERE}.lost", str(tmp_path / "lost"))
    assert not (tmp_path / "lost").exists()
    assert not catalogue.session.catalog.tableExists(f"{HERE}.lost")
