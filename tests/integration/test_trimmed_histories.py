"""Histories of sinks without keys are cut behind the rewind horizon; states within it stay the same (V147).

The oracle is a list of (id, value): outer sinks show all of it up to an id, an overwritten table shows the last id.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_hand import Shown

from drainmark.jobs import failpoints
from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.runtime.maintenance.compaction import drop_changes, maintain_region
from drainmark.orchestration.doctor.examination import examine
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.settings import Settings

Rows = list[tuple[int, str]]

FILES = (["a", "b"], ["c"], [], ["d"], ["e", "f"], [], ["g"], ["h"])
SINKS = ("rows", "files", "newest")


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Shown]:
    databases = {"shop": "sqlite:///{home}/shop.db"}
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases))
    scene = Shown(place, tmp_path / "inbox")
    yield scene
    failpoints.arm("")
    place.registry.close()


def feed(fed: Shown, size: int = 1, files: tuple[list[str], ...] = FILES) -> None:
    for number, values in enumerate(files):
        fed.write(f"{number:03d}", values)
        fed.add(f"{number:03d}")
    fed.drain(size)


def oracle(fed: Shown, sink: str, at: int) -> Rows:
    """Return the rows that a sink shows at an id, from the files of the ids in force."""
    found = [
        (number, value)
        for number, row in fed.history().states.items()
        for value in Path(row.trigger_uri or "").read_text().splitlines()
        if number <= at
    ]
    last = max((number for number, _ in found), default=0)
    return sorted(row for row in found if sink != "newest" or row[0] == last)


def as_of(fed: Shown, sink: str, at: int) -> Rows:
    rows = RegionReader(fed.workplace.settings, fed.region).as_of(fed.of(sink)[1].name, at)
    return sorted((row["_sequence_id"], row["value"]) for row in rows.to_pylist())


def trim(fed: Shown, horizon: int) -> dict[str, int]:
    with fed.owning() as owner:
        drop_changes(owner, owner.history.committed_id - horizon)
    return {name.rpartition("/")[2]: edge for name, edge in fed.history().trimmed.items()}


def kept(fed: Shown, sink: str) -> int:
    return fed.workplace.store(fed.region).table(fed.of(sink)[0].name).row_count()


@pytest.mark.seed("V147", "H29", "H4")
def test_every_state_within_the_horizon_is_exact(fed: Shown) -> None:
    feed(fed, 3)
    before = {sink: kept(fed, sink) for sink in SINKS}
    edges = trim(fed, horizon=3)
    assert set(edges) == set(SINKS)
    assert all(kept(fed, sink) < before[sink] for sink in SINKS)
    edge = max(edges.values())
    assert 1 < edge <= 5
    for sink in SINKS:
        assert fed.shown(sink) == oracle(fed, sink, 8)
        for at in (0, *range(edge, 9)):
            assert as_of(fed, sink, at) == oracle(fed, sink, at), f"{sink} at {at}"
    wanted = {sink: oracle(fed, sink, 5) for sink in SINKS}
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=5))
    assert plan.rows["database/shop/rows"] == sum(number > 5 for number, _ in oracle(fed, "rows", 8))
    reset(fed.workplace, plan)
    assert {sink: fed.shown(sink) for sink in SINKS} == wanted
    fed.drain(2)
    for sink in SINKS:
        assert fed.shown(sink) == as_of(fed, sink, fed.history().committed_id)
        assert [value for _, value in fed.shown(sink)] == [value for _, value in oracle(fed, sink, 99)]


@pytest.mark.seed("H29")
def test_no_rewind_and_no_reader_goes_behind_the_edge_whatever_the_horizon(fed: Shown) -> None:
    feed(fed)
    edges = trim(fed, horizon=1)
    assert edges == {"rows": 7, "files": 7, "newest": 7}
    with fed.owning() as owner, pytest.raises(RewindRefused) as refused:
        owner.rewind(6, 10_000)
    assert refused.value.facts["nearest"] == 7
    with pytest.raises(RewindRefused):
        as_of(fed, "newest", 5)
    assert as_of(fed, "rows", 5) == oracle(fed, "rows", 5), "what is outside keeps its rows"


@pytest.mark.seed("H29", "H7")
def test_a_crash_while_a_history_is_cut_loses_nothing(fed: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(name: str, action: str) -> None:
        raise KeyboardInterrupt

    feed(fed)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_act", crash)
        failpoints.arm("compact.after_commit:raise")
        with pytest.raises(KeyboardInterrupt):
            trim(fed, horizon=2)
    assert failpoints.unreached() == ()
    failpoints.arm("")
    for sink in SINKS:
        assert as_of(fed, sink, 7) == oracle(fed, sink, 7)
    trim(fed, horizon=2)
    assert kept(fed, "rows") == len(oracle(fed, "rows", 8)) - len(oracle(fed, "rows", 6))
    wanted = {sink: oracle(fed, sink, 7) for sink in SINKS}
    with fed.owning() as owner:
        owner.rewind(7, 10_000)
    assert {sink: fed.shown(sink) for sink in SINKS} == wanted


@pytest.mark.seed("H30")
def test_what_is_kept_depends_on_the_horizon_and_not_on_how_long_the_region_runs(fed: Shown) -> None:
    most = 0
    files = 5
    for number in range(files):
        fed.write(f"{number:03d}", [f"v{number}"])
        fed.add(f"{number:03d}")
        with fed.owning() as owner:
            fed.process(1)
            maintain_region(owner, horizon=2)
        most = max(most, *(kept(fed, sink) for sink in SINKS))
    assert most == 3, "the horizon, and the overwritten table's rows at its edge"
    assert len(fed.shown("rows")) == len(fed.shown("files")) == len(fed.values()) == files
    assert as_of(fed, "rows", files) == oracle(fed, "rows", files)


@pytest.mark.slow
def test_a_sink_that_left_the_code_is_trimmed_too(fed: Shown) -> None:
    feed(fed)
    fed.sinks = ("newest",)
    fed.write("more", ["i"])
    fed.add("more")
    fed.drain()
    assert set(trim(fed, horizon=1)) == set(SINKS)
    assert kept(fed, "rows") == 0


@pytest.mark.slow
def test_a_restored_backup_is_found_though_its_history_is_empty(fed: Shown) -> None:
    feed(fed, files=FILES[:2])
    backup = fed.workplace.home / "backup"
    shutil.copy(fed.workplace.home / "shop.db", backup)
    fed.write("more", ["i"])
    fed.add("more")
    fed.drain()
    trim(fed, horizon=0)
    assert kept(fed, "rows") == 0
    shutil.copy(backup, fed.workplace.home / "shop.db")
    found = [check for check in examine(fed.workplace)["checks"] if check["check"] == "outside"]
    assert [check["verdict"] for check in found] == ["fail"]
