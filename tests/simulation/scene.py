"""The world of one history: a project, a home, and folders of input below one folder; processes that work there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hand_runs import NoSpark

from drainmark.jobs import world
from drainmark.jobs.errors import Owned
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.scan.folder import identity_of, uri_of
from drainmark.orchestration.verbs.removals import erase
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from simulation import operator, verbs
from simulation.looks import Looks
from simulation.regions import KEYED, SimRegion, code_of, key_of
from simulation.script import SLOW, Step
from simulation.setup import Setup, setup_of

__all__ = ["Scene", "Setup", "outcomes", "phases", "setup_of"]

outcomes: Counter[tuple[str, str]] = Counter()
"""How often each verb ended how, "ok" or the name of an error, in all histories of this process."""

_HEAD = '"""The application of a simulation."""\n\nimport drainmark as dm\n'
_REGION = """

@dm.consistent(trigger="operator-driven", rewind_horizon={horizon}, checkpoints="{checkpoints}")
@dm.source(
    dm.DirectoryScan(
        path="inbox/r{n}", format="text", settle=0, on_change="{on_change}", on_missing="{on_missing}"
    )
)
def r{n}(scanned):
    return scanned


dm.sink(r{n}, dm.DeltaAppend("kept{n}"))
"""
_READER = """

@dm.consistent(trigger="operator-driven", rewind_horizon={horizon}, checkpoints="{checkpoints}")
@dm.source(dm.TableSource("kept{before}"))
def r{n}(scanned):
    return scanned


