"""`dm.expect`: rows that fail it are counted for each file, exactly once, and the chosen action follows (NU8)."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from followed import follow

import drainmark as dm
from drainmark.jobs.errors import DeclarationError, ExpectationUnmet, Halted, OperatorFailed
from drainmark.jobs.failpoints import ENVIRONMENT, arm, unreached
from drainmark.jobs.regions.plan import compile_application
from drainmark.orchestration.dagster_assets.checks import EXPECTATION, build_checks, judgements
from drainmark.orchestration.inspection.metrics import as_text, region_metrics
from drainmark.orchestration.inspection.status import history_entries
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.seed("NU8")]

FILES = {
    "a.csv": "tea,1\noil,-2\n,3\n",
    "b.csv": "tea,4\nbun,5\n",
    "c.csv": "oil,-6\n,-7\nbun,\n",
    "d.csv": "",
}
UNMET = [{"named": 1, "paid": 1}, {}, {"named": 1, "paid": 3}, {}]


def orders() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, amount int"))
    def read(scanned: Any) -> Any:
        return scanned

    named = dm.expect(read, "item is not null", on_fail="warn", name="named")
    paid = dm.expect(named, "amount > 0", name="paid")
    dm.sink(paid, dm.DeltaAppend("orders"))
    dm.sink(
        dm.aggregate(paid, keys=["item"], values={"n": dm.count()}, name="counts"),
        dm.DeltaUpsert("counts", keys=["item"]),
    )


def counted(result: Result) -> list[dict[str, int]]:
    return [entry["unmet"] for entry in result.history]


def refused(result: Result) -> list[tuple[Any, ...]]:
    found = [
        (row["_sequence_id"], Path(row["source_file"]).name, row["position"], json.loads(row["raw"]).get("amount"))
        for row in result.quarantine()
    ]
    return sorted(found, key=str)


def test_what_does_not_hold_is_counted_by_file_and_quarantined_or_passed_on(run_app: Callable[..., Result]) -> None:
    result = run_app(orders, FILES, max_group=4, settings={"small_group_bytes": 0})
    assert counted(result) == UNMET
    assert [(row["item"], row["amount"]) for row in result.sink("orders")] == [
        ("tea", 1), (None, 3), ("tea", 4), ("bun", 5),
    ]  # fmt: skip
    assert refused(result) == [(1, "a.csv", 2, -2), (3, "c.csv", 1, -6), (3, "c.csv", 2, -7), (3, "c.csv", 3, None)]
    assert {row["reason"] for row in result.quarantine()} == {"paid: amount > 0 does not hold"}
    assert [entry["rows_quarantined"] for entry in result.history] == [1, 0, 3, 0]


def test_a_rewind_takes_the_counts_back_and_checks_and_metrics_show_them(run_app: Callable[..., Result]) -> None:
    result = run_app(orders, FILES)
    checks = {found.name: found for found in judgements(result.workplace, result.region)}
    paid, named = (checks[f"{EXPECTATION}{name}"] for name in ("paid", "named"))
    assert (paid.passed, paid.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (paid.metadata["drainmark/rows_unmet"], paid.metadata["drainmark/files_unmet"]) == (4, 2)
    assert paid.metadata["drainmark/newest_file_unmet"].endswith("c.csv")
    assert named.metadata["drainmark/rows_unmet"] == 2
    with dg.DagsterInstance.ephemeral() as instance:
        checks_of_region = build_checks(result.workplace, result.region)
        selection = dg.AssetSelection.all_asset_checks()
        run = dg.materialize([checks_of_region], selection=selection, instance=instance)
    shown = {each.check_name: each.passed for each in run.get_asset_check_evaluations()}
    assert shown[f"{EXPECTATION}paid"] is False
    text = as_text({result.region.name: region_metrics(result.workplace, result.region.name)})
    assert f'drainmark_rows_unmet_total{{region="{result.region.name}",expectation="paid"}} 4' in text
    assert Tracer.of(result.workplace, result.region.name).file("c.csv")["unmet"] == UNMET[2]
    result.rewind(2)
    assert counted(result) == UNMET[:2]
    (paid,) = (found for found in judgements(result.workplace, result.region) if found.name == f"{EXPECTATION}paid")
    assert paid.metadata["drainmark/rows_unmet"] == 1
    assert counted(result.run()) == UNMET


def halting() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, amount int"))
    def read(scanned: Any) -> Any:
        return scanned

    dm.sink(dm.expect(read, "amount > 0", on_fail="halt", name="paid"), dm.DeltaAppend("orders"))


def test_an_expectation_halts_the_region_at_the_file_and_says_what_to_do(run_app: Callable[..., Result]) -> None:
    """The files before it are committed; no row of it and of the files behind it is."""
    result = run_app(halting, {"a.csv": "tea,1\n"})
    result.add({"b.csv": "bun,2\n", "c.csv": "oil,3\noil,-2\noil,\n", "d.csv": "tea,4\n"})
    with pytest.raises(Halted) as halted:
        result.run()
    assert [row["amount"] for row in result.sink("orders")] == [1, 2]
    error = result.status["last_error"]
    assert error["id"] == ExpectationUnmet.id
    assert error["operator"] == "paid"
    for part in ("c.csv", "amount > 0", "2 rows", "-2"):
        assert part in error["message"]
    (check,) = (found for found in judgements(result.workplace, result.region) if found.name == f"{EXPECTATION}paid")
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert 'on_fail="quarantine"' in (halted.value.remedy or "")
    follow(halted.value.remedy, "skip", result.home)
    result.run()
    assert [row["amount"] for row in result.sink("orders")] == [1, 2, 4]


def test_a_condition_that_cannot_be_read_is_refused_before_anything_is_processed(
    run_app: Callable[..., Result],
) -> None:
    def wrong() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, amount int"))
        def read(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.expect(read, "amounts > 0", name="paid"), dm.DeltaAppend("orders"))

    with pytest.raises(OperatorFailed) as raised:
        run_app(wrong, FILES)
    assert raised.value.operator == "paid"


def test_outside_of_a_region_nothing_is_counted_so_it_is_refused() -> None:
    with dm.application("outside") as declared:

        @dm.autonomous
        @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="n int"))
        def read(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.expect(read, "n > 0"), dm.DeltaAppend("kept"))
    with pytest.raises(DeclarationError) as raised:
        compile_application(dm.build_application(declared))
    assert "EXPECT_AUTONOMOUS" in {violation.rule for violation in raised.value.violations}


@pytest.mark.seed("T1")
@pytest.mark.parametrize(
    "point",
    [
        "checkpoint.before_commit",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("process.staged", "checkpoint.after_commit")),
    ],
)
def test_counts_are_those_of_an_undisturbed_run_whatever_fails(run_app: Callable[..., Result], point: str) -> None:
    result = run_app(orders, max_group=2).add(FILES)
    arm(f"{point}:raise:1")
    try:
        result.run()  # the run repeats the group by itself
        assert not unreached()
    finally:
        arm("")
    assert counted(result) == UNMET
    assert len(result.quarantine()) == 4


@pytest.mark.slow
def test_counts_are_exactly_once_where_the_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    for name, text in FILES.items():
        (tmp_path / "inbox" / name).write_text(text)
    source = textwrap.dedent(inspect.getsource(orders)).replace("def orders() -> None:", "if True:")
    (tmp_path / "orders.py").write_text(f"from typing import Any\n\nimport drainmark as dm\n\n{source}")
    home = tmp_path / "home"
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", "orders.py", "--home", str(home)]
    killed = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, ENVIRONMENT: "checkpoint.after_commit:kill:1"}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    subprocess.run(command, cwd=tmp_path, check=True)
    place = Workplace(Settings(home=home, project_root=tmp_path))
    assert [entry["unmet"] for entry in history_entries(place, "orders/read")] == UNMET
