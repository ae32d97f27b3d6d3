"""The verbs of a scene's actors: those that the command line, the desk and runs call, with chosen arguments."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.jobs.runtime.maintenance.garbage_collection import collect
from drainmark.jobs.scan.folder import path_of
from drainmark.orchestration.doctor.regions import examine_region
from drainmark.orchestration.doctor.registry_repair import repair_order
from drainmark.orchestration.inspection.status import status_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions, orders
from drainmark.orchestration.verbs.inputs import quarantine
from drainmark.orchestration.verbs.inputs.backfill import Wanted
from drainmark.orchestration.verbs.removals import garbage
from drainmark.orchestration.verbs.removals.table_drops import drop_table
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.hand_off import owning
from simulation.model import DELETE, UNREADABLE, readable
from simulation.outsiders import OUTSIDERS
from simulation.regions import KEYED, MIRRORS, SimRegion

if TYPE_CHECKING:
    from simulation.scene import Scene

_KEYS = 6
_SMALL_GROUPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A step at work: where, by which process, with which chance."""

    scene: Scene
    fed: SimRegion
    draw: Random

    def files(self) -> list[Path]:
        """Return the files of the region's folder, by name."""
        return sorted(self.fed.inbox.iterdir())


Verb = Callable[[Act], object]

# --- runs and files -------------------------------------------------------------------------------------------------


def run(act: Act) -> None:
    """Scan, claim, process what is pending, and hand over."""
    act.fed.loop(act.draw.randint(1, _SMALL_GROUPS)).run()


def change_code(act: Act) -> None:
    """Run with other code, which may lack a sink that shows the state."""
    fed = act.fed
    keyed = [sink for sink in fed.sinks if sink in KEYED]
    if keyed:
        fed.sinks = tuple(sink for sink in fed.sinks if sink != act.draw.choice(keyed))
    fed.version = act.draw.randint(1, 2)
    run(act)


def lack_state(act: Act) -> None:
    """Run with code that does not keep the state, and lacks the sinks that show it."""
    fed = act.fed
    fed.is_keyed, fed.sinks = False, tuple(sink for sink in fed.sinks if sink not in KEYED)
    run(act)


def drop_state(act: Act) -> None:
    """Let the state begin anew with the next claim, and run on."""
    act.fed.drop_state()
    run(act)


def drop_left(act: Act) -> None:
    """Drop a table that left the code, and whose history goes on without it."""
    history = act.fed.history()
    left = {table.name for table in history.former}
    names = [table.name for table in history.former if table.role is TableRole.UPSERT and table.history not in left]
    if names:
        drop_table(act.fed.workplace, act.fed.region, act.draw.choice(names), "not wanted").act()


def write(act: Act) -> None:
    """Write some new files, of which some are empty."""
    for _ in range(act.draw.randint(1, 4)):
        act.scene.put(act.fed.region, _values(act))


def replace(act: Act) -> None:
    """Write another version of a file."""
    if files := act.files():
        act.scene.put(act.fed.region, _values(act), act.draw.choice(files).name)


def delete(act: Act) -> None:
    """Delete a file that may be pending or committed."""
    if files := act.files():
        act.scene.delete(act.draw.choice(files))


def _values(act: Act) -> list[str]:
    draw = act.draw
    counts = (1, 2, 3) if act.scene.setup.chain else (0, 1, 2, 3)  # a reader makes its table with its first rows
    found = {f"k{draw.randrange(_KEYS)}" for _ in range(draw.choice(counts))}
    if {*MIRRORS} & {*act.scene.setup.sinks}:
        found = {f"{DELETE}{key}" if draw.random() < 0.4 else key for key in sorted(found)}
    if act.scene.setup.quarantine and draw.random() < 0.5:
        found.add(draw.choice((UNREADABLE, UNREADABLE, f"{UNREADABLE}{draw.randrange(_KEYS)}")))
    return sorted(found)


# --- an operator's orders -------------------------------------------------------------------------------------------


def rewind(act: Act) -> None:
    """Go back to a state, by one of the ways to name it."""
    target = _target(act)
    loss = act.draw.random() < 0.8
    cascade = act.scene.setup.chain and act.draw.random() < 0.8
    orders.reset(act.fed.workplace, act.fed.region, target, accept_loss=loss, cascade=cascade).act()


def rewind_alone(act: Act) -> None:
    """Go back without the readers, as seen by those in another home."""
    plan = plan_reset(act.fed.workplace, act.fed.region, _target(act))
    interventions.reset(act.fed.workplace, plan, accept_loss=True)


def _target(act: Act) -> RewindTarget:
    states, draw = act.fed.history().states, act.draw
    rows = list(states.items())[-8:]
    if not rows or draw.random() < 0.1:
        return RewindTarget(to_initial=True)
    number, row = draw.choice(rows)
    return draw.choice((
        RewindTarget(to=number),
        RewindTarget(to=number),
        RewindTarget(to_file=row.trigger_uri),
        RewindTarget(to_time=row.recorded_at + dt.timedelta(seconds=draw.choice((-1, 0, 1)))),
        RewindTarget(by=draw.randint(0, len(rows))),
    ))  # fmt: skip


