"""The verb that compares: plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from drainmark.jobs.printable import shell_word
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import AppName, Asked, Settings, parameters

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan_diff import RegionDifference, TableDifference
    from drainmark.orchestration.verbs.plan import UpgradePlan

DropStates = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-state",
        metavar="OP",
        help="Discard this operator's state; it starts empty at the next id.",
        show_default=False,
    ),
]


def plan(
    asked: Asked,
    *,
    app: AppName = None,
    drop: DropStates = None,
    settings: Settings = None,
) -> None:
    """Compare an application with its last run: operators, states, tables. Exit code 1 if no run could go on.

    --drop-state shows what a dropped state would change; with --yes it is dropped.
    """
    from drainmark.orchestration.verbs.plan import carry_out, plan_upgrade
    from drainmark.orchestration.workplace.declaration import name_of, named_application
    from drainmark.orchestration.workplace.workplace import open_in_time

    workplace = asked.workplace
    reference, start = named_application(workplace, app)
    opened = open_in_time(workplace.settings, reference, params=parameters(settings))
    regions, names = opened.regions(start), drop or ()
    with output.result_only(asked.as_json):
        found = plan_upgrade(workplace, opened, regions, drop=names, tell=output.waiting)
        is_done = bool(names) and asked.yes and found.is_compatible
        if is_done:
            carry_out(found.drops)
    if asked.as_json:
        output.emit({**found.to_json(), "dropped": list(names) if is_done else []})
    else:
        _show(found, app or name_of(reference))
        if names:
            output.say(f"states of {', '.join(names)} {_outcome(found, is_done=is_done)}")
    if not found.is_compatible:
        raise typer.Exit(1)


def _outcome(found: UpgradePlan, *, is_done: bool) -> str:
    """Return the outcome for the states that were to be dropped."""
    if is_done:
        return "begin anew with the next id"
    if not found.is_compatible:
        return "were not dropped: first do what is said above"
    return "were not dropped: repeat it with --yes"


def remedy_for(table: TableDifference, region: RegionDifference, app: str) -> str:
    """Return the remedy for a table that cannot go on: a state can be dropped, the table of a sink is emptied."""
    from drainmark.jobs.regions.plan_diff import StateChange
    from drainmark.jobs.runtime.commit.claim_checks import emptied

    if any(each.operator == table.operator and each.state for each in region.operators):
        anew = (StateChange.INCOMPATIBLE, StateChange.BEGINS_ANEW)
        drops = "".join(f" --drop-state {each.operator}" for each in region.operators if each.state in anew)
        return f"{emptied(region.region, region.full)}drainmark plan {shell_word(app)}{drops}, or the code as it was"
    only_new = all(reason.endswith(" is new") for reason in table.why.split(", "))
    evolve = 'on_schema_change="evolve" at the sink, ' if only_new else ""
    empty = f", or all input again: drainmark reset {region.region} --to-initial" if table.is_full else ""
    return f"{evolve}another table, or the code as it was{empty}"


def _show(found: UpgradePlan, app: str) -> None:
    for region in found.regions:
        ran = "has not run yet" if region.committed_id is None else f"committed {region.committed_id}"
        output.say(f"{region.region}: {ran}")
        rows = [(each.operator, each.kind, each.change, each.state) for each in region.operators]
        output.table(("operator", "kind", "code", "state"), rows)
        output.table(("table", "by", "change", ""), [(t.table, t.operator, t.change, t.why) for t in region.tables])
        for table in region.tables:
            if table.change == "incompatible":
                output.say(f"{table.table} cannot go on: {table.why}; {remedy_for(table, region, app)}")
        if region.refused is not None:
            output.say(f"{region.region} cannot go on: {region.refused['message']}; {region.refused['remedy']}")
    for name in found.left:
        drop = f"drainmark tables drop --region {shell_word(name)}"
        output.say(f"{name} is not declared any more; its tables stay as they are, until: {drop}")
