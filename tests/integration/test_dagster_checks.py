"""Where the checks of a region are, and what a blocking one stops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from integration.dagster_scene import drop, instance, instance_at

from drainmark.dagster import DrainmarkTranslator, definitions
from drainmark.jobs.protocol.history import Outcome
from drainmark.orchestration.dagster_assets.checks import AT_COMMITTED_ID, NOT_HALTED, QUARANTINE_RATIO, REWIND_HORIZON
from drainmark.orchestration.dagster_assets.metadata import MAX_RETRIES_TAG
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.verbs.rewinds.retract import carry_out, plan_retract
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import load_settings

__all__ = ["instance"]

REGION = "shop/lines"

SHOP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="item string, amount int", settle=0.0))
def lines(scanned):
    return scanned


dm.sink(lines, dm.DeltaAppend("all_lines"))
paid = dm.expect(lines, "amount > 0", on_fail="warn", name="paid", blocking=True)
named = dm.expect(paid, "item is not null", name="named")
dm.sink(named, dm.DeltaAppend("sold"))
dm.sink(paid, dm.DeltaUpsert("newest", keys=["item"]), name="newest")
"""

USERS = """
import os

import dagster as dg

from drainmark.dagster import DrainmarkTranslator, definitions


class Warehouse(DrainmarkTranslator):
    def get_asset_spec(self, spec):
        return spec.replace_attributes(key=spec.key.with_prefix("warehouse"))


@dg.asset(deps=[["warehouse", "shop", "newest"]])
def report() -> None: ...


@dg.asset(deps=[["warehouse", "shop", "all_lines"]])
def copies() -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"pid": os.getpid(), "run": os.getppid()})


defs = dg.Definitions.merge(
    definitions(os.environ["SHOP"], translator=Warehouse()), dg.Definitions(assets=[report, copies])
)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "inbox").mkdir(parents=True)
    (folder / "shop.py").write_text(SHOP)
    (folder / "drainmark.toml").write_text('applications = ["shop.py"]\n')
    return folder


def checks(defs: dg.Definitions) -> dict[str, set[str]]:
    """Return the names of the checks of each asset, and in brackets whether they block."""
    graph = defs.get_repository_def().asset_graph
    found: dict[str, set[str]] = {}
    for key in graph.asset_check_keys:
        name = f"{key.name} (blocks)" if graph.get(key).blocking else key.name  # type: ignore[attr-defined]
        found.setdefault(key.asset_key.to_user_string(), set()).add(name)
    return found


def test_each_check_is_on_the_tables_that_it_judges(shop: Path) -> None:
    """An expectation judges what is made of its rows: a table beside it does not have it."""
    paid, named = "expectation_paid (blocks)", "expectation_named"
    assert checks(definitions(shop)) == {
        "shop/checkpoints/lines": {NOT_HALTED, REWIND_HORIZON},
        "shop/all_lines": {AT_COMMITTED_ID},
        "shop/sold": {AT_COMMITTED_ID, paid, named},
        "shop/newest": {AT_COMMITTED_ID, paid},
        "shop/state/newest": {AT_COMMITTED_ID},
        "shop/shop_quarantine": {AT_COMMITTED_ID, QUARANTINE_RATIO},
    }

    class Warehouse(DrainmarkTranslator):
        def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.replace_attributes(key=spec.key.with_prefix("warehouse"))

    assert checks(definitions(shop, translator=Warehouse()))["warehouse/shop/newest"] == {AT_COMMITTED_ID, paid}


@pytest.mark.spark
def test_what_follows_a_table_is_not_made_while_a_blocking_check_fails(
    workplace: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """The region goes on; what follows a table beside the expectation is made; without the bad file all is made."""
    (tmp_path / "shop.py").write_text(SHOP)
    workplace.settings = workplace.settings.model_copy(update={"applications": (str(tmp_path / "shop.py"),)})

    @dg.asset(deps=[["shop", "newest"]])
    def report() -> None: ...

    @dg.asset(deps=[["shop", "all_lines"]])
    def copies() -> None: ...

    users = dg.Definitions(assets=[report, copies])
    both = dg.Definitions.merge(build_definitions(workplace.settings, workplace), users)
    job = both.resolve_implicit_global_asset_job_def()

    def made() -> tuple[bool, set[str]]:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        told = {str(event.asset_key.path[-1]) for event in result.get_asset_materialization_events()}
        limit = instance.get_run_by_id(result.run_id).tags[MAX_RETRIES_TAG]  # type: ignore[union-attr]
        assert (limit == "0") is not result.success, "a retry has nothing to make, and would succeed"
        return result.success, told & {"report", "copies"}

    drop(tmp_path, "a.csv", "tea,1\n")
    assert made() == (True, {"report", "copies"})
    assert made() == (True, set()), "where nothing is new, nothing follows"
    drop(tmp_path, "b.csv", "tea,-1\n")
    assert made() == (False, {"copies"})
    history = workplace.history(REGION)
    assert (history.committed_id, history.last_outcome) == (2, Outcome.CLEAN)
    drop(tmp_path, "c.csv", "tea,3\n")
    assert made() == (False, {"copies"}), "the rows are still in the table"
    carry_out(workplace, plan_retract(workplace, REGION, ["b.csv"]), "a typing error")
    drop(tmp_path, "d.csv", "tea,4\n")
    assert made() == (True, {"report", "copies"})


@pytest.mark.spark
def test_two_tables_and_what_follows_them_are_materialised_by_the_locations_own_executor(
    shop: Path, tmp_path: Path
) -> None:
    """Dagster's default executor starts a process for each op; a check that blocks does so there, too."""
    drop(shop, "a.csv", "tea,-1\n")
    (tmp_path / "users.py").write_text(USERS)
    environment = {**os.environ, "SHOP": str(shop), "DAGSTER_HOME": str(tmp_path / "dagster")}
    selected = " or ".join(f'key:"warehouse/shop/{table}"+' for table in ("all_lines", "newest"))
    command = [sys.executable, "-m", "dagster", "asset", "materialize", "-f", "users.py", "--select", selected]
    with instance_at(tmp_path / "dagster") as instance:
        ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
        keys = instance.all_asset_keys()
        made = {key.to_user_string(): instance.fetch_materializations(key, limit=9).records for key in keys}
    assert ended.returncode != 0
    assert "1 blocking asset check failed with ERROR severity" in ended.stderr
    for table in ("warehouse/shop/all_lines", "warehouse/shop/newest"):
        assert {each.asset_materialization.tags["dagster/data_version"] for each in made[table]} == {"1.1"}
    assert not made.get("report")
    (copied,) = made["copies"]
    facts = {name: value.value for name, value in copied.asset_materialization.metadata.items()}
    assert facts["pid"] != facts["run"]
    assert Workplace(load_settings(shop)).history(REGION).committed_id == 1
