"""States that change with time: a group reads only rows of its keys and due rows, with the same result as before."""

from __future__ import annotations

import datetime as dt
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness import LONG_AGO, rows, run_once
from triggers import NOON, home, opened, tables

import drainmark as dm
from drainmark import F
from drainmark.jobs.runtime.group import output_staging
from drainmark.jobs.runtime.input.executors import GroupExecutor
from drainmark.jobs.state import due_rows, keyed_state, state_rows
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.jobs.state.run_files import KEY_HASH
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.seed("V5", "H29")]

REGION = "timed/events"
USERS = 12_000
FILES = (
    [(f"u{number}", number, number % 50) for number in range(USERS)],
    [("u3", 1, 52), ("u8", 2, 51), ("u8", 4, 53), ("u9", 5, 30), (None, 6, 50)],
    [("u4", 3, 54), ("new", 2, 55)],
    [],
    [("u4", 5, 54), ("u6", 1, 53)],
    [("u3", 2, 80), ("new", 1, 62), ("u1", 7, 2)],
    [("u5", 3, 81), ("u5", 4, 84)],
    [("u5", 4, 150), ("u7", 4, 149)],
    [("u5", 1, 152), ("u7", 2, 151), (None, 3, 140)],
)


HOUR, HALF = dt.timedelta(hours=1), dt.timedelta(minutes=30)


def windows(events: Any, name: str, window: Any) -> Any:
    values = {"n": dm.sum("n"), "rows": dm.count()}
    return dm.aggregate(events, name=name, keys=["user"], values=values, window=window, emit="closed", lateness=600)


def side(events: Any, letter: str, rest: int) -> Any:
    columns = ("user", f"n as {letter}n", f"at as {letter}at")
    return dm.functor(
        lambda events: dm.select(events.where(F.col("n") % 2 == rest), *map(F.expr, columns)),
        name=f"{letter}_rows", inputs=[events],
    )  # fmt: skip


def joined(events: Any, name: str, **how: Any) -> Any:
    left, right = side(events, "l", 0), side(events, "r", 1)
    return dm.join(left, right, on=["user"], left_time="lat", right_time="rat", name=name, **how)


DECLARED: dict[str, Any] = {
    "hourly": lambda events: windows(events, "hourly", dm.tumbling("at", hours=1)),
    "visits": lambda events: windows(events, "visits", dm.session("at", gap=HALF)),
    "once": lambda events: dm.deduplicate(events, keys=["user"], within=HOUR, event_time="at", name="once"),
    "seldom": lambda events: dm.deduplicate(events, keys=["user"], within=2, name="seldom"),
    "near": lambda events: joined(events, "near", within=(-HALF, HALF), lateness=600, how="full"),
    "after": lambda events: joined(events, "after", left_window=HOUR, right_window=2),
    "later": lambda events: dm.delay(events, duration=HALF, event_time="at", name="later"),
    "behind": lambda events: dm.delay(events, ids=2, name="behind"),
    "pairs": lambda events: dm.pair(side(events, "l", 0), side(events, "r", 1), key="user", name="pairs"),
    "named": lambda events: dm.dynamic_filter(events, side(events, "l", 0), on=["user"], name="named"),
}
WAYS = {
    "hourly": {"hourly": "w00w0+0"}, "visits": {"visits": "w00w++0"},
    "once": {"once": "w00++w0"}, "seldom": {"seldom": "ww+++++"},
    "near": {"near-left": "w0+++0+", "near-right": "w00+++0"},
    "after": {"after-left": "w00++0+", "after-right": "000000"},
    "later": {"later-held": "w+0+++0"}, "behind": {"behind-held": "ww+0w++"},
    "pairs": {"pairs-of-l_rows": "000000", "pairs-of-r_rows": "000000"}, "named": {"named-let-through": "w000000"},
}  # fmt: skip
"""By operator and state, the reads of each group once the state is in files: w all of it; 0 rows of the group's keys,
none due; + with some rows that are due."""


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return written(tmp_path / "inbox", FILES)


def written(folder: Path, files: Sequence[Sequence[tuple[str | None, int, int]]]) -> Path:
    folder.mkdir()
    for number, file in enumerate(files):
        path = folder / f"{number:04d}.csv"
        lines = (f"{user or ''},{n},1.5,{NOON + dt.timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}\n"
                 for user, n, minute in file)  # fmt: skip
        path.write_text("".join(lines))
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


