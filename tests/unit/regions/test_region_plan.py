"""The answers of a plan: names, fingerprints, vectorised operators; compiling changes and imports nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from shapes import OPERATOR_DRIVEN, PERIODIC, Beacon, Counter, Custom, Functor, OneByOne, app, figure_1c, made

from drainmark.jobs.errors import UnknownName
from drainmark.jobs.graph.application import Application
from drainmark.jobs.graph.operator import Guarantee, Vectorises
from drainmark.jobs.regions.plan import compile_application


def pipeline(expression: str = "a", **parameters: Any) -> Application:
    return app(
        made(Beacon, "landing", consistent=replace(OPERATOR_DRIVEN, **parameters), several=("orders", "payments")),
        made(Functor, "rows", "landing__orders", expression=expression),
        made(Counter, "totals", "rows", "landing__payments"),
        made(OneByOne, "top", "totals"),
        made(Custom, "save_rows", "rows", table="rows"),
        made(Custom, "save_top", "top", table="top"),
    )


def two_regions() -> Application:
    return app(made(Beacon, "alpha", consistent=PERIODIC), made(Beacon, "beta", consistent=PERIODIC))


@pytest.mark.parametrize("name", ["app", "app/landing", "landing"])
def test_region_is_found_by_its_names(name: str) -> None:
    assert compile_application(pipeline()).region(name).name == "app/landing"


@pytest.mark.parametrize("name", ["app", "app/gamma", "other/alpha", "", "alpha/beta"])
def test_unknown_or_ambiguous_region_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(UnknownName) as refused:
        compile_application(two_regions()).region(name)
    assert "app/" in str(refused.value.remedy)


def test_misspelt_region_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as refused:
        compile_application(two_regions()).region("alfa")
    assert refused.value.remedy == "did you mean 'app/alpha'?"
    with pytest.raises(UnknownName) as refused:
        compile_application(two_regions()).region("app/zzz")
    assert refused.value.remedy == "known: app/alpha, app/beta", "nothing is near but the application's name"


def test_merged_region_is_found_by_each_start_and_named_by_the_first_in_the_alphabet() -> None:
    operators = (
        made(Beacon, "b", consistent=PERIODIC),
        made(Beacon, "a", consistent=PERIODIC),
        made(Functor, "f", "a", "b"),
    )
    for order in (operators, operators[::-1]):
        plan = compile_application(app(*order))
        assert plan.region("a") is plan.region("b") is plan.region("app")
        assert plan.region("b").name == "app/a"


@pytest.mark.seed("V44")
def test_application_without_annotation_has_no_region() -> None:
    plan = compile_application(app(made(Beacon, "a"), made(Functor, "f", "a")))
    assert plan.regions == ()
    with pytest.raises(UnknownName):
        plan.region("app")


@pytest.mark.seed("V58")
def test_plan_says_what_vectorises_keeps_state_and_writes() -> None:
    region = compile_application(pipeline()).region("app")
    assert region.vectorisation["rows"] is Vectorises.CHECKED
    assert region.forced_single == ("top",)
    assert [operator.name for operator in region.stateful] == ["totals"]
    assert [operator.name for operator in region.operators if operator.is_sink] == ["save_rows", "save_top"]
    assert [(table.name, table.guarantee) for table in region.tables] == [
        ("rows", Guarantee.EXACTLY_ONCE),
        ("top", Guarantee.EXACTLY_ONCE),
    ]


def test_consumers_are_counted_by_output() -> None:
    region = compile_application(pipeline()).region("app")
    assert region.consumers("rows") == 2
    assert region.consumers("landing", "orders") == 1
    assert region.consumers("landing") == 0
    assert region.consumers("save_top") == 0


def test_feeds_and_followers_count_as_consumers() -> None:
    """A stream with two readers is computed once, even if one of them is outside the region (H15)."""
    region = compile_application(figure_1c()).region("figure_1c")
    assert region.consumers("op3") == 1
    assert [operator.name for operator in region.followers] == ["op7"]
    assert region.consumers("op5") == 2


def test_fingerprint_follows_what_is_computed_and_nothing_else() -> None:
    reference = compile_application(pipeline())
    moved = Application(name="app", operators=pipeline().operators[::-1])
    assert compile_application(moved).fingerprint == reference.fingerprint
    assert compile_application(moved).region("app").fingerprint == reference.region("app").fingerprint
    patient = compile_application(pipeline(max_consecutive_reset_attempts=9))
    assert patient.region("app").fingerprint == reference.region("app").fingerprint
    changed = compile_application(pipeline(expression="b"))
    assert changed.region("app").fingerprint != reference.region("app").fingerprint
    assert changed.region("app").fingerprints["totals"] == reference.region("app").fingerprints["totals"]
    assert changed.fingerprint != reference.fingerprint


@pytest.mark.seed("V28", "V29")
def test_change_in_one_region_leaves_the_fingerprint_of_the_other() -> None:
    def plans(expression: str) -> tuple[str, str]:
        plan = compile_application(
            app(
                *two_regions().operators,
                made(Functor, "f", "alpha", expression=expression),
            )
        )
        return plan.region("alpha").fingerprint, plan.region("beta").fingerprint

    (alpha, beta), (other_alpha, other_beta) = plans("a"), plans("b")
    assert alpha != other_alpha
    assert beta == other_beta


def test_long_chain_compiles() -> None:
    length = 3000
    chain = [made(Functor, f"f{i}", f"f{i - 1}" if i else "a") for i in range(length)]
    plan = compile_application(app(*reversed(chain), made(Beacon, "a", consistent=OPERATOR_DRIVEN)))
    assert [operator.name for operator in plan.region("app").operators] == ["a", *(f"f{i}" for i in range(length))]


def test_compiling_imports_neither_spark_nor_dagster_nor_delta() -> None:
    code = (
        "import sys, drainmark.jobs.regions.plan, drainmark.jobs.regions.explain;"
        "print([name for name in ('pyspark', 'dagster', 'deltalake', 'sqlmodel', 'boto3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
