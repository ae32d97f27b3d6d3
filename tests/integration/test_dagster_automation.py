"""An asset behind a region's table runs after the last file of a burst, whenever its groups come between ticks."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
import pytest

from drainmark.dagster import eager

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster warns of what it uses itself

QUICK = ("totals", "tick", "totals", "report")
"""The second group comes before the asset's run ends, which may have read before that; both in one tick."""

LATE = ("totals", "tick", "report", "totals")
SLOW = ("totals", "tick", "tick", "totals", "tick", "report")
ALONE = ("totals", "tick", "report")


def requests(condition: dg.AutomationCondition, steps: Sequence[str]) -> list[int]:  # type: ignore[type-arg]
    """Evaluate a condition at each `tick`, and three times at the end; a name is a materialisation of that asset."""

    @dg.asset(deps=["totals"], automation_condition=condition)
    def report() -> None: ...

    defs = dg.Definitions(assets=[dg.AssetSpec("totals"), report])
    found, cursor = [], None
    with dg.DagsterInstance.ephemeral() as instance:
        for step in ("totals", "report", "tick", *steps, "tick", "tick", "tick"):
            if step != "tick":
                instance.report_runless_asset_event(dg.AssetMaterialization(step))
                continue
            result = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=cursor)
            cursor = result.cursor
            found.append(result.total_requested)
    return found


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (QUICK, [0, 1, 1, 0, 0]),
        (LATE, [0, 1, 1, 0, 0]),
        (SLOW, [0, 1, 0, 1, 0, 0, 0]),
        (ALONE, [0, 1, 0, 0, 0]),
    ],
)
def test_each_update_is_followed_by_a_request_and_no_more(steps: Sequence[str], wanted: list[int]) -> None:
    assert requests(eager(), steps) == wanted


@pytest.mark.parametrize("steps", [QUICK, LATE])
def test_dagsters_own_condition_forgets_the_second_group(steps: Sequence[str]) -> None:
    """When this fails, Dagster has mended it, and `drainmark.dagster.eager` can go."""
    assert requests(dg.AutomationCondition.eager(), steps) == [0, 1, 0, 0, 0]