@dataclass
class Read:
    """One read of a state by a group: the number of due rows (None: all of the state was read), of keys and of files
    that were looked up; and the number of row groups that were read, and that these files have."""

    due: int | None
    keys: int = 0
    files: int = 0
    groups: int = 0
    of: int = 0

    @property
    def way(self) -> str:
        return "w" if self.due is None else "+" if self.due else "0"


@dataclass
class Reads:
    """The reads of each state's files, by name of the state."""

    by_state: dict[str, list[Read]] = field(default_factory=lambda: defaultdict(list))
    now: Read = field(default_factory=lambda: Read(0))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    look_up, current, rows_of_hashes = KeyedState.look_up, KeyedState.current, state_rows.rows_of_hashes

    def looked_up(state: KeyedState, keys: Any, due: Any = None) -> Any:
        count = 0 if due is None else len(due.hashes) + (due.young.num_rows if due.young is not None else 0)
        found.now = Read(count, len(set(keys[KEY_HASH].to_pylist())))
        found.by_state[state.table].append(found.now)
        return look_up(state, keys, due)

    def whole(state: KeyedState, session: Any, changed: Any) -> Any:
        if not state.is_in_memory and changed is None:
            found.by_state[state.table].append(Read(None))
        return current(state, session, changed)

    def counted(source: Any, index: Any, hashes: Any) -> Any:
        found.now.files += 1
        found.now.groups += len(index.groups_of(hashes))
        found.now.of += len(index.first)
        return rows_of_hashes(source, index, hashes)

    monkeypatch.setattr(KeyedState, "look_up", looked_up)
    monkeypatch.setattr(KeyedState, "current", whole)
    monkeypatch.setattr(state_rows, "rows_of_hashes", counted)
    monkeypatch.setattr(keyed_state, "LOOKED_UP_STATE_BYTES", 0)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 50)
    monkeypatch.setattr(due_rows, "FEW_ROWS", 6000)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", DECLARED)
def test_a_group_reads_what_its_keys_can_hold_and_what_is_due(  # noqa: PLR0917
    tmp_path: Path, inbox: Path, engine: SparkEngine, reads: Reads, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each id gives the same as in memory and in one group; a new run goes on in the middle.

    In the default run, only `test_state_runs.py` looks up due rows, in a state alone.
    """
    application = opened("timed", inbox, lambda events: dm.sink(DECLARED[name](events), dm.DeltaAppend("found")))
    states = {f"state/timed/{state}": ways for state, ways in WAYS[name].items()}
    with home(tmp_path / "home", engine) as place:
        run_once(place, application, max_group=1, max_triggers=6)
        run_once(place, application, max_group=1)
        stepwise = tables(place, REGION, [*states, "lake/found"])
    found = {state: list(reads.by_state[state]) for state in states}
    assert {state: "".join(each.way for each in of) for state, of in found.items()} == states
    idle = [each for of in found.values() for each in of if each.due == 0]
    assert all(each.groups <= each.keys * each.files for each in idle)
    asking = [each for each in idle if each.keys]  # a delay looks up no key
    assert not asking or any(0 < each.groups < each.of for each in asking)
    reads.by_state.clear()
    monkeypatch.setattr(keyed_state, "LOOKED_UP_STATE_BYTES", 2**25)
    with home(tmp_path / "at_once", engine) as place:
        run_once(place, application)
        assert not reads.by_state, "all was in memory"
        assert tables(place, REGION, [*states, "lake/found"]) == stepwise


def test_many_due_rows_do_not_come_to_the_process_of_the_run(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second file is small, and closes a window of each user."""
    users, came = 60, []
    local, require_text = GroupExecutor.local, output_staging.require_text

    def recorded(executor: GroupExecutor, table: Any, like: Any) -> Any:
        came.append(table.num_rows)
        return local(executor, table, like)

    def checked(operator: Any, rows: Any) -> Any:
        came.append(rows.num_rows)
        return require_text(operator, rows)

    inbox = written(tmp_path / "inbox", ([(f"u{number}", 1, 0) for number in range(users)], [("u1", 1, 300)]))
    declared = DECLARED["hourly"]
    application = opened("timed", inbox, lambda events: dm.sink(declared(events), dm.DeltaAppend("found")))
    monkeypatch.setattr(keyed_state, "LOOKED_UP_STATE_BYTES", 0)
    monkeypatch.setattr(due_rows, "FEW_ROWS", users // 2)
    with home(tmp_path / "home", engine) as place:
        run_once(place, application, max_triggers=1)
        monkeypatch.setattr(GroupExecutor, "local", recorded)
        monkeypatch.setattr(output_staging, "require_text", checked)
        run_once(place, application, max_group=1)
        assert len(rows(place, REGION, "found")) == users
    assert came
    assert max(came) < users