def reset(act: Act) -> None:
    """Drop the work in flight."""
    orders.reset(act.fed.workplace, act.fed.region, RewindTarget()).act()


def skip(act: Act) -> None:
    """Skip a pending file."""
    if waiting := sorted(each.uri for each in act.fed.workplace.registry.triggers.pending(act.fed.region, 99)):
        orders.skip(act.fed.workplace, act.fed.region, [act.draw.choice(waiting)], "not wanted").act()


def halt(act: Act) -> None:
    orders.halt(act.fed.workplace, act.fed.region, "lunch").act()


def resume(act: Act) -> None:
    loss = act.draw.random() < 0.1  # which no folder has: it is refused
    orders.resume(act.fed.workplace, act.fed.region, "lunch is over", accept_loss=loss).act()


def publish(act: Act) -> None:
    orders.publish(act.fed.workplace, act.fed.region).act()


def backfill(act: Act) -> None:
    """Queue all files that are not known."""
    if act.files():
        orders.backfill(act.fed.workplace, act.fed.region, Wanted(pattern=str(act.fed.inbox))).act()


def again(act: Act) -> None:
    """Queue one file, or all, in place of what they gave."""
    if files := act.files():
        pattern = str(act.draw.choice((act.fed.inbox, act.draw.choice(files))))
        orders.backfill(act.fed.workplace, act.fed.region, Wanted(pattern=pattern, again=True)).act()


def redrive(act: Act) -> None:
    """Take in a file anew that has rows in the quarantine; some of them were fixed before."""
    place, region = act.fed.workplace, act.fed.region
    if region not in place.known_regions() or not (found := quarantine.quarantined_files(place, region)):
        return
    path = Path(path_of(act.draw.choice(found)["file"]))
    if act.draw.random() < 0.6:
        act.scene.put(region, readable(_values(act)), path.name)
    orders.redrive(place, region, str(path)).act()


def retract(act: Act) -> None:
    """Take one or two committed files out of the tables."""
    states = act.fed.history().states.values()
    uris = sorted({row.trigger_uri or "" for row in states if row.kind is RowKind.STATE})
    if uris:
        files = act.draw.sample(uris, min(len(uris), act.draw.choice((1, 1, 2))))
        orders.retract(act.fed.workplace, act.fed.region, files, "not wanted").act()


def forget(act: Act) -> None:
    """Erase all rows of a value from all regions."""
    act.scene.forget(act.fed.workplace, f"k{act.draw.randrange(_KEYS)}")


def repair(act: Act) -> None:
    repair_order(act.fed.workplace, act.fed.region).act()


def late(act: Act) -> None:
    """Wait until the others stand still or have ended, or only for some of their seams."""
    world.sleep(act.draw.choice((0.2, 100.0, 100.0)))


# --- upkeep ---------------------------------------------------------------------------------------------------------


def gc(act: Act) -> None:
    garbage.collect_region(act.fed.workplace, act.fed.region)


def gc_plan(act: Act) -> None:
    garbage.collect_region(act.fed.workplace, act.fed.region, dry_run=True)


def maintain(act: Act) -> None:
    """Do what a run does every 20 groups; its tables also compact shorter runs of files here."""
    horizon = act.scene.setup.horizon
    with owning(region_owner(act.fed.workplace, act.fed.region)) as owner:
        for table in owner.history.tables:
            managed = act.fed.store.table(table.name) if table.is_managed else None
            version = managed.txn_version() if managed is not None and table.history is None else None
            if managed is not None and version is not None:
                staging = act.fed.store.staging(table, owner.epoch, f"{act.draw.getrandbits(128):032x}")
                oldest = max(0, owner.history.committed_id - horizon)
                managed.upkeep.compact(version, staging, files_at_least=2, horizon_id=oldest)
        act.fed.store.checkpoint.compact(files_at_least=act.draw.choice((2, 8)))
        maintain_region(owner, horizon=horizon)
        if act.draw.random() < 0.5:
            collect(owner.outside, owner.history, horizon=horizon)


def look(act: Act) -> None:
    """Ask for the status and for what is wrong, which changes nothing."""
    status_of(act.fed.workplace, act.fed.region)
    if act.fed.region in act.fed.workplace.known_regions():
        examine_region(act.fed.workplace, act.fed.region, act.fed.workplace.registry)


VERBS: Mapping[str, Verb] = OUTSIDERS | {
    verb.__name__: verb
    for verb in (run, change_code, write, replace, delete, rewind, reset, skip, halt, resume, publish, backfill, again,
                 retract, forget, repair, late, gc, gc_plan, maintain, look, lack_state, drop_state, drop_left, redrive,
                 rewind_alone)
}  # fmt: skip
"""The verbs by name, with what outsiders do."""
