"""The law of chains: any history of commits, rewinds and replays of chained regions ends in the tables of one run over
the files that count.

The regions are real ones in their loops, scans and verbs; only their rows are made in plain Python (`hand_runs`).
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hand_runs import engine, without_spark
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import drainmark as dm
from drainmark.jobs import failpoints
from drainmark.jobs.errors import Halted, RewindRefused
from drainmark.jobs.failpoints import FailPoint, InjectedFailure
from drainmark.orchestration.inspection.status import status_of
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.testing.running import run_app as kit
from drainmark.orchestration.verbs import interventions, orders
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset

__all__ = ["engine", "without_spark"]

pytestmark = pytest.mark.usefixtures("without_spark", "engine")

App = Callable[[], None]


def top() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k string, n bigint"))
    def scanned(found: Any) -> Any:
        return found

    dm.sink(scanned, dm.DeltaAppend("top_rows"))


def below(name: str, *tables: str) -> App:
    """Return a region that appends the rows of tables, and sums them by key."""

    def declared() -> None:
        trigger: Mapping[str, Any] = {"trigger": "operator-driven"} if len(tables) == 1 else {
            "trigger": "periodic", "period": 0.0}  # fmt: skip
        starts = []
        for table in tables:

            def start(found: Any) -> Any:
                return found

            start.__name__ = f"{name}_of_{table}"
            starts.append(dm.consistent(**trigger)(dm.source(dm.TableSource(table))(start)))
        if len(starts) == 1:
            (rows,) = starts
        else:

            @dm.functor
            def rows(bottom_of_left_rows: Any, bottom_of_right_rows: Any) -> Any:
                return bottom_of_left_rows + bottom_of_right_rows

        totals = dm.aggregate(rows, keys=["k"], values={"n": dm.sum("n")}, name=f"{name}_totals")
        dm.sink(rows, dm.DeltaAppend(f"{name}_rows"))
        dm.sink(totals, dm.DeltaUpsert(f"{name}_sums", keys=["k"]))

    declared.__name__ = name
    return declared


CHAIN = (("second", ("top_rows",)), ("third", ("second_rows",)))
DIAMOND = (("left", ("top_rows",)), ("right", ("top_rows",)), ("bottom", ("left_rows", "right_rows")))
TIMES = {"second": 1, "third": 1, "left": 1, "right": 1, "bottom": 2}
"""How often the rows of a file are in the table of a region."""


class Scene:
    """A home with a chain of regions."""

    def __init__(self, folder: Path, shape: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        self.home = folder / "home"
        self.files = 0
        self.regions: dict[str, Result] = {"top": kit(top, home=self.home, max_group=2)}
        self.add(1)
        self.regions["top"].run()
        for name, tables in shape:
            self.regions[name] = kit(below(name, *tables), home=self.home, max_group=2).run()
        self.names = tuple(self.regions)

    def add(self, count: int) -> None:
        numbers = range(self.files, self.files + count)
        self.regions["top"].add({f"{n:03d}.csv": f"{'ab'[n % 2]},{10**n}\n" for n in numbers})
        self.files += count

    def run(self, name: str) -> None:
        """Run a region, and follow the remedy if it finds that it has to go back."""
        place, region = self.regions[name].workplace, self.regions[name].region.name
        try:
            self.regions[name].run()
        except Halted:
            (command,) = status_of(place, region)["remedies"]
            assert command.startswith(f"drainmark reset {region} --to ")
            assert "--cascade" in command
            self.reset(name, int(command.split()[4]), cascade=True)

    def reset(self, name: str, to: int, *, cascade: bool) -> None:
        place, region = self.regions[name].workplace, self.regions[name].region.name
        order = orders.reset(place, region, RewindTarget(to=to), cascade=cascade)
        if order.facts["chain"] and not cascade:
            with pytest.raises(RewindRefused):
                order.act()
        else:
            order.act()

    def ids(self, name: str) -> list[int]:
        return [0, *self.regions[name].workplace.history(self.regions[name].region.name).states.ids]

    def settle(self) -> None:
        for _ in range(2 * len(self.names)):  # each region may have to go back once for each one above it
            for name in self.names:
                self.run(name)

    def check(self) -> None:
        once = Counter({("ab"[n % 2], 10**n): 1 for n in range(self.files)})
        for name in self.names:
            rows = Counter((row["k"], row["n"]) for row in self.regions[name].sink(f"{name}_rows"))
            wanted = Counter({row: TIMES.get(name, 1) for row in once})
            assert rows == wanted, name
            if name != "top":
                sums = {row["k"]: row["n"] for row in self.regions[name].sink(f"{name}_sums")}
                each = itertools.groupby(sorted(wanted.elements()), key=lambda row: row[0])
                assert sums == {key: sum(n for _, n in found) for key, found in each}, name

    def close(self) -> None:
        for result in self.regions.values():
            result.close()


@contextmanager
def scene(shape: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory() as folder:
        found = Scene(Path(folder), shape)
        try:
            yield found
        finally:
            failpoints.arm("")
            found.close()


def play(one: Scene, draw: Callable[[Any], Any]) -> None:
    """Play one step of a history."""
    step = draw(st.sampled_from(["add", "run", "run", "cascade", "cascade", "refuse", "alone", "crash"]))
    name = one.names[draw(st.integers(0, len(one.names) - 1))]
    if step == "add":
        one.add(draw(st.integers(1, 2)))
    elif step == "run":
        one.run(name)
    else:
        ids = one.ids(name)
        to = ids[draw(st.integers(0, len(ids) - 1))]
        if step == "alone":  # as for readers in another home, which nobody asks
            place, region = one.regions[name].workplace, one.regions[name].region.name
            interventions.reset(place, plan_reset(place, region, RewindTarget(to=to)))
        elif step == "crash":
            point = draw(st.sampled_from([FailPoint.REWIND_BEFORE, FailPoint.REWIND_TABLE_BEFORE]))
            failpoints.arm(f"{point}:raise:{draw(st.integers(1, 3))}")
            try:
                one.reset(name, to, cascade=True)
            except InjectedFailure:
                failpoints.arm("")
                if draw(st.booleans()):
                    one.reset(name, to, cascade=True)
            failpoints.arm("")
        else:
            one.reset(name, to, cascade=step == "cascade")


def test_a_partitioned_table_is_read_by_ids_when_its_log_and_files_are_gone(tmp_path: Path) -> None:
    def parted() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k string, n bigint"))
        def scanned(found: Any) -> Any:
            return found

        dm.sink(scanned, dm.DeltaAppend("parted", partition_by=["k"]))

    home = tmp_path / "home"
    files = {f"{n}.csv": f"a b/{n % 2},{n}\nä=c,{n}\n" for n in range(4)}
    one = kit(parted, files, home=home, max_group=1)
    two = kit(below("late", "parted"), home=home, max_group=2).run()
    table = DeltaTable(str(home / "lake" / "parted"))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    for version in range(table.version()):
        (home / f"lake/parted/_delta_log/{version:020d}.json").unlink(missing_ok=True)
    before = sorted((row["_sequence_id"], row["k"], row["n"]) for row in two.arrow("late_rows").to_pylist())
    two.rewind(1).run()
    after = sorted((row["_sequence_id"], row["k"], row["n"]) for row in two.arrow("late_rows").to_pylist())
    assert [row[1:] for row in after] == [row[1:] for row in before]
    assert len({row[0] for row in after}) == 4, "each state has the rows of its own slice"
    for each in (one, two):
        each.close()


@pytest.mark.parametrize("shape", [pytest.param(CHAIN, marks=pytest.mark.slow), DIAMOND], ids=["chain", "diamond"])
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_history_ends_in_the_tables_of_one_run(
    shape: Sequence[tuple[str, tuple[str, ...]]], data: st.DataObject
) -> None:
    with scene(shape) as one:
        for _ in range(data.draw(st.integers(3, 7))):
            play(one, data.draw)
        one.settle()
        one.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", [CHAIN, DIAMOND], ids=["chain", "diamond"])
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_histories_end_in_the_tables_of_one_run(
    shape: Sequence[tuple[str, tuple[str, ...]]], data: st.DataObject
) -> None:
    with scene(shape) as one:
        for _ in range(data.draw(st.integers(5, 16))):
            play(one, data.draw)
        one.settle()
        one.check()
