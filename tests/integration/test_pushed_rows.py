"""Rows that are pushed: durable, one state for each segment, purged when no replay can need them (V146, E27, N29)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import rows

import drainmark as dm
from drainmark.jobs.errors import Halted, RewindRefused, UsageError
from drainmark.jobs.failpoints import FailPoint, arm
from drainmark.jobs.operators.sources.pushed.bucket_buffer import BucketBuffer
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import drive, scan
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.inputs.push import push_to
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.object_store import ObjectStore

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]


def pushed(**parameters: Any) -> Callable[[], None]:
    horizon = parameters.pop("rewind_horizon", 10_000)

    def little() -> None:
        @dm.consistent(trigger="operator-driven", rewind_horizon=horizon)
        @dm.source(dm.ReplayableStart(schema="n bigint", seconds=0, **parameters))
        def rows(scanned: Any) -> Any:
            return scanned

        dm.sink(rows, dm.DeltaAppend("pushed_rows"))

    return little


def give(result: Result, *numbers: int) -> Result:
    for number in numbers:
        push_to(result.workplace, result.region, [{"n": number}])
    return result


def segments(result: Result) -> list[str]:
    folder = result.workplace.access(result.region.name).buffer("rows")
    return sorted(path.name[:20] for path in folder.glob("segment-*"))


def numbers(result: Result) -> list[int]:
    return [row["n"] for row in result.sink("pushed_rows")]


def test_what_is_kept_to_the_horizon_is_replayed(run_app: RunApp) -> None:
    result = give(run_app(pushed()), 1, 2, 3).run()
    assert (numbers(result), len(segments(result))) == ([1, 2, 3], 3)
    result.rewind(1).run()
    assert numbers(result) == [1, 2, 3]
    assert [state["trigger"] for state in result.history] == [f"segment:rows#{n}" for n in (1, 2, 3)]


def test_what_no_rewind_can_ask_for_is_purged(run_app: RunApp) -> None:
    result = run_app(pushed(rewind_horizon=1))
    for number in (1, 2, 3):
        give(result, number).run()
    assert len(segments(result)) == 1, "the horizon reaches back to the state before the last"
    assert numbers(give(result, 4).run()) == [1, 2, 3, 4]


def test_what_is_purged_at_once_cannot_be_replayed_and_says_so(run_app: RunApp) -> None:
    result = give(run_app(pushed(purge="checkpointed")), 1, 2).run()
    assert segments(result) == []
    result.rewind(1)
    with pytest.raises(Halted) as caught:
        result.run()
    assert caught.value.facts["trigger"] == "segment:rows#2"
    assert "purged" in caught.value.message


@pytest.mark.parametrize("point", [FailPoint.PURGE_BEFORE, FailPoint.PURGE_AFTER])
def test_a_purge_that_fails_costs_nothing_and_is_made_up(run_app: RunApp, point: FailPoint) -> None:
    result = give(run_app(pushed(purge="checkpointed")), 1, 2)
    arm(f"{point.value}:raise")
    try:
        result.run()
    finally:
        arm("")
    give(result, 3).run()
    assert numbers(result) == [1, 2, 3]
    assert segments(result) == []
    assert result.status["consecutive_reset_attempts"] == 0


def test_the_command_line_pushes_lines_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drainmark.toml").write_text('applications = ["little.py"]\n')
    (tmp_path / "little.py").write_text(
        "import drainmark as dm\n\n"
        "@dm.consistent(trigger='operator-driven')\n"
        "@dm.source(dm.ReplayableStart(schema='n bigint', seconds=0))\n"
        "def rows(scanned):\n    return scanned\n\n"
        "dm.sink(rows, dm.DeltaAppend('pushed_rows'))\n"
    )
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"n": 1}\n\n{"n": 2}\n')
    assert invoke(["push", "little.py", str(lines), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"region": "little/rows", "rows": 2, "segment": 1}
    lines.write_text('{"n": 1}\n[2]\n')
    assert invoke(["push", "little.py", str(lines)]) == UsageError.exit_code
    assert "line 2" in capsys.readouterr().err
    for wrong, said in (('{"n": 1, "n": 2}', "twice"), ('{"n": "\xe9"}', "UTF-8")):
        lines.write_bytes(f'\n{{"n": 1}}\n{wrong}\n'.encode("latin-1"))
        assert invoke(["push", "little.py", str(lines)]) == UsageError.exit_code
        told = capsys.readouterr().err
        assert "line 3" in told
        assert said in told
    assert dm.push("little", [{"n": 3}]) == 2
    with pytest.raises(UsageError):
        dm.push("little", [{"n": 3}], start="other")


def test_the_plan_of_a_rewind_names_the_segments_that_are_purged(workplace: Workplace, tmp_path: Path) -> None:
    (tmp_path / "little.py").write_text(
        "import drainmark as dm\n\n"
        "@dm.consistent(trigger='operator-driven')\n"
        "@dm.source(dm.ReplayableStart(schema='n bigint', seconds=0, purge='checkpointed'))\n"
        "def rows(scanned):\n    return scanned\n\n"
        "dm.sink(rows, dm.DeltaAppend('pushed_rows'))\n"
    )
    opened = open_application(str(tmp_path / "little.py"))
    region = opened.region()
    for number in (1, 2):
        push_to(workplace, region, [{"n": number}])
    scan(workplace, opened, region)
    drive(region_run(workplace, opened, region))
    plan = plan_reset(workplace, region.name, RewindTarget(to=1))
    assert plan.gone == ("segment:rows#2",)
    with pytest.raises(RewindRefused):
        reset(workplace, plan)
    reset(workplace, plan, accept_loss=True)
    assert workplace.registry.pending_count(region.name) == 0
    push_to(workplace, region, [{"n": 3}])
    scan(workplace, opened, region)
    drive(region_run(workplace, opened, region))
    assert sorted(row["n"] for row in rows(workplace, region.name, "pushed_rows")) == [1, 3]


@pytest.mark.seed("E27", "V146")
def test_what_is_pushed_to_a_bucket_outlives_the_machine(
    tmp_path: Path, s3_server: str, s3_credentials: None, engine: SparkEngine
) -> None:
    """Another home, to which nothing was pushed, processes and replays the rows that were pushed to this one."""
    client = ObjectStore(s3_server).connection.client
    client.create_bucket(Bucket="pushed")
    (tmp_path / "little.py").write_text(
        "import drainmark as dm\n\n"
        "@dm.consistent(trigger='operator-driven')\n"
        "@dm.source(dm.ReplayableStart(schema='n bigint', buffer='s3://pushed/buffers'))\n"
        "def rows(scanned):\n    return scanned\n\n"
        "dm.sink(rows, dm.DeltaAppend('pushed_rows'))\n"
    )
    opened = open_application(str(tmp_path / "little.py"))

    def home(name: str) -> Workplace:
        place = Workplace(Settings(home=tmp_path / name, project_root=tmp_path, s3_endpoint_url=s3_server))
        place.use_engine(engine)
        return place

    first, second = home("first"), home("second")
    for number in (1, 2):
        assert push_to(first, opened.region(), [{"n": number}, {"n": -number}]) == number
    assert [found["Key"] for found in client.list_objects_v2(Bucket="pushed")["Contents"]] == [
        f"buffers/little/rows/rows/segment-00000000000{number}.jsonl" for number in (1, 2)
    ]
    for place in (second, second):
        scan(place, opened, opened.region())
        drive(region_run(place, opened, opened.region()))
        assert sorted(row["n"] for row in rows(place, "little/rows", "pushed_rows")) == [-2, -1, 1, 2]
        reset(place, plan_reset(place, "little/rows", RewindTarget(to=1)))
        assert sorted(row["n"] for row in rows(place, "little/rows", "pushed_rows")) == [-1, 1]
    for place in (first, second):
        place.registry.close()


@pytest.mark.slow
@pytest.mark.seed("E27")
def test_tasks_fetch_what_a_large_group_has_in_a_bucket(
    tmp_path: Path, s3_server: str, s3_credentials: None, engine: SparkEngine
) -> None:
    """A replay by tasks gives the rows that this process gave before, byte for byte, or halts."""
    client = ObjectStore(s3_server).connection.client
    client.create_bucket(Bucket="large")
    (tmp_path / "little.py").write_text(
        "import drainmark as dm\n\n"
        "@dm.consistent(trigger='operator-driven')\n"
        "@dm.source(dm.ReplayableStart(schema='n bigint', buffer='s3://large/buffers'))\n"
        "def rows(scanned):\n    return scanned.selectExpr('n', '_position.row as place')\n\n"
        "dm.sink(rows, dm.DeltaAppend('pushed_rows'))\n"
    )
    opened = open_application(str(tmp_path / "little.py"))

    def place_of(small: int) -> Workplace:
        given = {"s3_endpoint_url": s3_server, "small_group_bytes": small}
        place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, **given))
        place.use_engine(engine)
        return place

    def run(place: Workplace) -> tuple[list[Any], list[Any]]:
        scan(place, opened, opened.region())
        drive(region_run(place, opened, opened.region()))
        found = (rows(place, "little/rows", table) for table in ("pushed_rows", "little_quarantine"))
        kept, bad = (list(each) for each in found)
        return sorted((row["n"], row["place"]) for row in kept), sorted((row["raw"], row["position"]) for row in bad)

    here = place_of(1 << 20)
    push_to(here, opened.region(), [{"n": 1}, {"n": "one"}, {"n": 3}])
    push_to(here, opened.region(), [{"n": 4}, {"n": 5}])
    before = run(here)
    assert [n for n, _ in before[0]] == [1, 3, 4, 5]
    assert [position for _, position in before[1]] == [2]
    here.registry.close()

    by_tasks = place_of(0)
    reset(by_tasks, plan_reset(by_tasks, "little/rows", RewindTarget(to=0)))  # its plan reads the bytes itself
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BucketBuffer, "place", lambda *_: pytest.fail("this process fetched a segment"))
        assert run(by_tasks) == before
    reset(by_tasks, plan_reset(by_tasks, "little/rows", RewindTarget(to=0)))
    key = "buffers/little/rows/rows/segment-000000000002.jsonl"
    content = client.get_object(Bucket="large", Key=key)["Body"].read()
    client.put_object(Bucket="large", Key=key, Body=content.replace(b'"n": 5', b'"n": 6'))
    with pytest.raises(Halted, match="gives other bytes than when its state was committed"):
        run(by_tasks)
    by_tasks.registry.close()
