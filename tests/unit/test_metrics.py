"""Metrics (E23): their counts are right, and Prometheus can read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import Counting, HandFed

from drainmark.jobs.protocol.records.manifest import Image, TableRole
from drainmark.jobs.protocol.records.triggers import SLICES, NewTrigger
from drainmark.jobs.protocol.stage_flow import InFlight
from drainmark.jobs.protocol.transitions import State
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.inspection import metrics
from drainmark.orchestration.inspection.metrics import as_json, as_text, metrics_path, region_metrics
from drainmark.orchestration.inspection.status import remedies as remedies_of
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (.+)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|summary)")
_LABELS = r'(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+'
_SAMPLE = re.compile(rf"({_NAME})\{{({_LABELS})\}} (-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)")

Samples = dict[tuple[str, str], float]


def parsed(text: str) -> Samples:
    """Parse the text format strictly: each metric once, HELP and TYPE before its samples, no sample twice.

    Returns:
        value by (name, labels without the region).
    """
    assert text.endswith("\n")
    told: dict[str, str] = {}
    present: str | None = None
    found: Samples = {}
    regions: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if helped := _HELP.fullmatch(line):
            present = helped[1]
            assert present not in told, f"{present} stands in two places"
            told[present] = ""
        elif typed := _TYPE.fullmatch(line):
            assert typed[1] == present
            told[typed[1]] = typed[2]
        else:
            sample = _SAMPLE.fullmatch(line)
            assert sample, line
            name = sample[1]
            suffixes = ("_sum", "_count") if present and told[present] == "summary" else ("",)
            assert name in {f"{present}{suffix}" for suffix in suffixes}, f"{name} stands below {present}"
            if present and told[present] == "counter":
                assert name.endswith("_total")
            labels = sample[2].split(",", 1)
            assert labels[0].startswith('region="')
            assert (name, sample[2]) not in regions, "a sample twice"
            regions[name, sample[2]] = float(sample[3])
            found[name.removeprefix("drainmark_"), labels[1] if len(labels) > 1 else ""] = float(sample[3])
    return found


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    """Yield a region with three files of two, one and no rows."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    for name, values in {"a": ["1", "2"], "b": ["3"], "c": []}.items():
        scene.write(name, values)
    scene.add("a", "b", "c")
    yield scene
    place.registry.close()


def of(scene: HandFed) -> Samples:
    return parsed(as_text({scene.region: region_metrics(scene.workplace, scene.region)}))


def in_file(scene: HandFed) -> Samples:
    return parsed(metrics_path(scene.workplace, scene.region).read_text())


@pytest.mark.seed("E23")
def test_what_is_committed_is_counted(fed: HandFed) -> None:
    fed.drain(2)
    found = of(fed)
    size = sum(path.stat().st_size for path in fed.inbox.iterdir())
    expected = {
        "groups_total": 2, "states_total": 3, "rows_in_total": 3, "bytes_in_total": size, "skipped_total": 0,
        "committed_sequence_id": 3, "published_sequence_id": 3, "pending_triggers": 0, "epoch": 1, "halted": 0,
        "reset_attempt": 0, "drain_seconds_count": 2, "drain_seconds_sum": 0.5, "drain_average_seconds": 0.25,
        "process_seconds_sum": 0.5,
        "checkpoint_seconds_count": 2, "publish_seconds_count": 2, "reset_seconds_count": 0,
    }  # fmt: skip
    assert {name: found[name, ""] for name in expected} == expected
    states = {labels: value for (name, labels), value in found.items() if name == "state"}
    assert (len(states), [name for name, value in states.items() if value]) == (7, ['state="STARTED"'])
    written = fed.history().states[3].recorded_at.timestamp()
    assert found["last_commit_timestamp_seconds", ""] == pytest.approx(written, abs=1e-3)
    assert ("last_reset_timestamp_seconds", "") not in found, "what never happened has no time"


