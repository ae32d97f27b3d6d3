"""Changes of a state that no rewind needs are dropped, and every state within the horizon stays the same (H29)."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from hand_runs import NoSpark, engine, without_spark
from harness import run_once
from integration.two_regions import BY_HAND, REGION, SINKS, reading, write_orders

import drainmark as dm
from drainmark.jobs import failpoints
from drainmark.jobs.errors import InputMissing, RewindRefused, SplitBrain
from drainmark.jobs.operators.sources.slices import Slice
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.runtime.maintenance.compaction import drop_changes, maintain_region
from drainmark.jobs.runtime.maintenance.garbage_collection import clear
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace
from drainmark.resources.checkpoints.as_of import RegionReader, read_at
from drainmark.resources.delta.upkeep import log_retention
from drainmark.resources.settings import Settings

__all__ = ["BY_HAND", "engine", "without_spark"]

FILES = 8


@pytest.fixture(scope="module")
def ran(engine: NoSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of orders, and a home that took each file as a group, nearly always with images of its states."""
    folder = tmp_path_factory.mktemp("ran")
    for number in range(FILES):
        write_orders(folder, number)
    place = Workplace(Settings(home=folder / "home", project_root=folder))
    place.use_engine(engine)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
        run_once(place, reading(folder), region=REGION, max_group=1)
    place.registry.close()
    return folder


