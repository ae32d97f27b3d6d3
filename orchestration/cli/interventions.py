"""Verbs that change a region: reset (rewind), retract, halt, skip, resume, backfill, publish."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked, RegionName, nothing_changed
from drainmark.orchestration.dagster_assets.instance import has_instance, instance_at, instance_home
from drainmark.orchestration.verbs.operator_verbs import BACKFILL, HALT, PUBLISH, RESET, RESUME, RETRACT, SKIP, Verb
from drainmark.orchestration.verbs.orders import Done, Order

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace


def command(verb: Verb) -> Callable[..., None]:
    """Return the function of a verb for the command line: of a region, with the options of the verb."""

    def carried_out(asked: Asked, *, region: str, dry_run: bool = False, **options: Any) -> None:
        order = verb.order(asked.workplace, asked.region(region), **options)
        if dry_run:
            show(asked, order)
            return
        if asks:
            require_yes(asked, order)
        carry_out(asked, order)

    asks = verb.only_plans == "without --yes"
    carried_out.__doc__ = f"{verb.about} Without --yes only the plan is shown." if asks else verb.about
    own = [("asked", Asked), ("region", RegionName)]
    given = [*(Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in own), *verb.options]
    if verb.only_plans == "with --dry-run":
        given.append(Parameter("dry_run", Parameter.KEYWORD_ONLY, default=False, annotation=_DryRun))
    carried_out.__signature__ = Signature(given)  # type: ignore[attr-defined]
    return carried_out


_DryRun = Annotated[bool, typer.Option("--dry-run", help="Count and list only.")]

reset, retract, halt, resume, skip, publish, backfill = map(
    command, (RESET, RETRACT, HALT, RESUME, SKIP, PUBLISH, BACKFILL)
)


def require_yes(asked: Asked, order: Order) -> None:
    """Show the plan of an order and raise UsageError, unless `--yes` confirms it."""
    if asked.yes:
        return
    show(asked, order)
    chain = order.facts.get("chain") or ()
    is_lossy = any(plan.get("gone") or plan.get("changed") for plan in (order.facts, *chain))
    flags = f"{' --accept-loss' if is_lossy else ''}{' --cascade' if chain else ''}"
    raise nothing_changed(flags)


def show(asked: Asked, order: Order | Done) -> None:
    """Print the plan of an order, or its outcome."""
    asked.answer(order.facts, lambda _: _say(order))


def _say(order: Order | Done) -> None:
    for line in order.plan if isinstance(order, Order) else order.lines:
        output.say(line)
    for remark in order.remarks:
        output.note(remark)


def carry_out(asked: Asked, order: Order) -> None:
    """Carry an order out, print the outcome, and report it to the Dagster instance of this home, if there is one."""
    if order.notice:
        output.note(order.notice)
    done = order.act()
    show(asked, done)
    try:
        if has_instance(asked.workplace.settings):
            _leave(asked.workplace, order, done)
    except Exception as error:  # the order is done, and an error of the display must not fail the verb
        output.note(f"Dagster was not told: {type(error).__name__}: {error}")


def _leave(workplace: Workplace, order: Order, done: Done) -> None:
    from drainmark.orchestration.dagster_assets.verb_events import show_verb, told_of
    from drainmark.orchestration.workplace.declaration import load_region

    with instance_at(instance_home(workplace.settings)) as instance:
        log = instance.report_runless_asset_event
        for region, told in told_of(order.region, order.verb, done.facts, done.lines):
            code = load_region(workplace, region)
            show_verb(workplace, region, code[1] if code is not None else None, told, instance=instance, log=log)
