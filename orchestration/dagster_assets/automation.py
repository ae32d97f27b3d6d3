"""When an asset of the user follows the tables of a region: the condition for Dagster's automation."""

from __future__ import annotations

import dagster as dg


def eager() -> dg.AutomationCondition:  # type: ignore[type-arg]  # of assets and checks, as Dagster's own
    """Return `AutomationCondition.eager()` for assets behind a region's tables: the last file of a burst reaches them.

    Dagster's own forgets an update of a dependency that comes in the first tick after the one that requested the asset,
    or in the tick in which the asset's run ends. A region reports each group, and bursts of files do not wait for
    ticks, so that the last group is often such an update. Here an update is handled by a later request only. A run that
    is at work is waited for, and then the asset runs once more.

    Example:
        @dg.asset(deps=[["sales", "item_totals"]], automation_condition=eager())
        def report() -> None: ...
    """
    condition = dg.AutomationCondition
    # `since` lets a reset win over an update in the same tick. So there is no reset in a tick with an update.
    is_asked = condition.newly_requested() | condition.initial_evaluation()
    handled = (~condition.any_deps_updated() & is_asked).with_label("requested_after_the_update")
    return condition.eager().replace("handled", handled).with_label("eager_for_regions")
