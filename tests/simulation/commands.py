"""Commands that an error names, carried out by the functions that the command line calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from followed import chains, parse

from drainmark.orchestration import doctor
from drainmark.orchestration.verbs import orders, table_repair
from drainmark.orchestration.verbs.inputs.backfill import Wanted
from drainmark.orchestration.verbs.orders import moment
from drainmark.orchestration.verbs.removals import garbage
from drainmark.orchestration.verbs.removals.table_drops import drop_table
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget
from drainmark.orchestration.workplace.declaration import find_region
from drainmark.orchestration.workplace.workplace import Workplace

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
        drop_table(act.fed.workplace, given["table"], given["reason"], region=act.fed.region).act()
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


def _ordered(order: Callable[[Workplace, str, Given], orders.Order]) -> Callable[[Act, Given], None]:
    def deed(act: Act, given: Given) -> None:
        place = act.fed.workplace
        order(place, find_region(place, given["region"]), given).act()

    return deed


def _reset(place: Workplace, region: str, given: Given) -> orders.Order:
    target = RewindTarget(
        to=given["to"],
        to_file=given["to_file"],
        to_time=moment(given["to_time"], "--to-time", to_its_end=True),
        by=given["by"],
        to_initial=given["to_initial"],
    )
    plan = orders.reset(place, region, target)
    loss = given["accept_loss"] or bool(plan.facts["gone"] or plan.facts["changed"])  # as the shown plan asks for it
    return orders.reset(place, region, target, accept_loss=loss, cascade=given["cascade"])


_DEEDS: Mapping[str, Callable[[Act, Given], None]] = {
    "run": _run,
    "scan": _run,
    "doctor": _doctor,
    "reset": _ordered(_reset),
    "resume": _ordered(lambda place, region, given: orders.resume(place, region, given["reason"])),
    "skip": _ordered(lambda place, region, given: orders.skip(place, region, given["file"], given["reason"])),
    "halt": _ordered(lambda place, region, given: orders.halt(place, region, given["reason"])),
    "publish": _ordered(lambda place, region, given: orders.publish(place, region)),
    "backfill": _ordered(
        lambda place, region, given: orders.backfill(
            place, region, Wanted(pattern=given["pattern"], again=given["again"])
        )
    ),
    "gc": lambda act, given: garbage.collect_region(act.fed.workplace, act.fed.region) and None,
}
