"""Unaligned states under stress: a failure every few steps, and in the resets after it; rewinds; and deletion of all
that retention may delete. No row is lost or doubled, and the remaining files restore everything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from staged_app import FILES, REGION, staged

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.failpoints import ChannelPoint, FailPoint, InjectedFailure, arm
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.runtime.commit.rewind_contents import own_tables
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.jobs.runtime.maintenance.garbage_collection import clear
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.testing.comparing import NOW, Tables, multiset
from drainmark.orchestration.testing.processing import scan
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.interventions import resume
from drainmark.orchestration.verbs.removals.garbage import collect_region
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.resources.checkpoints.as_of import RegionReader

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RunApp = Callable[..., Result]
POINTS = (
    *ChannelPoint,
    *(point for point in FailPoint if point.value.startswith(("process.", "checkpoint", "publish.", "progress."))),
)
OF_RESETS = ("claim.before_commit", "claim.after_commit", "roll_forward.before", "note.before_commit")
TINY_SECONDS = 0.02
HORIZON = 4
DAY_SECONDS = 86400.0
MORE = {f"{number:02d}.txt": text for number, text in enumerate([*FILES.values(), *FILES.values()])}


def sinks(result: Result) -> Tables:
    found = Tables.of(result.workplace, REGION).rows
    return Tables({key: rows for key, rows in found.items() if not key[0].startswith("state/")})


@pytest.mark.seed("F1", "F5", "K10", "K22", "K23")
@pytest.mark.parametrize("seed", range(4))
def test_failures_rewinds_and_garbage_change_nothing(run_app: RunApp, seed: int) -> None:
    chance = random.Random(seed)
    golden = sinks(run_app(staged(cut=False), MORE, max_group=2))
    kind = chance.choice(["memory", "durable"])
    app = staged(
        alignment="unaligned", channels=kind, batches=2, max_consecutive_reset_attempts=50, rewind_horizon=HORIZON
    )
    result = run_app(app, max_group=1)
    for name, text in sorted(MORE.items()):
        result.add({name: text})
        one_step(result, chance)
    arm("")
    result.run()
    assert not list(sinks(result).unequal_to(golden, sorted(MORE)))
    assert result.status["inflight_batches"] == 0


def one_step(result: Result, chance: random.Random) -> None:
    arm(f"{chance.choice(POINTS).value}:{chance.choice(['raise', 'raise', 'lost_reply'])}:{chance.randrange(1, 6)}")
    result.max_group = chance.choice([1, 2, 3])
    try:
        result.run()
    except (InjectedFailure, DrainmarkError):
        arm("")
        if result.status["halt_reason"]:
            resume(result.workplace, REGION, reason="stressed")
    arm("")
    if chance.random() < 0.3:
        collect_region(result.workplace, REGION)
    if chance.random() < 0.3:
        history = result.workplace.history(REGION)
        targets = [number for number in history.states if number >= history.oldest_target(HORIZON)]
        if targets:
            result.rewind(chance.choice(targets))
            scan(result.workplace, result.opened, result.region)


@pytest.mark.seed("F1", "F5", "K1", "K23", "E30")
@pytest.mark.parametrize("seed", range(4))
def test_what_retention_leaves_restores_everything(run_app: RunApp, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Tiny intervals; every step fails, and so do the resets after it. Then all deletable files go, as if days had
    passed: the next reset has only the files that rows within the horizon name."""
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)  # states are written whole: changes may go
    chance = random.Random(100 + seed)
    golden = sinks(run_app(staged(cut=False), MORE, max_group=2))
    alignment = ["unaligned", "aligned"][seed % 2]
    app = staged(
        alignment=alignment, alignment_timeout=TINY_SECONDS if alignment == "aligned" else None,
        channels=chance.choice(["memory", "durable"]), batches=2, interval=TINY_SECONDS,
        max_consecutive_reset_attempts=50, rewind_horizon=HORIZON,
    )  # fmt: skip
    result = run_app(app, max_group=1)
    for name, text in sorted(MORE.items()):
        result.add({name: text})
        one_step(result, chance)
        fail_while_it_is_reset(result, chance)
        delete_what_may_go(result)
    arm("")
    result.run()
    delete_what_may_go(result)
    found = in_reach(result)
    wanted = Tables({key: rows for key, rows in golden.rows.items() if key in found.rows})
    assert {table for table, _ in wanted.rows} == {table for table, _ in golden.rows}
    assert not list(found.unequal_to(wanted, sorted(MORE)))
    assert result.status["inflight_batches"] == 0


def fail_while_it_is_reset(result: Result, chance: random.Random) -> None:
    """Fail in the next reset, and in the one after it."""
    for point in chance.sample(OF_RESETS, 2):
        arm(f"{point}:raise")
        with suppress(InjectedFailure, DrainmarkError):
            result.run()
        arm("")


def delete_what_may_go(result: Result) -> None:
    """Maintain the region, and collect as if the days that `gc` waits for readers were over."""
    store = result.workplace.store(REGION)
    with owning(region_owner(result.workplace, REGION)) as owner:
        maintain_region(owner, horizon=HORIZON)
        later = time.time() + 2 * DAY_SECONDS
        clear(store, own_tables(store, owner.history), epoch=owner.epoch, horizon=HORIZON, now=later)


def in_reach(result: Result) -> Tables:
    """Return all sinks as readers see them, and those with keys as of every id that a rewind may go to."""
    reader = RegionReader(result.workplace.settings, REGION)
    places = {number: place for place, number in enumerate(sorted(reader.history.states), 1)}
    oldest = reader.history.oldest_target(HORIZON)
    rows = {}
    for table in reader.history.tables:
        if table.name.startswith("state/"):
            continue
        rows[table.name, NOW] = multiset(reader.visible(table.name).to_pylist(), places)
        for number in (number for number in places if number >= oldest and table.role is TableRole.UPSERT):
            rows[table.name, places[number]] = multiset(reader.as_of(table.name, number).to_pylist(), places)
    return Tables(rows)
