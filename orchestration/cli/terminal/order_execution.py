"""Orders on the command line: their plan, and their execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.dagster_assets.runless_events import has_instance, instance_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drainmark.orchestration.verbs.orders import Done, Order
    from drainmark.orchestration.workplace.workplace import Workplace


def show(order: Order, *, as_json: bool) -> None:
    """Print the plan of an order."""
    _say(order.facts, order.plan, order.remarks, as_json=as_json)


def carry_out(place: Workplace, order: Order, *, as_json: bool) -> None:
    """Carry an order out, print the outcome, and report it to the Dagster instance of this home, if there is one."""
    done = order.act()
    _say(done.facts, done.lines, done.remarks, as_json=as_json)
    if has_instance(place.settings.dagster_home):
        try:
            _leave(place, order, done)
        except Exception as error:  # the order is done, and an error of the display must not fail the verb
            output.note(f"Dagster was not told: {type(error).__name__}: {error}")


def _leave(place: Workplace, order: Order, done: Done) -> None:
    from drainmark.orchestration.dagster_assets.verb_events import show_verb, told_of
    from drainmark.orchestration.workplace.declaration import load_region

    with instance_at(place.settings.dagster_home) as instance:
        log = instance.report_runless_asset_event
        for region, told in told_of(order.region, order.verb, done.facts, done.lines):
            code = load_region(place, region)
            show_verb(place, region, code[1] if code is not None else None, told, instance=instance, log=log)


def _say(facts: Mapping[str, Any], lines: Sequence[str], remarks: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        output.emit(facts)
        return
    for line in lines:
        output.say(line)
    for remark in remarks:
        output.note(remark)
