"""The ends of regions, the merging of regions, and the parameters of merged regions."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from shapes import OPERATOR_DRIVEN, PERIODIC, Beacon, Counter, Custom, Functor, app, made

from drainmark.jobs.regions.plan import RegionPlan, compile_application
from drainmark.jobs.regions.reachability import PortClass


def members(region: RegionPlan) -> set[str]:
    return {operator.name for operator in region.operators}


@pytest.mark.seed("E3", "V30")
def test_merged_regions_take_the_maximum_of_each_number() -> None:
    seconds = dt.timedelta(seconds=1)
    left = replace(
        PERIODIC, period=5 * seconds, group_timeout=7 * seconds, max_consecutive_reset_attempts=9, linger=4 * seconds
    )
    right = replace(
        PERIODIC, period=6 * seconds, group_timeout=3 * seconds, reset_timeout=999 * seconds, rewind_horizon=20_000,
        linger=8 * seconds,
    )  # fmt: skip
    plan = compile_application(
        app(made(Beacon, "b", consistent=left), made(Beacon, "a", consistent=right), made(Functor, "f", "a", "b"))
    )
    (region,) = plan.regions
    assert region.parameters == replace(
        PERIODIC,
        period=6 * seconds,
        group_timeout=7 * seconds,
        reset_timeout=999 * seconds,
        max_consecutive_reset_attempts=9,
        rewind_horizon=20_000,
        linger=8 * seconds,
    )


@pytest.mark.seed("V30")
def test_merging_is_transitive() -> None:
    plan = compile_application(
        app(
            *(made(Beacon, name, consistent=PERIODIC) for name in "abc"),
            made(Functor, "ab", "a", "b"),
            made(Functor, "bc", "b", "c"),
        )
    )
    assert [members(region) for region in plan.regions] == [{"a", "b", "c", "ab", "bc"}]


@pytest.mark.seed("E4")
def test_reachability_stops_at_another_start() -> None:
    plan = compile_application(
        app(
            made(Beacon, "a", consistent=PERIODIC),
            made(Beacon, "b", "a", consistent=PERIODIC),
            made(Functor, "f", "b"),
        )
    )
    assert [members(region) for region in plan.regions] == [{"a"}, {"b", "f"}]
    (port,) = [port for port in plan.region("b").ports if port.operator == "b"]
    assert port.port_class is PortClass.AUTONOMOUS_DATA
    assert plan.region("b").feeds == ()


@pytest.mark.seed("E4", "V30")
def test_starts_in_a_chain_merge_where_they_share_a_later_operator() -> None:
    plan = compile_application(
        app(
            made(Beacon, "a", consistent=PERIODIC),
            made(Beacon, "b", "a", consistent=PERIODIC),
            made(Functor, "f", "a", "b"),
        )
    )
    assert [members(region) for region in plan.regions] == [{"a", "b", "f"}]


@pytest.mark.seed("V28", "V41")
def test_operator_driven_regions_side_by_side_stay_apart() -> None:
    plan = compile_application(
        app(
            made(Beacon, "z", consistent=OPERATOR_DRIVEN),
            made(Beacon, "a", consistent=OPERATOR_DRIVEN),
            made(Custom, "s", "a"),
        )
    )
    assert [region.name for region in plan.regions] == ["app/z", "app/a"]


@pytest.mark.seed("V15")
def test_regions_side_by_side_keep_parameters_of_their_own() -> None:
    """For example, a large state can be saved less often than a small one."""
    rarely = replace(PERIODIC, period=dt.timedelta(hours=1), max_consecutive_reset_attempts=9)
    plan = compile_application(
        app(
            made(Beacon, "large", consistent=rarely),
            made(Counter, "counts", "large"),
            made(Beacon, "small", consistent=PERIODIC),
            made(Beacon, "files", consistent=OPERATOR_DRIVEN),
        )
    )
    found = {region.name: region.parameters for region in plan.regions}
    assert found == {"app/large": rarely, "app/small": PERIODIC, "app/files": OPERATOR_DRIVEN}


@pytest.mark.seed("V49", "V50")
def test_carve_out_ends_where_a_consistent_stream_comes_in() -> None:
    """An operator that only autonomous operators reach is autonomous; one that a start also reaches is consistent."""
    plan = compile_application(
        app(
            made(Beacon, "a", consistent=OPERATOR_DRIVEN),
            made(Functor, "out", "a", autonomous=True),
            made(Functor, "alone", "out"),
            made(Functor, "both", "a", "alone"),
        )
    )
    (region,) = plan.regions
    assert members(region) == {"a", "both"}
    assert [operator.name for operator in region.feeds] == ["out", "alone"]
    assert [operator.name for operator in region.run_order] == ["a", "out", "alone", "both"]
    (outside,) = plan.autonomous
    assert (outside.name, outside.reads, outside.feeds) == ("app/out", ("app/a",), ("app/a",))


@pytest.mark.seed("V25", "E4")
def test_end_is_what_has_no_downstream_in_the_region() -> None:
    plan = compile_application(
        app(
            made(Beacon, "a", consistent=OPERATOR_DRIVEN),
            made(Functor, "f", "a"),
            made(Custom, "s", "f", autonomous=True),
        )
    )
    assert [operator.name for operator in plan.region("a").ends] == ["f"]
