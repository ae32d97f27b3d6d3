"""What must hold in a history: at rest all that is promised, and at any moment what a reader may see."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import RewindRefused
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.removals.garbage import collect_region
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget
from drainmark.resources.checkpoints.as_of import RegionReader
from simulation.looks import Looks, value_column
from simulation.model import Model, Pairs, Row
from simulation.regions import key_of, reading_of

if TYPE_CHECKING:
    from simulation.scene import Scene

DAY = 86_400.0
HELD = DAY - 7200.0
"""For how long a reader surely can read the files of a version that it opened; clocks may be an hour off."""


class Wrong(AssertionError):
    """A promise that does not hold: the check, the region, and what was found."""


@dataclass(slots=True)
class Checks:
    """The checks of one history.

    Attributes:
        asked: how often each check looked.
    """

    scene: Scene
    asked: Counter[str] = field(default_factory=Counter)
    looks: Looks = field(init=False)
    _held: dict[Path, float] = field(default_factory=dict)
    _latest: float = 0.0
    _erasures: int = 0

    def __post_init__(self) -> None:
        settings = self.scene.fresh(self.scene.regions[0]).workplace.settings
        home = str(settings.home)
        paths = {
            name: Path(str(url).removeprefix("sqlite:///").replace("{home}", home))
            for name, url in settings.databases.items()
        }
        self.looks = Looks(home=settings.home, databases=paths)

    def model(self, region: str) -> Model:
        """Return the model of what a region's checkpoint table says now."""
        return Model(self.looks.checkpoint(region), partial(self._values, region), self.scene.setup.horizon)

    def begun(self) -> list[str]:
        """Return the regions that were claimed at least once."""
        return [region for region in self.scene.regions if self.model(region).declared]

    def _values(self, region: str, row: Row) -> Sequence[str]:
        if row.retracts is not None:
            return ()
        is_reader = self.scene.setup.chain and region != self.scene.regions[0]
        place = reading_of(region, row.sequence_id) if is_reader else (row.uri, key_of(row.identity))
        values, forgotten = self.scene.contents[place], self.scene.forgotten
        return [value for value in values if (region, row.sequence_id, value) not in forgotten]

    def _require(self, holds: object, check: str, region: str, told: object) -> None:
        self.asked[check] += 1
        if not holds:
            raise Wrong(f"{check}: {region}: {told}")

    # --- at any moment ------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Look as a reader who comes at any moment."""
        for region in self.scene.regions:
            hidden = region in self.scene.damaged or self.scene.returned == "tables" or self.scene.forgetting
            if not hidden:
                self._sample(region)
        self.forget_damaged()
        self._old_versions()

    def _sample(self, region: str) -> None:
        model = self.model(region)
        self._require(not model.fault, "ids rise", region, model.fault)
        for name in filter(model.is_shown, model.declared):
            found = self.looks.table(model.tables[name])
            if found is None:
                continue
            legal = model.contents_since(name)
            if model.tables[name].get("external") == "file":
                self._files_of(model, region, name, found, legal)
            else:
                self._require(found in legal, "reader", region, f"{name} has {found}, and none of {legal[:4]}")
        self._hold(model)

    def _files_of(self, model: Model, region: str, name: str, found: Pairs, legal: Sequence[Pairs]) -> None:
        """Check a folder, in which files appear and leave one after another: each is whole, those of all states are
        there, those of no state are not."""
        always = set.intersection(*({number for number, _ in each} for each in legal))
        ever = {number: each for each in legal for number, _ in each}
        for number in {number for number, _ in found}:
            self._require(number in ever, "reader", region, f"{name} has {number}, which is in no state of {legal[:4]}")
            mine = [pair for pair in found if pair[0] == number]
            whole = [pair for pair in ever[number] if pair[0] == number]
            self._require(mine == whole, "reader", region, f"{name} has {mine} of {whole}")
        lost = always.difference(number for number, _ in found)
        self._require(not lost, "reader", region, f"{name} lacks {sorted(lost)}")

    def _hold(self, model: Model) -> None:
        """Open the newest version of each table, as a long query does."""
        self._latest = max(self._latest, world.now())
        for name in (name for name in model.declared if not model.tables[name].get("external")):
            folder = self.looks.home / name
            self._held.update((folder / path, self._latest) for path in self.looks.live(name) or ())

    def forget_damaged(self) -> None:
        """Close all versions if others were at the tables: what they take away is not the product's."""
        if self.scene.damaged or self.scene.returned or self.scene.erasures != self._erasures:
            self._held.clear()  # nor is a version kept that has an erased row
            self._erasures = self.scene.erasures

    def _old_versions(self) -> None:
        """A reader may hold a version of a table that it opened within a day: the files of it are there, unless the
        table was dropped."""
        self._latest = max(self._latest, world.now())
        self._held = {path: since for path, since in self._held.items() if self._latest - since < HELD}
        gone = [path for path in self._held if not path.exists()]
        if gone:
            dropped = [self.looks.home / name for region in self.scene.regions for name in self.model(region).given_up]
            for path in [path for path in gone if any(path.is_relative_to(folder) for folder in dropped)]:
                gone.remove(path)
                del self._held[path]
        self._require(not gone, "old versions", "all", f"files left within a day: {[str(path) for path in gone[:5]]}")

    # --- at rest ------------------------------------------------------------------------------------------------------

    def at_rest(self, *, views: int = 1) -> None:
        """Compare everything with the model, when no process works and all input is processed.

        Args:
            views: at how many ids the tables are looked at as they were.
        """
        for region in self.scene.regions:
            model = self.model(region)
            self._require(not model.fault, "ids rise", region, model.fault)
            last = model.moments[-1].number
            self._require(last <= model.published, "published", region, f"{last} is committed, not {model.published}")
            self._tables(region, model)
            self._inputs(region, model)
            if model.declared and views:  # it ran once
                self._as_of(region, model, views)
            self._hold(model)
        if self.scene.setup.chain:
            self._chain()
        self._old_versions()

    def _chain(self) -> None:
        """Each region of a chain has the rows of the first one, each as often, whatever was taken back in between."""
        models = [self.model(region) for region in self.scene.regions]
        found = (
            model.content(f"lake/kept{n}", model.force) if model.declared else [] for n, model in enumerate(models)
        )
        rows = [Counter(value for _, value in pairs) for pairs in found]
        for number, region in enumerate(self.scene.regions):
            skips = any(row.kind == "skip" for model in models[: number + 1] for row in model.force.values())
            self._require(skips or rows[number] == rows[0], "chain", region, f"{rows[number]}, expected {rows[0]}")

    def _tables(self, region: str, model: Model) -> None:
        for name, table in model.tables.items():
            found, wanted = self.looks.table(table), model.content(name, model.force)
            if name not in model.declared:
                self._former(region, model, name, found)
            elif not model.is_shown(name):
                above = [pair for pair in wanted if pair[0] > model.floor]
                self._require([pair for pair in found or () if pair[0] > model.floor] == above, "history", region,
                              f"{name} has {found}, expected {wanted}")  # fmt: skip
                self._require(not Counter(found) - Counter(wanted), "history", region,
                              f"{name} has {found}, expected at most {wanted}")  # fmt: skip
            else:
                self._require(found == wanted, "table", region, f"{name} has {found}, expected {wanted}")

    def _former(self, region: str, model: Model, name: str, found: Pairs | None) -> None:
        """A sink that left the code keeps its rows, but those of withdrawn ids."""
        if found is None:
            return
        known = {pair for moment in model.moments for pair in model.content(name, moment.ids)}
        stray = [pair for pair in found if pair not in known or pair[0] not in model.force]
        self._require(not stray, "former", region, f"{name} has {stray}, in force is {sorted(model.force)}")

    def _inputs(self, region: str, model: Model) -> None:
        """Each file is in force once, none is lost, and the registry says the same."""
        files = {number: row for number, row in model.force.items() if row.retracts is None}
        force = {number: (row.uri, *_marked(row.identity)) for number, row in files.items()}
        twice = [each for each, count in Counter(force.values()).items() if count > 1]
        self._require(not twice, "once", region, f"in force twice: {twice}")
        told = self.looks.triggers(region)
        waiting = [each["uri"] for each in told if each["status"] == "pending"]
        self._require(not waiting, "drained", region, f"pending at rest: {waiting}")
        settled = {each["sequence_id"]: (each["uri"], *_marked(each["identity"])) for each in told
                   if each["status"] in ("committed", "skipped")}  # fmt: skip
        self._require(settled == force, "registry", region, _difference(settled, force))
        lost = self._lost(region, model)
        self._require(not lost, "lost", region, f"neither in force nor refused: {lost}")

    def _lost(self, region: str, model: Model) -> list[str]:
        """Return the files that lie in a region's folder, and that no row accounts for.

        A file that changed counts at its newest version where the source processes changes, else at any.
        """
        scene, inbox = self.scene, str(self.scene.inbox(region))
        rows = [row for row in (*model.force.values(), *model.refused) if row.retracts is None]
        known = {(row.uri, key_of(row.identity)) for row in rows}
        return [
            uri
            for uri, keys in scene.versions.items()
            if uri.startswith(f"{inbox}/") and uri not in scene.deleted
            if not any((uri, key) in known for key in (keys[-1:] if scene.setup.on_change == "reprocess" else keys))
        ]

    def _as_of(self, region: str, model: Model, views: int) -> None:
        """Look at the tables at the oldest id within the horizon, the newest one, and one between."""
        reader = RegionReader(self.scene.fresh(region).workplace.settings, region)
        states = [number for number in model.force if number >= model.floor]
        for at in dict.fromkeys([*states[:1], *states[-1:], *states[len(states) // 2 :][:1]][:views]):
            for name in model.declared:
                if not model.is_shown(name):
                    continue
                wanted = model.content(name, model.ids_at(at))
                try:
                    found = _pairs(reader.as_of(name, at), value_column(name))
                except RewindRefused as error:
                    raise Wrong(f"as of: {region}: {name} at {at} is refused: {error}; the horizon reaches back to"
                                f" {model.floor}") from error  # fmt: skip
                self._require(found == wanted, "as of", region, f"{name} at {at} is {found}, expected {wanted}")

    # --- garbage ------------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Collect garbage; readers go on with the versions that they opened."""
        for region in self.begun():
            newest = max(row.recorded_at for row in self.model(region).rows)
            world.sleep(max(0.0, newest - world.now()))  # gc refuses while the clock is behind that of an earlier owner
            told = collect_region(self.scene.fresh(region).workplace, region)
            self._require(told["refused"] is None, "gc", region, told["refused"])
        self._old_versions()

    def after_days(self) -> None:
        """Collect garbage when all that was withdrawn is two days old: what is needed is there, and nothing else."""
        self.collect()
        for region in self.scene.regions:
            model = self.model(region)
            needed = model.files_needed()
            for name in (*(name for name, table in model.tables.items() if not table.get("external")),
                         f"checkpoints/{region}"):  # fmt: skip
                live = self.looks.live(name)
                if live is None:
                    continue
                there, named = self.looks.data_files(name), needed.get(name, set())
                missing = (live if self.looks.home / name in self.scene.dropped else live | named) - there
                self._require(not missing, "gc", region, f"{name} lacks {sorted(missing)}")
                stays = {
                    path
                    for path in there - live - named - model.files_of_parts()
                    if not _is_of_epoch(path, model.epoch)
                }
                self._require(not stays, "garbage", region, f"{name} still has {sorted(stays)}")

    # --- a way back ---------------------------------------------------------------------------------------------------

    def take_back(self, seed: int) -> None:
        """Go back to a state within the horizon, which must be accepted."""
        draw = Random(f"{seed}/back")
        region = draw.choice(self.begun() or [""])
        if not region:
            return
        model, place = self.model(region), self.scene.fresh(region).workplace
        states = [number for number, row in model.force.items() if row.kind == "state" and number >= model.floor]
        to = draw.choice([0, *states])
        try:
            orders.reset(place, region, RewindTarget(to=to), accept_loss=True, cascade=True).act()
        except RewindRefused as error:
            raise Wrong(
                f"way back: {region}: {to} is refused: {error}; the horizon reaches to {model.floor}"
            ) from error
        after = self.model(region)
        self._tables(region, after)
        self._require(after.committed == to, "way back", region, f"{after.committed} is the last id, not {to}")


def _is_of_epoch(path: str, newest: int) -> bool:
    """Say whether a file was staged under the newest epoch, or for a claim of a later one, which never landed."""
    staged = re.match(r"_staged/(\d+)-", path)
    return staged is not None and int(staged.group(1)) >= newest


def _marked(identity: Mapping[str, Any]) -> tuple[str, int, int]:
    return key_of(identity), int(identity.get("again", 0)), int(identity.get("back", 0))


def _difference(found: Mapping[int, Any], wanted: Mapping[int, Any]) -> str:
    """Return what two mappings have of each id on which they differ."""
    both = {number: (found.get(number), wanted.get(number)) for number in sorted({*found, *wanted})}
    return f"(the registry's, ours) by id: { {number: pair for number, pair in both.items() if pair[0] != pair[1]} }"


def _pairs(table: Any, column: str) -> Pairs:
    return sorted((row["_sequence_id"], row[column]) for row in table.to_pylist())
