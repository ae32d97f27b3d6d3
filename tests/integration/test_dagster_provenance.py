"""What Dagster is told about the making of a table: the code, the inputs, the columns, and the name in a catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from integration.dagster_scene import drop, instance

from drainmark.dagster import DrainmarkTranslator
from drainmark.orchestration.dagster_jobs.factory import build_definitions
from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["instance"]

TILL = """
import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="item string, amount int", settle=0.0))
def lines(scanned):
    return scanned


@dm.functor
def priced(lines):
    return dm.select(lines, "item", (F.col("amount") * 100).alias("cents"))


dm.sink(priced, dm.DeltaAppend("sales", register="spark_catalog.shop"))
"""

BOOKS = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.TableSource("sales"))
def sold(scanned):
    return scanned


totals = dm.aggregate(sold, keys=["item"], values={"turnover": dm.sum("cents")}, name="totals")
dm.sink(totals, dm.DeltaUpsert("turnovers", keys=["item"]))
"""

SALES, TURNOVERS = dg.AssetKey(["bi", "till", "sales"]), dg.AssetKey(["bi", "books", "turnovers"])


class Prefixed(DrainmarkTranslator):
    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(key=spec.key.with_prefix("bi"))


def located(workplace: Workplace, folder: Path) -> dg.RepositoryDefinition:
    paths = tuple(str(folder / name) for name in ("till.py", "books.py"))
    workplace.settings = workplace.settings.model_copy(update={"applications": paths})
    return build_definitions(workplace.settings, workplace, translator=Prefixed()).get_repository_def()


@pytest.mark.spark
def test_a_run_tells_the_columns_and_the_code_that_a_table_is_made_of(
    workplace: Workplace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """Columns of another region's table are those of its asset; the code is that of the history."""
    (tmp_path / "till.py").write_text(TILL)
    (tmp_path / "books.py").write_text(BOOKS)
    repository = located(workplace, tmp_path)
    drop(tmp_path, "a.csv", "tea,1\n")
    for job in ("till__lines", "books__sold"):
        assert repository.get_job(job).execute_in_process(instance=instance, raise_on_error=False).success

    def event(key: dg.AssetKey) -> dg.AssetMaterialization:
        found = instance.get_latest_materialization_event(key)
        assert found is not None
        assert found.asset_materialization is not None
        return found.asset_materialization

    def lineage(key: dg.AssetKey) -> dict[str, list[tuple[str, str]]]:
        value: Any = event(key).metadata["dagster/column_lineage"].value
        return {
            column: [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps]
            for column, deps in value.deps_by_column.items()
        }

    assert lineage(SALES) == {
        "item": [("bi/till/source/lines", "item")],
        "cents": [("bi/till/source/lines", "amount")],
    }
    assert lineage(TURNOVERS) == {
        "item": [("bi/till/sales", "item")],
        "turnover": [("bi/till/sales", "cents")],
    }
    graph = repository.asset_graph
    assert graph.get(SALES).metadata["dagster/table_name"] == "spark_catalog.shop.sales"
    assert graph.get(TURNOVERS).metadata["dagster/table_name"] == "lake/turnovers"
    code = graph.get(SALES).code_version
    assert code == workplace.history("till/lines").deploys[-1].label
    assert event(SALES).tags["dagster/code_version"] == code  # type: ignore[index]

    def status(of: dg.RepositoryDefinition) -> set[StaleStatus]:
        resolver = CachingStaleStatusResolver(instance, of.asset_graph, LoadingContextForTest(instance))
        return {resolver.get_status(key) for key in of.asset_graph.materializable_asset_keys}

    assert status(repository) == {StaleStatus.FRESH}
    (tmp_path / "till.py").write_text(TILL.replace("100", "1000"))
    changed = located(workplace, tmp_path)
    assert changed.asset_graph.get(SALES).code_version != code
    assert status(changed) == {StaleStatus.STALE}
