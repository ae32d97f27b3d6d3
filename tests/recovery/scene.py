"""A home, its input and one region: the start of every recovery test, and its final checks."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import oracles
import postgres
from gates import Gate
from harness import LONG_AGO

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.orchestration.testing.crash.children import Ended, Nursery, Running
from drainmark.orchestration.testing.crash.invariants import misplaced_files, reused_ids, unfinished
from drainmark.orchestration.testing.processing import settings_of
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.settings import Settings
from drainmark.resources.storage.folder import LocalFolder

Oracle = Callable[[Sequence[Path]], Mapping[str, Sequence[Mapping[str, Any]]]]
Build = Callable[[Nursery, str, Path], "Scene"]


@dataclass(slots=True, kw_only=True)
class Scene:
    """One region of one application with its own files; only child processes run it.

    Attributes:
        files: the files in the order of their triggers; for a periodic region, the names of the triggers.
        behind: for each name of a trigger in `files`: the files of that trigger.
        oracle: a function that gives the expected rows of every sink after the given files.
        sinks: all sinks; append tables and visible upsert tables both carry `_sequence_id`. Sinks outside Delta
            have their whole names, with a slash.
        unclean: the number of owners that were killed before the test begins.
    """

    nursery: Nursery
    master: str
    folder: Path
    app: str
    region: str
    inputs: tuple[str, ...]
    oracle: Oracle
    sinks: tuple[str, ...]
    files: list[Path] = field(default_factory=list)
    behind: dict[Path, tuple[Path, ...]] = field(default_factory=dict)
    unclean: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    home: Path = Path()
    place: Workplace = field(init=False)

    def __post_init__(self) -> None:
        if self.home == Path():
            self.home = self.folder / "home"
        server = postgres.chosen_server()
        if server is not None and "registry_url" not in self.settings:
            self.settings = {**self.settings, "registry_url": server.new_database()}
        self.reopen()

    def reopen(self) -> None:
        """Open the home anew, as another process would."""
        self.place = Workplace(settings_of(self.home, self.folder, **self.settings))

    def lose_registry(self) -> None:
        """Delete the registry and its journals."""
        self.place.registry.close()
        for path in self.home.glob("registry.db*"):
            path.unlink()
        if "registry_url" in self.settings:
            self.settings = {**self.settings, "registry_url": postgres.new_database(self.settings["registry_url"])}
        self.reopen()

    def copied_to(self, folder: Path) -> Scene:
        """Return the same scene, on the same input, with a copy of its home below a folder."""
        self.place.registry.close()
        shutil.copytree(self.home, folder / "home", symlinks=True)
        settings = dict(self.settings)
        if "registry_url" in settings:
            settings["registry_url"] = postgres.copy_database(settings["registry_url"])
        if settings.get("databases", {}).get("shop", "").startswith("postgresql"):
            settings["databases"] = {"shop": postgres.copy_database(settings["databases"]["shop"])}
        return replace(self, home=folder / "home", files=list(self.files), settings=settings)

    @property
    def gate(self) -> Gate:
        """Return the gate of the slow operator in a graph of stages; all copies share it."""
        return Gate(self.folder / "gate")

    # --- running -----------------------------------------------------------------------------------------------------

    def start(self, *steps: Sequence[Any], failpoints: str = "", region: str | None = None, **more: Any) -> Running:
        """Start a child with the given steps; the default is `scan` and `run`."""
        request = {
            "home": str(self.home),
            "root": str(self.folder),
            "master": self.master,
            "app": self.app,
            "inputs": list(self.inputs),
            "region": region or self.region,
            "params": self.params,
            "settings": {**self.settings, **more.pop("settings", {})},
            "steps": [list(step) for step in steps] or [["scan"], ["run"]],
            "failpoints": failpoints,
            **more,
        }
        return self.nursery.start(request, self.home.parent)

    def run(self, *steps: Sequence[Any], failpoints: str = "", **more: Any) -> Ended:
        """Start a child and wait for its end."""
        return self.start(*steps, failpoints=failpoints, **more).wait()

    def run_well(self, *steps: Sequence[Any], **more: Any) -> Ended:
        """Run a child that must end with 0."""
        ended = self.run(*steps, **more)
        assert ended.code == 0, ended
        return ended

    def run_killed(self, *steps: Sequence[Any], failpoints: str, **more: Any) -> Ended:
        """Run a child that its fail point must kill: a fail point that is never passed is a hole in the tests."""
        ended = self.run(*steps, failpoints=failpoints, **more)
        assert ended.code == -9, f"{failpoints} was not reached: {ended}"
        return ended

    # --- looking -----------------------------------------------------------------------------------------------------

    def checkpoint_rows(self, region: str | None = None) -> tuple[CheckpointRow, ...]:
        """Return the rows of the checkpoint table in commit order; none if there is no table."""
        checkpoint = self.place.store(region or self.region).checkpoint
        return checkpoint.rows() if checkpoint.exists() else ()

    @property
    def history(self) -> RegionHistory:
        return RegionHistory.from_rows(self.checkpoint_rows())

    def id_after(self, files: int) -> int:
        """Return the id of the state after so many files: rows of other kinds take ids, too."""
        return sorted(self.history.states)[files - 1] if files else 0

    @property
    def next_id(self) -> int:
        """Return the next free id of the registry."""
        return int(self.place.registry.region_info(self.region).next_id)

    def table(self, name: str, region: str | None = None) -> Any:
        return self.place.store(region or self.region).table(name)

    def outer(self, sink: str) -> Any:
        """Return a sink outside Delta by its whole name; None before its region was claimed."""
        described = [table for table in self.history.tables if table.name == sink]
        return self.place.store(self.region).open(described[0]) if described else None

    def rows(self, sink: str) -> list[dict[str, Any]]:
        table = self.outer(sink) if "/" in sink else self.table(f"lake/{sink}")
        found: list[dict[str, Any]] = table.read().to_pylist() if table is not None and table.exists() else []
        return found

    def visible_id(self) -> int:
        """Return the largest id that a reader sees in any sink; 0 for none."""
        described = self.history.tables if any("/" in sink for sink in self.sinks) else ()
        outer = [self.place.store(self.region).open(table) for table in described if table.name in self.sinks]
        return max([self._visible_in_lake(), *(table.newest_id() for table in outer)])

    def _visible_in_lake(self) -> int:
        folders = [LocalFolder(self.home / "lake" / sink) for sink in self.sinks if "/" not in sink]
        tables = [(delta_tables.open_table(folder), folder) for folder in folders if delta_tables.is_table(folder)]
        files = [file for table, folder in tables for file in file_lists.live_files(table, folder)]
        return max((file.last_id or 0 for file in files), default=0)

    def _log_lengths(self) -> list[int]:
        """Return the number of commits of each Delta sink, and the change times of the others: cheap to call often."""
        logs = [self.home / "lake" / sink / "_delta_log" for sink in self.sinks if "/" not in sink]
        counts = [len(os.listdir(log)) if log.is_dir() else 0 for log in logs]
        outside = [self.home / "shop.db", self.home / "out"]
        return [*counts, *(path.stat().st_mtime_ns for path in outside if path.exists())]

    # --- judging -----------------------------------------------------------------------------------------------------

    def assert_sinks(self, files: Sequence[Path] | None = None) -> None:
        """Require in every sink the rows of a failure-free run after these files, ids aside; by default all files."""
        expected = self.oracle(self.files if files is None else files)
        for sink in self.sinks:
            found = oracles.differences(expected[sink], self.rows(sink))
            assert not found, "\n".join([sink, *found])

    def assert_reached(self) -> None:
        """Require in every sink the rows of a failure-free run after the files that its stage has finished."""
        history = self.history
        described = {table.name.removeprefix("lake/"): table for table in history.tables}
        for sink in self.sinks:
            reached = history.flow.reached(described[sink].operator) if sink in described else None
            files = len(history.states) - (0 if reached is None else len(history.states.ids.above(reached)))
            found = oracles.differences(self.oracle(self.files[:files])[sink], self.rows(sink))
            assert not found, "\n".join([sink, *found])

    def assert_ids_visible(self) -> None:
        """Require that a reader sees only rows of effective ids, none above the committed id."""
        history = self.history
        effective = set(history.states)
        for sink in self.sinks:
            assert {row["_sequence_id"] for row in self.rows(sink)} <= effective, sink
        assert self.visible_id() <= history.committed_id

    def assert_each_file_once(self, files: Sequence[Path] | None = None) -> None:
        """Require one effective committed id for each file, in the order of the files; no id may be used twice."""
        wanted = [str(path) for path in (self.files if files is None else files)]
        assert_none(misplaced_files(self.history, wanted))
        self.assert_ids_never_reused()

    def assert_ids_never_reused(self) -> None:
        """Require that no two states, skips or rewinds share an id; ids rise in commit order, epochs never fall."""
        assert_none(reused_ids(self.checkpoint_rows()))

    def assert_nothing_left(self) -> None:
        """Require that nothing is pending, halted, unpublished or in flight, and that the last owner ended cleanly."""
        assert_none(unfinished(self.place, self.region))

    def assert_golden(self) -> None:
        """Require all facts to be as after a run that never failed."""
        self.assert_sinks()
        self.assert_ids_visible()
        self.assert_each_file_once()
        self.assert_nothing_left()

    def attempts_at_claims(self) -> list[int]:
        """Return the number of consecutive reset attempts after each claim, in order."""
        history, counts = RegionHistory(), []
        for row in self.checkpoint_rows():
            history = history.with_rows([row])
            if row.kind is RowKind.CLAIM:
                counts.append(history.attempts)
        return counts

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read sinks and the committed id all the time inside the block; a row above that id fails the test (V110)."""
        stop, wrong, looks = threading.Event(), [], [0]

        def look() -> None:
            place = Workplace(Settings(home=self.home, project_root=self.folder))
            seen: list[int] | None = None
            while not stop.is_set():
                found = self._log_lengths()
                if found == seen:
                    time.sleep(0.01)
                    continue
                seen = found
                before = place.history(self.region)
                visible = self.visible_id()
                after = place.history(self.region)
                committed = max(before.committed_id, after.committed_id)  # a rewind may come between the two looks
                if visible > committed and not (before.rewinding or after.rewinding):
                    wrong.append((visible, committed))
                looks[0] += 1

        reader = threading.Thread(target=look, daemon=True, name="reader")
        reader.start()
        try:
            yield
        finally:
            stop.set()
            reader.join(10)
        assert not reader.is_alive()
        assert looks[0] > 0
        assert not wrong, f"a reader saw (visible, committed) {wrong[:5]}"

    # --- input -------------------------------------------------------------------------------------------------------

    def add(self, path: Path, text: str) -> Path:
        """Write an input file in one step, with an old modification time."""
        write_file(path, text)
        self.files.append(path)
        return path


def assert_none(problems: Iterable[str]) -> None:
    """Fail with all problems, if there are any."""
    found = list(problems)
    assert not found, "\n".join(found)


def write_file(path: Path, text: str, *, at: int = LONG_AGO) -> Path:
    """Write a file under another name and rename it, with an old modification time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.parent.parent / f"{path.name}.part"
    hidden.write_text(text)
    os.utime(hidden, (at, at))
    return hidden.rename(path)


def frozen(scene: Scene, region: str, sinks: Sequence[str]) -> dict[str, Any]:
    """Return the facts that must not change in a region that is not run: rows, epoch, versions, rows of its tables."""
    rows = scene.checkpoint_rows(region)
    facts: dict[str, Any] = {"rows": rows, "info": scene.place.registry.region_info(region)}
    for sink in sinks:
        table = scene.table(f"lake/{sink}", region)
        facts[sink] = (table.delta_version(), table.txn_version(), sorted(map(repr, table.read().to_pylist())))
    for state in RegionHistory.from_rows(rows).tables:
        table = scene.table(state.name, region)
        facts[state.name] = (table.delta_version(), table.txn_version())
    return facts
