"""Markers are counted per connection, and say in their order what is to be done (V87–V95, V100)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import figure_3

from jobs.channel_errors import OutOfOrder
from jobs.channels.counting import MarkerCounter, Step
from jobs.channels.items import DrainMarker, ResetMarker
from jobs.graph.annotations import Buffered
from jobs.regions.plan import RegionPlan, compile_application
from jobs.regions.ports import PortClass

ONE, TWO = DrainMarker(1), DrainMarker(2)


@pytest.fixture
def region() -> RegionPlan:
    return compile_application(figure_3()).region("figure_3")


@pytest.mark.seed("V88", "V90", "V92", "V93", "V95")
def test_figure_3_drains_after_two_markers_and_checkpoints_after_one_more(region: RegionPlan) -> None:
    counter = MarkerCounter.of_operator(region, "op3")
    assert len(counter.data) == region.connections("op3", PortClass.CONSISTENT_DATA) == 2
    assert len(counter.control) == region.connections("op3", PortClass.CONSISTENT_CONTROL) == 1
    for marker in (ONE, TWO):
        assert counter.count("0:op1", marker) == ()
        assert counter.count("1:op2", marker) == (Step.DRAIN, Step.FORWARD)
        assert counter.count("3:op4", marker) == (Step.CHECKPOINT,)


@pytest.mark.seed("V90", "V95")
def test_an_autonomous_port_brings_no_marker(region: RegionPlan) -> None:
    with pytest.raises(OutOfOrder):
        MarkerCounter.of_operator(region, "op3").count("2:op6", ONE)


@pytest.mark.seed("V92")
@pytest.mark.parametrize("operator", ["op4", "op5"])
def test_without_a_control_port_a_checkpoint_follows_the_drain_at_once(region: RegionPlan, operator: str) -> None:
    counter = MarkerCounter.of_operator(region, operator)
    (connection,) = counter.data
    assert counter.count(connection, ONE) == (Step.DRAIN, Step.FORWARD, Step.CHECKPOINT)


@pytest.mark.seed("V88", "V93")
def test_a_control_marker_may_come_first(region: RegionPlan) -> None:
    counter = MarkerCounter.of_operator(region, "op3")
    assert counter.count("3:op4", ONE) == ()
    assert counter.count("1:op2", ONE) == ()
    assert counter.count("0:op1", ONE) == (Step.DRAIN, Step.FORWARD, Step.CHECKPOINT)


@pytest.mark.seed("V88", "V95")
def test_a_stage_awaits_a_marker_from_each_channel(region: RegionPlan) -> None:
    whole = figure_3()
    cut = replace(
        whole,
        operators=tuple(
            replace(
                operator,
                inputs=tuple(
                    replace(port, buffered=Buffered()) if port.parameter == "data" else port for port in operator.inputs
                ),
            )
            for operator in whole.operators
        ),
    )
    stage = compile_application(cut).regions[0].stage("op3")
    counter = MarkerCounter.of_stage(stage)
    assert counter.data == {"op1->op3", "op2->op3"}
    assert counter.count("op2->op3", ONE) == ()
    assert counter.count("op1->op3", ONE) == (Step.DRAIN, Step.FORWARD, Step.CHECKPOINT)


@pytest.mark.seed("V100", "V115")
def test_a_reset_awaits_all_connections_and_goes_on_before_it_is_done(region: RegionPlan) -> None:
    counter = MarkerCounter.of_operator(region, "op3")
    marker = ResetMarker(4, 0)
    assert counter.count("0:op1", marker) == ()
    assert counter.count("3:op4", marker) == ()
    assert counter.count("1:op2", marker) == (Step.FORWARD, Step.RESET)


@pytest.mark.seed("V77", "E13")
def test_a_later_attempt_at_a_reset_begins_to_count_anew(region: RegionPlan) -> None:
    counter = MarkerCounter.of_operator(region, "op3")
    counter.count("0:op1", ResetMarker(4, 0))
    assert counter.count("1:op2", ResetMarker(4, 1)) == ()
    assert counter.count("3:op4", ResetMarker(4, 0)) == ()
    assert counter.count("3:op4", ResetMarker(4, 1)) == ()
    assert counter.count("0:op1", ResetMarker(4, 1)) == (Step.FORWARD, Step.RESET)


@pytest.mark.seed("V113")
def test_a_reset_ends_the_drain_that_was_under_way(region: RegionPlan) -> None:
    counter = MarkerCounter.of_operator(region, "op3")
    counter.count("0:op1", ONE)
    for connection in ("0:op1", "1:op2", "3:op4"):
        counter.count(connection, ResetMarker(0, 0))
    assert counter.count("1:op2", TWO) == ()
    assert counter.count("0:op1", TWO) == (Step.DRAIN, Step.FORWARD)


@pytest.mark.seed("E13", "V107")
def test_a_marker_that_comes_twice_or_too_late_is_an_error(region: RegionPlan) -> None:
    counter = MarkerCounter.of_operator(region, "op3")
    counter.count("0:op1", ONE)
    with pytest.raises(OutOfOrder):
        counter.count("0:op1", ONE)
    with pytest.raises(OutOfOrder):
        counter.count("1:op2", TWO)
    counter.count("1:op2", ONE)
    counter.count("3:op4", ONE)
    with pytest.raises(OutOfOrder):
        counter.count("0:op1", ONE)
    counter = MarkerCounter(["a", "b"])
    counter.count("a", ResetMarker(0, 0))
    with pytest.raises(OutOfOrder):
        counter.count("a", ResetMarker(0, 0))
