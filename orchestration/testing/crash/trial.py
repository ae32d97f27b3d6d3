"""The trial of one region: it prepares homes once, and for each failure uses a copy of one and checks the result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.jobs.failpoints import FailPoint, InjectedFailure, arm, unreached
from drainmark.orchestration.runs.region_runs import probe_first_use, region_run
from drainmark.orchestration.testing.applications import App
from drainmark.orchestration.testing.comparing import Tables
from drainmark.orchestration.testing.crash import matrix
from drainmark.orchestration.testing.crash.invariants import misplaced_files, reused_ids, unfinished, visible_too_early
from drainmark.orchestration.testing.crash.matrix import Cell, Grouping
from drainmark.orchestration.testing.processing import compact, drive, rewind, scan, settings_of
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.analysis.blueprint import Blueprint
    from drainmark.orchestration.testing.crash.killing import Killer

_OWN_SETTINGS = ("home", "project_root", "registry_url")


@dataclass(slots=True, kw_only=True)
class Trial:
    """The trial of one region.

    Attributes:
        scene: the application, on an inbox with all files; its own home has only the tables that it looks up.
        folder: for all homes of the trial.
        uris: of the files, in the order of their triggers.
        golden: all tables after a run in groups of one without failures.
        fresh: the home before the first scan.
        begun, whole: by grouping, a home with only the last group pending, and a home with no pending triggers.
    """

    app: App
    scene: Result
    region: RegionPlan
    folder: Path
    killer: Killer | None
    uris: list[str] = field(default_factory=list)
    golden: Tables | None = None
    fresh: Path | None = None
    begun: dict[Grouping, Path] = field(default_factory=dict)
    whole: dict[Grouping, Path] = field(default_factory=dict)
    _blueprint: Blueprint | None = None

    def run(self, cells: Sequence[Cell], groupings: Sequence[Grouping], *, must_reach: bool) -> Proof:
        """Try all failures.

        Raises:
            AssertionError: see `assert_exactly_once`.
        """
        started = time.monotonic()
        for grouping in dict.fromkeys((1, *groupings)):
            self._prepare(grouping)
        reached = [cell for cell in cells if self._survives(cell)]
        passed = {cell.point for cell in reached}
        missed = tuple(dict.fromkeys(cell.point for cell in cells if cell.point not in passed))
        if must_reach and missed:
            names = ", ".join(point.value for point in missed)
            raise AssertionError(f"{self.region.name} never passes {names}: nothing was shown")
        return Proof(
            region=self.region.name,
            failures=reached,
            unreached=missed,
            groupings=groupings,
            states=len(self.uris),
            seconds=round(time.monotonic() - started, 1),
        )

    # --- homes -------------------------------------------------------------------------------------------------------

    def _prepare(self, grouping: Grouping) -> None:
        """Create the homes of a grouping. Groups of one come first: all other groupings must give the same tables."""
        begun = self.folder / f"groups-of-{grouping}" / "begun"
        begun.parent.mkdir(parents=True)
        if self.scene.home.exists():
            shutil.copytree(self.scene.home, begun)
        if self.fresh is None:
            self.fresh = self.folder / "fresh"
            shutil.copytree(begun, self.fresh) if begun.exists() else self.fresh.mkdir(parents=True)
        with self._opened(begun) as workplace:
            scan(workplace, self.scene.opened, self.region)
            files = workplace.registry.pending_count(self.region.name)
            self.uris = [trigger.uri for trigger in workplace.registry.triggers.pending(self.region.name, files)]
            if files < 2:
                msg = f"{files} triggers: nothing can go wrong between two"
                raise UsageError(msg, remedy="give files, or input of other sources, for two at least")
            if self._blueprint is None:
                run = region_run(workplace, self.scene.opened, self.region)
                probe_first_use(run)
                self._blueprint = run.blueprint
            size = self._size(grouping)
            if size < files:
                self._drive(workplace, size, files - size)
        whole = begun.with_name("whole")
        if begun.exists():
            shutil.copytree(begun, whole, symlinks=True)
        with self._opened(whole) as workplace:
            self._drive(workplace, size)
            if self.golden is None:
                self.golden = Tables.of(workplace, self.region.name)
            when = f"in {matrix.size_of(grouping)}, without any failure"
            self._judge(workplace, when, f"fail_points=[], groupings=[{grouping!r}]")
        self.begun[grouping], self.whole[grouping] = begun, whole

    def _size(self, grouping: Grouping) -> int:
        return len(self.uris) if grouping == "all" else grouping

    @contextmanager
    def _opened(self, home: Path) -> Iterator[Workplace]:
        settings = self.scene.workplace.settings
        kept = settings.model_dump(exclude=set(_OWN_SETTINGS))
        workplace = Workplace(settings_of(home, settings.project_root, **kept))
        workplace.use_engine(self.scene.workplace.engine)
        try:
            yield workplace
        finally:
            workplace.registry.close()

    def _drive(self, workplace: Workplace, size: int, count: int | None = None) -> None:
        drive(
            region_run(
                workplace, self.scene.opened, self.region, max_group=size, max_triggers=count, blueprint=self._blueprint
            )
        )

    # --- one failure -------------------------------------------------------------------------------------------------

    def _survives(self, cell: Cell) -> bool:
        """Fail, recover and compare; return whether the fail point was reached: only then the trial proves anything.

        Raises:
            AssertionError: the region did not recover, or its tables differ.
        """
        is_late = matrix.is_of_rewind(cell.point) or matrix.is_of_compaction(cell.point)
        prepared = (self.whole if is_late else self.begun)[cell.grouping]
        if matrix.is_of_slices(cell.point) and self.fresh is not None:
            prepared = self.fresh
        for passing in matrix.passings(cell.point):
            home = self.folder / "failed" / "home"
            shutil.copytree(prepared, home, symlinks=True)
            reached = self._fail(cell, home, f"{cell.point.value}:{cell.action}:{passing}")
            if reached:
                self._recover(cell, home)
            shutil.rmtree(home)
            if reached:
                return True
        return False

    def _recover(self, cell: Cell, home: Path) -> None:
        again = f"fail_points=[{cell.point.value!r}], groupings=[{cell.grouping!r}], actions=[{cell.action!r}]"
        with self._opened(home) as workplace:
            self._expect(visible_too_early(workplace, self.region.name), workplace, f"right after {cell}", again)
            try:
                if matrix.is_of_slices(cell.point):
                    scan(workplace, self.scene.opened, self.region)
                self._drive(workplace, self._size(cell.grouping))
            except DrainmarkError as error:
                self._expect([f"the next run failed: {error}"], workplace, f"after {cell}", again)
            self._judge(workplace, f"after {cell}", again)

    def _steps(self, cell: Cell) -> list[list[Any]]:
        """Return the steps that pass the fail point, as `child` takes them."""
        if matrix.is_of_rewind(cell.point):
            return [["rewind", self._middle()]]
        if matrix.is_of_compaction(cell.point):
            return [["compact"]]
        before = [["scan"]] if matrix.is_of_slices(cell.point) else []
        return [*before, ["run", self._size(cell.grouping)]]

    def _middle(self) -> int:
        """Return the id of a state in the middle. The homes `whole` never had a failure, so their ids count files."""
        return len(self.uris) // 2

    def _fail(self, cell: Cell, home: Path, armed: str) -> bool:
        """Do the steps that pass the armed fail point; return whether it was reached.

        Raises:
            DrainmarkError: an error that was not injected.
        """
        steps = self._steps(cell)
        if cell.action == "kill" and self.killer is not None:
            return self.killer.strike(self.scene, self.region.name, home, steps, armed)
        verbs: dict[str, Callable[..., object]] = {
            "scan": lambda workplace: scan(workplace, self.scene.opened, self.region),
            "run": self._drive,
            "rewind": lambda workplace, to: rewind(
                workplace, self.region.name, to, self.region.parameters.rewind_horizon
            ),
            "compact": lambda workplace: compact(workplace, self.region.name),
        }
        with self._opened(home) as workplace:
            arm(armed)
            try:
                for verb, *arguments in steps:
                    verbs[verb](workplace, *arguments)
            except (InjectedFailure, DrainmarkError) as error:
                if not _is_injected(error):
                    raise
            finally:
                missed = unreached()
                arm("")
        return not missed

    # --- judgement ---------------------------------------------------------------------------------------------------

    def _judge(self, workplace: Workplace, when: str, again: str) -> None:
        region, golden = self.region.name, self.golden or Tables({})
        rows = workplace.store(region).checkpoint.rows()
        problems = [
            *reused_ids(rows),
            *misplaced_files(workplace.history(region), self.uris),
            *unfinished(workplace, region),
            *Tables.of(workplace, region).unequal_to(golden, self.uris),
        ]
        self._expect(problems, workplace, when, again)

    def _expect(self, problems: Iterable[str], workplace: Workplace, when: str, again: str) -> None:
        """Raise the problems, if any, with the home to inspect and the call that tries the failure alone."""
        found = list(problems)
        if not found:
            return
        name = repr(str(self.app)) if isinstance(self.app, str | Path) else self.scene.opened.plan.name
        raise AssertionError(
            "\n".join(
                [
                    f"{self.region.name} is not exactly once {when}:",
                    *found,
                    f"its home is kept: {workplace.home}",
                    f"to try it alone: dm.testing.assert_exactly_once({name}, files, {again})",
                ]
            )
        )


def _is_injected(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, InjectedFailure):
        error = error.__cause__ or error.__context__
    return error is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The failures that were tried on a region; it survived all of them.

    Attributes:
        failures: in the order in which they were tried; each was reached.
        unreached: fail points that no run of this application passes.
        groupings: files in each group; all gave the same tables as groups of one.
        states: number of consistent states; after each failure, every sink was compared at each of them.
        seconds: duration of the trial.
    """

    region: str
    failures: Sequence[Cell]
    unreached: Sequence[FailPoint]
    groupings: Sequence[Grouping]
    states: int
    seconds: float

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.groupings))
        return (
            f"{self.region}: exactly once after {len(self.failures)} failures, {self.states} states, "
            f"groups of {sizes}; {self.seconds:.1f} s"
        )
