"""Homes of earlier versions, opened in this one: looked at, run, rewound, repaired (G16, U1).

The `pack_home.py` of each version made its archive in `homes/`. Checkpoint rows name inputs by absolute paths, so a
home is unpacked to the folder in which it was made, by one test at a time on a machine.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import re
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from golden.pack_home import HOMES, LONG_AGO, SINKS, order_lines, project_of
from harness import run_once

from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.orchestration import doctor
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import load_settings
from drainmark.resources.spark.session import SparkEngine

ARCHIVES = sorted(HOMES.glob("*.tar.xz"), key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)])
OLDEST, NEWEST = ARCHIVES[0], ARCHIVES[-1]
ORDERS = "packed/orders"
READ = range(1, 8)
SKIPPED = 5


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A home of an earlier version, opened in this one.

    Attributes:
        expected: the answers of its own version about it.
    """

    root: Path
    place: Workplace
    opened: Opened
    expected: dict[str, Any]

    def run(self) -> None:
        run_once(self.place, self.opened, region=ORDERS)

    def add(self, number: int) -> None:
        path = self.root / "orders" / f"{number:03d}.csv"
        path.write_text(order_lines(number))
        os.utime(path, (LONG_AGO + number,) * 2)


@contextlib.contextmanager
def unpacked(archive: Path, engine: SparkEngine, place: Path) -> Iterator[Unpacked]:
    """Unpack a home to the folder in which it was made; a lock file beside it keeps other test runs away."""
    root = project_of(archive.name.removesuffix(".tar.xz"))
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(root, ignore_errors=True)
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        shutil.move(place / "project", root)
        workplace = Workplace(load_settings(home=root / ".drainmark"))
        workplace.use_engine(engine)
        inputs = [f"{name}={root / name}" for name in ("orders", "payments")]
        try:
            opened = open_application(str(root / "packed.py"), inputs=inputs)
            yield Unpacked(root, workplace, opened, json.loads((place / "expected.json").read_text()))
        finally:
            workplace.registry.close()
            shutil.rmtree(root)


def each_home(*by_default: Path) -> pytest.MarkDecorator:
    """Return a mark that runs a test on every home; all except those of `by_default` are slow."""
    cases = [
        pytest.param(path, id=path.name.removesuffix(".tar.xz"), marks=() if path in by_default else pytest.mark.slow)
        for path in ARCHIVES
    ]
    return pytest.mark.parametrize("home", cases, indirect=True)


@pytest.fixture
def home(
    request: pytest.FixtureRequest, engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Unpacked]:
    monkeypatch.chdir(tmp_path)
    with unpacked(request.param, engine, tmp_path) as opened:
        yield opened