@pytest.mark.seed("E23", "E14", "V67")
def test_resets_rewinds_and_halts_are_counted_and_what_is_withdrawn_stays_counted(fed: HandFed) -> None:
    fed.crash_after(1)
    assert of(fed)["state", 'state="UNHEALTHY"'] == 1
    fed.drain()
    found = of(fed)
    assert (found["reset_seconds_count", ""], found["last_reset_sequence_id", ""]) == (1, 1)
    assert found["reset_average_seconds", ""] > 0

    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    interventions.halt(fed.workplace, fed.region, 'a "quoted"\nreason')
    found = of(fed)
    assert (found["rewinds_total", ""], found["halts_total", ""], found["halted", ""]) == (1, 1, 1)
    assert (found["states_total", ""], found["committed_sequence_id", ""], found["pending_triggers", ""]) == (3, 1, 2)
    assert (found["reset_seconds_count", ""], found["last_reset_sequence_id", ""]) == (2, 1)
    assert found["state", 'state="HALTED"'] == 1


@pytest.mark.seed("K7", "K10", "F29")
def test_stages_channels_and_dropped_intervals_are_told(fed: HandFed) -> None:
    with fed.owning() as owner:
        fed.process(1)
        batch = InFlight(first_id=2, last_id=2, rows=1, bytes=70).to_json()
        staged = replace(
            fed.group(1), stages={"lines": 2, "counts": 1}, channels={"lines to counts": [batch]},
            restarts={"counts": 3}, dropped_intervals=4,
        )  # fmt: skip
        owner.groups.publish(owner.groups.commit(staged))
    found = of(fed)
    told = {
        ("stage_through_sequence_id", 'stage="counts"'): 1, ("stage_through_sequence_id", 'stage="lines"'): 2,
        ("stage_behind", 'stage="counts"'): 1, ("stage_behind", 'stage="lines"'): 0,
        ("stage_restarts_total", 'stage="counts"'): 3, ("stage_restarts_total", 'stage="lines"'): 0,
        ("inflight_batches", 'channel="lines to counts"'): 1, ("inflight_bytes", 'channel="lines to counts"'): 70,
        ("dropped_intervals_total", ""): 4,
    }  # fmt: skip
    assert {name: found[name] for name in told} == told
    as_objects = as_json(fed.region, region_metrics(fed.workplace, fed.region))
    assert as_objects["drainmark_stage_behind"] == {"lines": 0, "counts": 1}
    assert as_objects["drainmark_state"] == "STARTED"
    (status,) = statuses(fed.workplace)
    assert status["channels"] == [{"name": "lines to counts", "batches": 1, "bytes": 70}]


def test_losses_that_were_accepted_are_counted(fed: HandFed) -> None:
    lost = {SLICES: {"files": {"from": None, "to": {"n": 2}, "bytes": 0, "lost": [[0, 0, 2]]}}}
    uri = str(fed.write("d", []))
    fed.workplace.registry.triggers.add(
        fed.region, [NewTrigger(uri=uri, identity=lost, identity_key="lost", size_bytes=0)]
    )
    fed.drain()
    assert of(fed)["accepted_losses_total", ""] == 1


def test_a_status_says_what_can_be_typed_in_each_state(fed: HandFed) -> None:
    def remedies() -> list[str]:
        (entry,) = statuses(fed.workplace)
        found: list[str] = entry["remedies"]
        return found

    with fed.owning():
        fed.process(1)
        assert remedies() == [], "a run is at work"
    assert remedies() == ["drainmark run by_hand"], "files wait"
    fed.crash_after(1)
    fed.drain()
    assert remedies() == []
    interventions.halt(fed.workplace, fed.region, "disk")
    assert remedies() == [f"drainmark resume {fed.region}"]
    interventions.resume(fed.workplace, fed.region, "mended")
    assert remedies() == []
    waiting = {"is_owned": False, "pending": 1, "reference": "/my apps/app.py"}
    assert remedies_of(fed.region, fed.history(), State.STARTED, **waiting) == ["drainmark run '/my apps/app.py'"]
    lost = {"is_owned": False, "pending": None, "reference": "app.py"}
    assert remedies_of(fed.region, fed.history(), State.STARTED, **lost) == ["drainmark doctor --repair"]