dm.sink(r{n}, dm.DeltaAppend("kept{n}"))
"""


@dataclass(slots=True)
class Scene:
    """The world of one history.

    Attributes:
        base: the folder of everything.
        contents: the values of each version of each file, by uri and `regions.key_of` its identity; and what a region
            read of the table of another one, by `regions.reading_of` its id.
        versions: the versions of each file that was ever written, by uri: keys of identities, the newest last.
        deleted: the uris of files that are gone.
        damaged: the regions to whose tables others wrote since the last rest.
        dropped: the folders of tables that others deleted, with files that only a rewind needs.
        damaged_then: those that were damaged when the home was copied.
        forgetting: the values of which an erasure began and did not end.
        forgotten: what was erased: region, id, value.
        erasures: how often one began.
        returned: what came back from an older copy since the last rest: "home", "tables" or nothing.
        kill_others: lets all processes but that of the caller die.
    """

    base: Path
    setup: Setup
    seed: int
    contents: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    versions: dict[str, list[str]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    dropped: set[Path] = field(default_factory=set)
    damaged_then: set[str] = field(default_factory=set)
    returned: str = ""
    forgetting: set[str] = field(default_factory=set)
    forgotten: set[tuple[str, int, str]] = field(default_factory=set)
    erasures: int = 0
    kill_others: Callable[[], None] = field(default=lambda: None, kw_only=True)
    _application: Opened = field(init=False)
    _settings: Settings = field(init=False)
    _places: dict[str, Workplace] = field(default_factory=dict)
    _written: int = 0

    def __post_init__(self) -> None:
        setup = self.setup
        facts = {"horizon": setup.horizon, "on_change": setup.on_change, "on_missing": setup.on_missing,
                 "checkpoints": "blocking" if setup.blocking else "non-blocking"}  # fmt: skip
        code = [_READER if setup.chain and n else _REGION for n in range(setup.regions)]
        regions = "".join(text.format(n=n, before=n - 1, **facts) for n, text in enumerate(code))
        (self.base / "sim.py").write_text(_HEAD + regions)
        (self.base / "drainmark.toml").write_text('applications = ["sim.py"]\n')
        self._settings = Settings(
            home=self.home,
            project_root=self.base,
            applications=("sim.py",),
            databases={"shop": "sqlite:///{home}/shop.db"},
            lease_seconds=setup.lease_seconds,
        )
        self._application = open_application(str(self.base / "sim.py"))
        for region in self.regions:
            self.inbox(region).mkdir(parents=True)

    @property
    def regions(self) -> Sequence[str]:
        return tuple(f"sim/r{n}" for n in range(self.setup.regions))

    @property
    def home(self) -> Path:
        return self.base / "home"

    def inbox(self, region: str) -> Path:
        return self.base / "inbox" / region.partition("/")[2]

    # --- processes --------------------------------------------------------------------------------------------------

    def work(self, step: Step) -> Callable[[], None]:
        """Return the work of a step, in the process of its actor; a process that dies is followed by a new one."""

        def carry_out() -> None:
            draw = Random(f"{self.seed}/{step.id}")
            if draw.random() < 0.2:
                self.leave(step.actor)
            act = verbs.Act(scene=self, fed=self._region(step.region, self._place(step.actor)), draw=draw)
            try:
                ended = operator.attended(act, step.verb)
            except BaseException:
                self.leave(step.actor)
                raise
            outcomes[step.verb, ended] += 1

        return carry_out

    def leave(self, actor: str) -> None:
        """End the process of an actor."""
        place = self._places.pop(actor, None)
        if place is not None and place.has_registry:
            place.registry.close()

    def fresh(self, region: str) -> SimRegion:
        """Return a region in a new process, which ends with the scene, or with the next call."""
        self.leave("fresh")
        return self._region(region, self._place("fresh"))

    def come_to_rest(self) -> None:
        """Let the operator work on every region until it is drained, published, and handed over without a fault.

        Raises:
            Finding: it does not come to rest by what its remedies say.
        """
        for region in self.regions:
            self._bring_to_rest(region)
        for value in sorted(self.forgetting):  # whoever typed the command types it again
            with suppress(Owned):
                self.forget(self.fresh(self.regions[0]).workplace, value)
            if value in self.forgetting:
                world.sleep(operator.HOUR)
                self.forget(self.fresh(self.regions[0]).workplace, value)
            for region in self.regions:
                self._bring_to_rest(region)
        self.leave("fresh")
        self.damaged.clear()
        self.returned = ""

    def _bring_to_rest(self, region: str) -> None:
        operator.bring_to_rest(verbs.Act(scene=self, fed=self.fresh(region), draw=Random(f"{self.seed}/rest")))

    def forget(self, place: Workplace, value: str) -> None:
        """Erase a value from all regions; ids that come meanwhile are erased if the certificate says so."""
        looks = Looks(home=self.home, databases={})
        before = {
            region: [row.sequence_id for row in looks.checkpoint(region) if row.kind == "state"]
            for region in place.own_regions()
        }
        self.forgetting.add(value)
        self.erasures += 1
        done = erase.erase(place, erase.Person.parse(f"value = '{value}'"), tuple(before))
        ids = {each["region"]: each["ids"] for each in done["regions"]}
        self.forgotten |= {(region, n, value) for region, known in before.items() for n in (*known, *ids[region])}
        self.forgetting.discard(value)

    def close(self) -> None:
        for actor in list(self._places):
            self.leave(actor)

    def _place(self, actor: str) -> Workplace:
        if actor not in self._places:
            self._places[actor] = Workplace(self._settings)
            self._places[actor].use_engine(NoSpark())
        return self._places[actor]

    def _region(self, region: str, place: Workplace) -> SimRegion:
        fed = SimRegion(
            place,
            self.inbox(region),
            region=region,
            number=self.regions.index(region),
            sinks=self.setup.sinks,
            is_keyed=self.setup.drops or bool({*KEYED} & {*self.setup.sinks}),
            has_bad=self.setup.quarantine,
            horizon=self.setup.horizon,
            images=self.setup.images,
            lag=self.setup.lag,
            contents=self.contents,
            forgotten=self.forgotten,
            application=self._application,
        )
        fed.code = code_of(fed.tables, 1)
        return fed

    # --- input ------------------------------------------------------------------------------------------------------

    def put(self, region: str, values: Sequence[str], name: str | None = None) -> Path:
        """Write a file of values, or another version of one, whole; a version is never written twice."""
        self._written += 1
        path = self.inbox(region) / (name or f"f{self._written:03d}")
        aside = self.base / f"aside{self._written}"
        aside.write_text("".join(f"{value}\n" for value in values))
        modified = int(self.setup.epoch) - 1_000_000 + self._written  # no scan takes it for a file of the future
        os.utime(aside, (modified, modified))
        aside.rename(path)
        uri, key = uri_of(str(path)), key_of(identity_of(path.stat()))
        self.contents[uri, key] = tuple(values)
        self.versions.setdefault(uri, []).append(key)
        self.deleted.discard(uri)
        return path

    def delete(self, path: Path) -> None:
        """Delete a file."""
        path.unlink(missing_ok=True)
        self.deleted.add(uri_of(str(path)))


# --- the plan of a seed ---------------------------------------------------------------------------------------------

_WORK: Mapping[str, Mapping[str, int]] = {
    "A": {"run": 1},
    "B": {"run": 1},
    "Z": {"run": 1},
    "W": {"write": 4, "replace": 1, "delete": 1},
    "O": {
        "run": 3, "rewind": 4, "reset": 1, "skip": 1, "halt": 1, "resume": 2, "publish": 1, "gc": 2, "gc_plan": 1,
        "maintain": 2, "repair": 2, "backfill": 1, "change_code": 1, "look": 1,
    },
}  # fmt: skip
"""How often each actor does what: by actor, the weight of each verb."""

_OF_CHAIN: Mapping[str, Mapping[str, int]] = {
    **_WORK,
    "W": {"write": 1},
    "O": {**{verb: often for verb, often in _WORK["O"].items() if verb not in ("skip", "backfill", "change_code")},
          "rewind": 6, "rewind_alone": 3},
}  # fmt: skip
"""The same in a chain, where nothing is done that changes which rows count, and more goes back."""

_TABLES_LEAVE = 4
"""In one history of so many, a table that left the code is dropped."""

_WEIGHTS = {"A": 5, "B": 3, "Z": 2, "W": 4, "O": 7}


def phases(seed: int, setup: Setup) -> tuple[tuple[Step, ...], ...]:
    """Return the plan of a seed: some phases of some steps each."""
    draw = Random(f"{seed}/plan")
    if setup.stall:
        return _duel(draw, setup)
    found = _crowd(draw, setup)
    if setup.retracts:
        return (*found, *_removed(draw, found, setup, "retract"))
    if setup.forgets:
        return (*found, *_removed(draw, found, setup, "forget"))
    drops_tables = seed % _TABLES_LEAVE == 0 and not setup.chain and bool({*KEYED} & {*setup.sinks})
    return (*found, *_left(draw, found, setup)) if drops_tables else found


_SLOW_WORK = (*[("write", "run")] * 5, ("rewind", "run"))
_MEANWHILE = (("rewind",), ("rewind", "run"), ("rewind", "rewind"), ("run", "rewind"), ("run",))
_AFTER_OTHERS = (("append", "rewind"), ("erase", "rewind"), ("drop", "rewind"), ("append", "repair"))


def _duel(draw: Random, setup: Setup) -> tuple[tuple[Step, ...], ...]:
    """Return a plan in which an owner stands still at a place of its work, and the operator takes over meanwhile."""
    meanwhile = draw.choice(_AFTER_OTHERS if setup.strangers else _MEANWHILE)
    slow = _SLOW_WORK[-1] if setup.stall == FailPoint.REWIND_TABLE_BEFORE else draw.choice(_SLOW_WORK)
    deeds = (("W", "write"), *((SLOW, verb) for verb in slow), *(("O", verb) for verb in ("late", *meanwhile)))
    steps = [Step(id=number, actor=actor, verb=verb, region="sim/r0") for number, (actor, verb) in enumerate(deeds, 1)]
    return (tuple(steps[:1]), tuple(steps[1:]))


def _crowd(draw: Random, setup: Setup) -> tuple[tuple[Step, ...], ...]:
    usual = _OF_CHAIN if setup.chain else _WORK
    weights, work = dict(_WEIGHTS), {actor: dict(verbs) for actor, verbs in usual.items()}
    more = (("again", setup.again), ("redrive", setup.quarantine), ("retract", setup.retracts))
    work["O"] |= {verb: 4 for verb, is_done in more if is_done}
    if setup.strangers:
        weights["S"], work["S"] = 2, {"append": 2, "erase": 2, "optimize": 2, "drop": 1}
    if setup.restores:
        weights["D"], work["D"] = 3, {"copy": 4, "restore": 3, "lose": 1}
    if setup.homes:
        weights["D"] = 3
        work["D"] = {**work.get("D", {}), "copy_home": 4, "restore_home": 1, "restore_tables": 1}
    if setup.drops:
        work["O"] |= {"drop_state": 3, "lack_state": 3}
    number = 0
    found: list[tuple[Step, ...]] = []
    for _ in range(draw.choice((1, 1, 2, 2, 3))):
        steps = []
        for _ in range(draw.randint(4, 9)):
            number += 1
            actor = "W" if number <= setup.regions else draw.choices([*weights], [*weights.values()])[0]
            verb = "write" if number <= setup.regions else draw.choices([*work[actor]], [*work[actor].values()])[0]
            region = number - 1 if number <= setup.regions else draw.randrange(setup.regions)
            region *= not (setup.chain and actor == "W")  # only the first region of a chain has a folder
            steps.append(Step(id=number, actor=actor, verb=verb, region=f"sim/r{region}"))
        found.append(tuple(steps))
    if setup.chain:
        return (*found, *_taken_back(draw, number))
    return (*found, *_older_home(draw, number)) if setup.homes else tuple(found)


def _left(draw: Random, before: tuple[tuple[Step, ...], ...], setup: Setup) -> Iterator[tuple[Step, ...]]:
    """Yield phases in which a table leaves the code and is dropped, while others run, go back, and bring it again."""
    number = max(step.id for steps in before for step in steps)
    for _ in range(2):
        region = f"sim/r{draw.randrange(setup.regions)}"
        others = draw.choices(("run", "rewind", "drop_left", "reset", "maintain"), k=3)
        verbs_of = ("write", "change_code"), ("drop_left", *others), ("write", "run")
        for deeds in verbs_of:
            yield _of_anyone(draw, deeds, region, number)
            number += len(deeds)


def _removed(draw: Random, before: tuple[tuple[Step, ...], ...], setup: Setup, verb: str) -> Iterator[tuple[Step, ...]]:
    """Yield phases in which files are retracted, or values erased, while others run, go back, and do the same."""
    number = max(step.id for steps in before for step in steps)
    for _ in range(2):
        region = f"sim/r{draw.randrange(1 if setup.chain else setup.regions)}"
        others = draw.choices(("run", "rewind", verb, "reset", "maintain"), k=2)
        for deeds in (("write", "run"), (verb, *others), ("write", verb)):
            yield _of_anyone(draw, deeds, region, number)
            number += len(deeds)


def _of_anyone(draw: Random, deeds: Sequence[str], region: str, number: int) -> tuple[Step, ...]:
    """Return a phase of a region whose deeds any actor may do; its steps have the numbers after `number`."""
    return tuple(
        Step(id=id_, actor="W" if verb == "write" else draw.choice("OAB"), verb=verb, region=region)
        for id_, verb in enumerate(deeds, number + 1)
    )


def _taken_back(draw: Random, number: int) -> Iterator[tuple[Step, ...]]:
    """Yield phases after which all regions have read everything, and one of the first two goes back."""
    for _ in range(2):
        deeds = [("O", draw.choice(("rewind_alone", "rewind_alone", "rewind")), draw.randrange(2)), ("W", "write", 0)]
        yield tuple(
            Step(id=(number := number + 1), actor=actor, verb=verb, region=f"sim/r{region}")
            for actor, verb, region in deeds
        )


def _older_home(draw: Random, number: int) -> Iterator[tuple[Step, ...]]:
    """Yield phases after which an older home comes back, from a copy that lacks what was committed in between."""
    back = draw.choice(("restore_home", "restore_tables"))
    for deeds in ((("D", "copy_home"),), (("W", "write"), ("A", "run")), (("D", back),)):
        yield tuple(Step(id=(number := number + 1), actor=actor, verb=verb, region="sim/r0") for actor, verb in deeds)
