"""Commands that an error names, carried out by the functions that the command line calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from followed import chains, parse

from drainmark.orchestration import doctor
from drainmark.orchestration.verbs import table_repair
from drainmark.orchestration.verbs.operator_verbs import BACKFILL, HALT, PUBLISH, RESET, RESUME, SKIP, Verb
from drainmark.orchestration.verbs.removals import garbage
from drainmark.orchestration.verbs.removals.table_drops import drop_table
from drainmark.orchestration.workplace.declaration import find_region

if TYPE_CHECKING:
    from simulation.verbs import Act

Given = Mapping[str, Any]


def carry_out(act: Act, command: Sequence[str]) -> None:
    """Carry out a command; one that only shows something does nothing.

    Args:
        command: a verb and its words.
    """
    verb, *words = command
    if list(command[:2]) == ["tables", "drop"]:
        given = parse("tables drop", words[1:])
        drop_table(act.fed.workplace, act.fed.region, given["table"], given["reason"]).act()
    elif (deed := _DEEDS.get(verb)) is not None:
        deed(act, parse(verb, words))


def _run(act: Act, given: Given) -> None:
    from simulation.verbs import run

    if given.get("drop"):
        act.fed.drop_state()
    run(act)


def _doctor(act: Act, given: Given) -> None:
    place = act.fed.workplace
    if not given["repair"]:
        return
    wanted = table_repair.plan(place)
    doctor.repair(place, regions=doctor.lost_regions(place))
    for each in wanted:
        done = table_repair.mend(place, each.region, rebuild=partial(doctor.repair, place, regions=[each.region]))
        for command in (command for chain in chains(done.remedy or "") for command in chain):
            carry_out(act, command)  # the rows of some ids are lost


def _ordered(verb: Verb) -> Callable[[Act, Given], None]:
    def deed(act: Act, given: Given) -> None:
        place = act.fed.workplace
        region, options = find_region(place, given["region"]), {each.name: given[each.name] for each in verb.options}
        order = verb.order(place, region, **options)
        if verb is RESET and (order.facts["gone"] or order.facts["changed"]):  # as the shown plan asks for it
            order = verb.order(place, region, **{**options, "accept_loss": True})
        order.act()

    return deed


_DEEDS: Mapping[str, Callable[[Act, Given], None]] = {
    "run": _run,
    "scan": _run,
    "doctor": _doctor,
    **{verb.name: _ordered(verb) for verb in (RESET, RESUME, SKIP, HALT, PUBLISH, BACKFILL)},
    "gc": lambda act, given: garbage.collect_region(act.fed.workplace, act.fed.region) and None,
}