def answers(home: Unpacked, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the answers that `pack_home.py` noted, from this version."""
    said: dict[str, Any] = {"status": ask(home, capsys, "status"), "history": {}, "shown": {}}
    for region, tables in SINKS.items():
        said["history"][region] = ask(home, capsys, "history", region, "--all")
        ids = [0, *(entry["sequence_id"] for entry in ask(home, capsys, "history", region))]
        for table in tables:
            said["shown"][table] = {str(n): ask(home, capsys, "show", table, "--at", str(n)) for n in ids}
    return said


def ask(home: Unpacked, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert invoke([*arguments, "--home", str(home.place.home), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


WORDS = {"PROCESSING": "STARTED"}
"""Word of 0.3 and before -> the word since then, for a region at rest: the old one was not its controller's state."""


def at_least(now: Any, then: Any) -> Any:
    """Return a new answer with the keys of an old answer: later versions tell more, and fill a null."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {key: at_least(now[key], then[key]) for key in then if key in now}
    if then is None and isinstance(now, float):
        return None
    if isinstance(then, str) and WORDS.get(then) == now:
        return then
    if isinstance(then, list) and isinstance(now, list) and len(now) == len(then):
        return [at_least(new, old) for new, old in zip(now, then, strict=True)]
    return now


def visible(home: Unpacked) -> dict[str, list[Any]]:
    """Return the rows of the sinks of the orders, ids aside."""
    store = home.place.store(ORDERS)
    found = {}
    for sink in SINKS[ORDERS]:
        rows = store.table(f"lake/{sink}").read().to_pylist()
        found[sink] = sorted(json.dumps({k: str(v) for k, v in row.items() if k != "_sequence_id"}) for row in rows)
    return found


def golden(numbers: list[int]) -> dict[str, list[Any]]:
    """Return the rows of the sinks after these files, in plain Python."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    hours: dict[tuple[str, int], int] = defaultdict(int)
    orders = []
    for number in numbers:
        for name, amount, moment in csv.reader(order_lines(number).splitlines()):
            if int(amount) > 0:
                hour = int(moment[11:13])
                totals[name] = [totals[name][0] + 1, totals[name][1] + int(amount)]
                hours[name, hour - hour % 6] += 1
                at = f"{moment[:10]} {moment[11:19]}+00:00"
                orders.append({"customer": name, "amount": amount, "ordered_at": at})
    rows = {
        "packed_customers": [{"customer": n, "orders": str(c), "amount": str(a)} for n, (c, a) in totals.items()],
        "packed_orders": orders,
        "packed_hours": [
            {"customer": n, "window_start": f"2026-01-01 {h:02d}:00:00+00:00", "orders": str(c)}
            for (n, h), c in hours.items()
        ],
    }
    return {sink: sorted(json.dumps(row) for row in found) for sink, found in rows.items()}


def same(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    """Compare rows; the order of their columns does not matter."""
    for sink, rows in expected.items():
        assert sorted(columns(row) for row in found[sink]) == sorted(columns(row) for row in rows), sink


def columns(row: str) -> list[tuple[str, str]]:
    values = json.loads(row)
    return sorted((name, value) for name, value in values.items() if name not in ("window_end", "source_file"))


def test_there_is_a_home_of_each_release() -> None:
    told = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert {path.name.removesuffix(".tar.xz") for path in ARCHIVES} >= set(re.findall(r"^## (\d[\d.]+)$", told, re.M))
    assert all(archive.stat().st_size < 200_000 for archive in ARCHIVES)


@each_home(OLDEST)
@pytest.mark.seed("G16", "U1")
def test_it_says_of_itself_what_it_said(home: Unpacked, capsys: pytest.CaptureFixture[str]) -> None:
    said = answers(home, capsys)
    for part, then in home.expected.items():
        assert at_least(said[part], then) == then, part


@each_home(OLDEST, NEWEST)
@pytest.mark.seed("G16", "U1")
def test_a_run_publishes_what_was_not_and_goes_on(home: Unpacked) -> None:
    assert home.place.history(ORDERS).unpublished
    home.add(8)
    home.run()
    history = home.place.history(ORDERS)
    assert not history.unpublished
    same(visible(home), golden([*(number for number in READ if number != SKIPPED), 8]))
    uris = [row.trigger_uri for _, row in sorted(history.states.items())]
    assert len(uris) == len(set(uris)) == 8


@each_home()
@pytest.mark.seed("G16", "H4")
def test_it_is_rewound_and_processed_again(home: Unpacked) -> None:
    plan = plan_reset(home.place, ORDERS, RewindTarget(to=2))
    interventions.reset(home.place, plan, accept_loss=True)  # its inputs were lost with the old disk
    same(visible(home), golden([1, 2]))
    for number in range(3, 8):
        home.add(number)
    home.run()
    same(visible(home), golden([*range(1, 8)]))


@each_home(OLDEST)
@pytest.mark.seed("G16", "H27")
def test_its_registry_is_rebuilt(home: Unpacked, capsys: pytest.CaptureFixture[str]) -> None:
    home.place.registry.close()
    for file in home.place.home.glob("registry.db*"):
        file.unlink()
    place = Workplace(home.place.settings)
    repaired = doctor.repair(place, applications=[home.opened.reference])
    assert {entry["region"] for entry in repaired} == set(SINKS)
    (skipped,) = place.registry.triggers.by_uri(ORDERS, str(home.root / "orders" / f"{SKIPPED:03d}.csv"))
    assert skipped.status is TriggerStatus.SKIPPED
    place.registry.close()
    for region, then in home.expected["history"].items():
        assert at_least(ask(home, capsys, "history", region, "--all"), then) == then