@pytest.fixture
def application(ran: Path, workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Return the application that ran; the home of the test is a copy of its home."""
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
    shutil.copytree(ran / "home", workplace.home, dirs_exist_ok=True)
    return reading(ran)


def visible(place: Workplace) -> list[list[str]]:
    return [rows(RegionReader(place.settings, REGION).visible(sink).to_pylist()) for sink in SINKS]


def shown(place: Workplace, at: int) -> list[list[str]]:
    return [rows(read_at(REGION, sink, at=at, home=str(place.home)).to_pylist()) for sink in SINKS]


def rows(found: Sequence[object]) -> list[str]:
    return sorted(map(str, found))


def without_ids(found: list[list[str]]) -> list[list[str]]:
    return [sorted(row.partition("'_sequence_id'")[0] for row in sink) for sink in found]


def drop(place: Workplace, horizon: int) -> dict[str, int]:
    with owning(region_owner(place, REGION)) as owner:
        drop_changes(owner, owner.history.committed_id - horizon)
    return dict(place.history(REGION).dropped)


def change_files(place: Workplace) -> int:
    history = place.history(REGION)
    tables = [table.name for table in history.tables if table.role is TableRole.CHANGES]
    return sum(len(place.store(REGION).table(name).files.live()) for name in tables)


@pytest.mark.seed("H29", "H4")
@pytest.mark.parametrize("step", [0, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 2, FILES))])
def test_every_rewind_down_to_the_edge_is_right_and_none_goes_behind_it(
    workplace: Workplace, application: Opened, step: int
) -> None:
    states = {number: shown(workplace, number) for number in workplace.history(REGION).states}
    before, final = change_files(workplace), visible(workplace)
    dropped = drop(workplace, horizon=3)
    assert dropped
    assert change_files(workplace) < before
    edge = max(dropped.values())
    assert 1 < edge <= FILES - 3
    assert visible(workplace) == final
    assert {number: shown(workplace, number) for number in range(edge, FILES + 1)} == {
        number: states[number] for number in range(edge, FILES + 1)
    }
    with pytest.raises(RewindRefused):
        read_at(REGION, SINKS[0], at=1, home=str(workplace.home))
    with owning(region_owner(workplace, REGION)) as owner:
        with pytest.raises(RewindRefused) as refused:
            owner.rewind(edge - 1, 10_000)
        assert refused.value.facts["nearest"] == edge
        to = edge + step if edge + step <= FILES else 0
        owner.rewind(to, 10_000)
    assert visible(workplace) == (states[to] if to else [[], []])
    run_once(workplace, application, region=REGION, max_group=2)
    assert without_ids(visible(workplace)) == without_ids(final)


@pytest.mark.seed("H29", "H7")
def test_a_crash_while_changes_are_dropped_loses_none(
    workplace: Workplace, application: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(name: str, action: str) -> None:
        raise KeyboardInterrupt

    final = visible(workplace)
    with owning(region_owner(workplace, REGION)) as owner:
        edge = owner.history.committed_id - 2
        monkeypatch.setattr(failpoints, "_act", crash)
        failpoints.arm("compact.after_commit:raise")
        with pytest.raises(KeyboardInterrupt):
            drop_changes(owner, edge)
        assert failpoints.unreached() == ()
    assert visible(workplace) == final
    assert drop(workplace, horizon=2)
    kept = shown(workplace, edge)
    with owning(region_owner(workplace, REGION)) as owner:
        owner.rewind(edge, 10_000)
    assert visible(workplace) == kept
    run_once(workplace, application, region=REGION, max_group=3)
    assert without_ids(visible(workplace)) == without_ids(final)


@pytest.mark.seed("H29")
def test_a_lost_image_whose_changes_are_gone_is_no_empty_state(
    workplace: Workplace, application: Opened, ran: Path
) -> None:
    ((name, _), *_) = drop(workplace, horizon=0).items()
    history = workplace.history(REGION)
    image = history.image_of(name)
    assert image is not None
    workplace.store(REGION).table(name).folder.remove([file.path for file in image.files])
    further = write_orders(ran, FILES)
    try:
        with pytest.raises(SplitBrain) as raised:
            run_once(workplace, application, region=REGION)
    finally:
        further.unlink()
    assert raised.value.facts["table"] == name


def far_behind(place: Workplace) -> dict[str, int]:
    """Drop changes, compact across the images after them, and collect with a horizon that holds only the newest."""
    dropped = drop(place, horizon=5)
    with owning(region_owner(place, REGION)) as owner:
        store = place.store(REGION)
        for name in dropped:
            table, staging = store.table(name), store.staging(name, owner.epoch, uuid.uuid4().hex)
            assert table.upkeep.compact(table.txn_version() or 0, staging, files_at_least=2)
    with owning(region_owner(place, REGION)) as owner:
        drop_changes(owner, FILES - 1)
        assert owner.history.dropped == dropped, "no whole file is behind the newer image"
        clear(place.store(REGION), owner.history.tables, epoch=owner.epoch, horizon=1, now=time.time() + 2 * 86_400)
    return dropped


@pytest.mark.seed("H29", "H8")
@pytest.mark.parametrize("to", [4, *(pytest.param(to, marks=pytest.mark.slow) for to in (None, 5, 0))])
def test_the_image_that_stands_in_for_dropped_changes_outlives_the_horizon(
    workplace: Workplace, application: Opened, to: int | None
) -> None:
    states, final = {number: shown(workplace, number) for number in range(1, FILES + 1)}, visible(workplace)
    edge = max(far_behind(workplace).values())
    history = workplace.history(REGION)
    held = {number for name in history.dropped for number in history.images[name] if edge < number < FILES - 1}
    assert held, "a collected image lies between the one that stands in and the horizon"
    if to is None:
        assert {number: shown(workplace, number) for number in range(edge, FILES + 1)} == {
            number: states[number] for number in range(edge, FILES + 1)
        }
        return
    with owning(region_owner(workplace, REGION)) as owner:
        owner.rewind(to, 10_000)
    assert visible(workplace) == (states[to] if to else [[], []])
    run_once(workplace, application, region=REGION, max_group=2)
    assert without_ids(visible(workplace)) == without_ids(final)


@pytest.mark.slow
@pytest.mark.seed("H29", "H4")
def test_without_the_images_nothing_is_shown_and_no_rewind_is_committed(
    workplace: Workplace, application: Opened
) -> None:
    """Earlier versions collected the images: a rewind that is impossible must not become the region's next step."""
    before = visible(workplace)
    far_behind(workplace)
    history, store = workplace.history(REGION), workplace.store(REGION)
    for name, edge in history.dropped.items():
        image = history.image_of(name, edge)
        assert image is not None
        store.table(name).folder.remove([file.path for file in image.files])
    with pytest.raises(RewindRefused) as refused:
        read_at(REGION, SINKS[0], at=4, home=str(workplace.home))
    nearest = refused.value.facts["nearest"]
    assert nearest > 4
    read_at(REGION, SINKS[0], at=nearest, home=str(workplace.home))
    with pytest.raises(RewindRefused):
        plan_reset(workplace, REGION, RewindTarget(to=4))
    with owning(region_owner(workplace, REGION)) as owner, pytest.raises(RewindRefused):
        owner.rewind(4, 10_000)
    assert workplace.history(REGION).rewinds == ()
    with owning(region_owner(workplace, REGION)) as owner:
        assert owner.behind == ()
    assert visible(workplace) == before


@pytest.mark.slow
@pytest.mark.seed("H30")
def test_a_maintained_region_is_the_same_and_its_logs_are_short(
    workplace: Workplace, application: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_retention, "LOG_VERSIONS", 3)
    final, states = visible(workplace), [shown(workplace, number) for number in range(FILES - 2, FILES + 1)]
    with owning(region_owner(workplace, REGION)) as owner:
        maintain_region(owner, horizon=2)
    for table in workplace.history(REGION).tables:
        workplace.store(REGION).table(table.name).upkeep.maintain()
        folder = workplace.store(REGION).table(table.name).folder
        assert sum(name.endswith(".json") for name in folder.names("_delta_log")) <= 4
    assert visible(workplace) == final
    assert [shown(workplace, number) for number in range(FILES - 2, FILES + 1)] == states


def test_a_region_that_follows_changes_is_told_that_they_are_dropped(workplace: Workplace, application: Opened) -> None:
    edge = drop(workplace, horizon=3)["state/two_regions/customers"]
    access, source = workplace.access("reader/changed"), dm.TableSource(SINKS[0], changes=True)
    feed = access.changes_by_id(SINKS[0])
    assert feed is not None
    (kept,) = feed.rows(edge, FILES)
    assert {row["_commit_version"] for row in kept.to_pylist()} == set(range(edge + 1, FILES + 1))
    for after in (0, edge - 1):
        with pytest.raises(RewindRefused):
            list(feed.rows(after, FILES))
    version, identity, _ = access.newest_version(SINKS[0])
    place = {"version": version, "table": identity, "region": REGION, "id": FILES}
    piece = Slice(start={**place, "id": edge - 1}, end=place, size_bytes=1, facts={"ids": [edge, FILES]})
    for ask in (lambda: source.check(piece, access, "changed"), lambda: list(source.read(piece, access))):
        with pytest.raises(InputMissing) as missing:
            ask()
        assert "horizon" in (missing.value.remedy or "")
    source.check(
        Slice(start=None, end=place, size_bytes=1, facts={"ids": [1, FILES], "whole": True}), access, "changed"
    )