def test_the_file_is_written_at_each_outcome_and_says_what_the_verb_says(
    fed: HandFed, capsys: pytest.CaptureFixture[str]
) -> None:
    fed.drain(2)
    assert in_file(fed) == of(fed)
    interventions.halt(fed.workplace, fed.region, "disk")
    assert in_file(fed)["halted", ""] == 1
    assert [path.name for path in (fed.workplace.home / "metrics").iterdir()] == ["by_hand__files.prom"]

    home = ["--home", str(fed.workplace.home)]
    assert invoke(["metrics", "by_hand", *home]) == 0
    assert parsed(capsys.readouterr().out) == of(fed)
    assert invoke(["metrics", *home, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["region"], told["drainmark_state"], told["drainmark_states_total"]) == (fed.region, "HALTED", 3)
    assert invoke(["metrics", "by_hnad", *home]) == 2


def test_between_groups_the_file_is_written_now_and_then(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new count after every group of one would cost more than the group."""
    monkeypatch.setattr(metrics, "EVERY_SECONDS", 0.0)
    with fed.owning() as owner:
        fed.process(1)
        owner.report("group", {})
        assert in_file(fed)["states_total", ""] == 1
        monkeypatch.setattr(metrics, "EVERY_SECONDS", 3600.0)
        fed.process(1)
        owner.report("group", {})
        assert in_file(fed)["states_total", ""] == 1
        assert in_file(fed)["state", 'state="STARTED"'] == 1
    assert in_file(fed) == of(fed)


def test_a_file_that_cannot_be_written_is_told_and_fails_nothing(fed: HandFed) -> None:
    (fed.workplace.home / "metrics").write_text("in the way")
    steps: list[str] = []
    owner = region_owner(fed.workplace, fed.region, report=lambda step, numbers: steps.append(step))
    owner.claim(fed.tables)
    owner.halts.halt("disk", trigger=None, operator=None, error=None)
    assert steps[-2:] == ["halt", "metrics"]
    owner.leave()


def test_regions_of_one_metric_stand_together(fed: HandFed) -> None:
    fed.drain()
    found = region_metrics(fed.workplace, fed.region)
    text = as_text({"one/a": found, 'two/"b"': found})
    assert len(re.findall(r"^# TYPE ", text, re.MULTILINE)) == len(found)
    assert r'region="two/\"b\""' in text
    parsed(text)


class Imaged(Counting):
    """A region with an image of the state in each group: a run of all earlier files, and a run of the group's file."""

    def group(self, count: int) -> Any:
        staged = super().group(count)
        state = staged.tables[self.state]
        earlier = self.history().image_of(self.state)
        files = (*(earlier.files if earlier else ()), *state.files)
        runs = (len(files) - 1, 1) if earlier else ()
        image = Image(table=self.state, at=staged.group.last_id, files=files, runs=runs)
        return replace(staged, tables={**staged.tables, self.state: replace(state, image=image)})

    @property
    def state(self) -> str:
        return next(table.name for table in self.tables if table.role is TableRole.CHANGES)


@pytest.mark.seed("E23", "H29")
def test_the_runs_of_a_state_are_counted_by_its_newest_image(tmp_path: Path) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = Imaged(place, tmp_path / "inbox")
    for name, values in {"a": ["k", "l"], "b": ["k"], "c": ["m"]}.items():
        scene.write(name, values)
    scene.add("a", "b", "c")
    assert not [name for name, _ in of(scene) if name.startswith("state_")]
    scene.drain(1)
    found, label = of(scene), f'state="{scene.state.removeprefix("state/")}"'
    files = scene.workplace.store(scene.region).table(scene.state).files.live()
    assert found["state_runs", label] == 2
    assert found["state_rows", label] == sum(file.rows for file in files) == 4
    assert found["state_bytes", label] == sum(file.size for file in files)
    told = as_json(scene.region, region_metrics(place, scene.region))
    assert told["drainmark_state_runs"] == {scene.state.removeprefix("state/"): 2}
    place.registry.close()
