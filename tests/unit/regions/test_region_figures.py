"""The seed's figures compile to the plans in tests/golden/plans.

`UPDATE_GOLDEN=1 pytest tests/unit/regions` rewrites the plans; review the difference like code.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from shapes import FIGURES, connections, figure_1a, figure_1b, figure_1c, figure_2, figure_3

from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.explain import as_json
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.regions.reachability import PortClass

PLANS = Path(__file__).parents[2] / "golden" / "plans"


def names(operators: tuple[Operator, ...]) -> list[str]:
    return [operator.name for operator in operators]


@pytest.mark.seed("T7")
@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_figure_compiles_to_its_golden_plan(figure: str) -> None:
    text = json.dumps(as_json(compile_application(FIGURES[figure]())), indent=2) + "\n"
    golden = PLANS / f"{figure}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert json.loads(text) == json.loads(golden.read_text())


@pytest.mark.seed("V24", "V25", "V31")
def test_everything_downstream_of_a_start_is_in_its_region() -> None:
    region = compile_application(figure_1a()).region("figure_1a/op1")
    assert set(names(region.operators)) == {"op1", "op2", "op3", "op4", "op5", "op6"}
    assert names(region.ends) == ["op5", "op6"]


@pytest.mark.seed("V27", "V30", "V32", "V40")
def test_regions_that_share_an_operator_are_one() -> None:
    plan = compile_application(figure_1b())
    (region,) = plan.regions
    assert names(region.starts) == ["op1", "op3"]
    assert names(region.ends) == ["op6"]
    assert plan.autonomous == ()


@pytest.mark.seed("V33", "V44", "V45", "V52", "V53")
def test_autonomous_operators_stay_out_and_feed_an_autonomous_port() -> None:
    plan = compile_application(figure_1c())
    (region,) = plan.regions
    assert names(region.operators) == ["op1", "op2", "op5", "op6"]
    assert names(region.feeds) == ["op3", "op4"]
    assert [names(outside.operators) for outside in plan.autonomous] == [["op3", "op4"], ["op7"]]
    classes = {port.stream: port.port_class for port in region.ports if port.operator == "op5"}
    assert classes == {"op2": PortClass.CONSISTENT_DATA, "op4": PortClass.AUTONOMOUS_DATA}


@pytest.mark.seed("V19", "V23", "V35")
def test_sample_program_has_a_period_and_one_port_of_two_streams() -> None:
    region = compile_application(figure_2()).region("figure_2")
    assert region.parameters.period is not None
    assert region.parameters.period.total_seconds() == 10
    assert [port.port for port in region.ports if port.operator == "both"] == [0, 0]
    assert region.consumers("beat") == 2
    assert region.consumers("both") == 2


@pytest.mark.seed("V20", "V88", "V90", "V93", "V95")
def test_a_control_loop_has_two_connections_to_drain_and_one_to_await_before_a_checkpoint() -> None:
    region = compile_application(figure_3()).region("figure_3")
    assert connections(region, "op3") == [2, 1, 1, 0]
    assert names(region.operators) == ["op1", "op2", "op3", "op4", "op5"]
    assert names(region.stateful) == ["op3"]
