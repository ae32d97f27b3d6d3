"""`on_halt`: the command runs once for each halt, is bounded in time, and changes nothing."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import HandFed
from harness import At
from waiting import eventually

from drainmark.jobs import failpoints
from drainmark.jobs.errors import DrainmarkError, InputChanged, SourceRewound
from drainmark.jobs.errors.environment import SHARE_FOLDERS, ErasedInput, FilesLost
from drainmark.jobs.failpoints import FailPoint, InjectedFailure
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.messages import described, halted_error, resume_command, skip_command
from drainmark.jobs.world import entered
from drainmark.orchestration.inspection.status import status_of
from drainmark.orchestration.runs import halt_hook
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions, orders
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings, load_settings

REGION = "app/start"
TELLER = "import json, sys; open(sys.argv[1], 'a').write(json.dumps(json.load(sys.stdin)) + '\\n')"


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "told.jsonl"


@pytest.fixture
def place(tmp_path: Path, told: Path) -> Iterator[Workplace]:
    """Yield a home whose `on_halt` command writes each halt to a file."""
    command = (sys.executable, "-c", TELLER, str(told))
    workplace = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, on_halt=command))
    yield workplace
    failpoints.arm("")
    workplace.registry.close()


def events(told: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []


def with_command(place: Workplace, *command: str) -> Workplace:
    place.settings = place.settings.model_copy(update={"on_halt": command})
    return place


def test_a_halt_is_told_once_with_what_an_operator_needs(place: Workplace, told: Path) -> None:
    interventions.halt(place, REGION, "the disk is to be replaced")
    interventions.halt(place, REGION, "again")
    history = place.history(REGION)
    assert halt_hook.make_up(place, REGION, history) is False, "nobody has to make up for it"

    (event,) = events(told)
    assert (event["event"], event["region"], event["reason"]) == ("halted", REGION, "the disk is to be replaced")
    assert (event["committed_sequence_id"], event["epoch"], event["consecutive_reset_attempts"]) == (0, 1, 0)
    assert event["home"] == str(place.home)
    assert event["remedies"] == [f"drainmark resume {REGION}"]
    assert (event["run_id"], str(event["halted_at"])[-1]) == (history.halt.run_id if history.halt else "", "Z")


@pytest.fixture
def fed(place: Workplace, tmp_path: Path) -> HandFed:
    """Return a region of that home with three committed states."""
    scene = HandFed(place, tmp_path / "inbox", region=REGION)
    for name in "abc":
        scene.write(name, [name])
    scene.add(*"abc")
    scene.drain()
    return scene


def reset(place: Workplace, to: int | None) -> tuple[str, list[str]]:
    """Reset as the command line does; return the halt in its facts, and the lines about it in the plan and result."""
    order = orders.reset(place, REGION, RewindTarget(to=to))
    done = order.act()
    said = [line.strip() for line in (*order.plan, *done.lines) if "halt" in line and " pending: " not in line]
    return order.facts["halt"], said


def test_a_halt_that_was_asked_for_stays_across_a_rewind(fed: HandFed, told: Path) -> None:
    """Otherwise a run of the daemon would replay with the code that must be fixed first."""
    place = fed.workplace
    interventions.halt(place, REGION, "bad prices")
    for to in (2, 1, None):
        stays = f"the region stays halted; go on with: drainmark resume {REGION}"
        assert reset(place, to) == ("stays", [stays, f"{REGION} is halted; go on with: drainmark resume {REGION}"])
        found = status_of(place, REGION)
        assert (found["state"], found["halt_reason"]) == ("HALTED", "bad prices")
    assert place.registry.region_info(REGION).state == "HALTED"
    assert [event["event"] for event in events(told)] == ["halted"], "it is the same halt"
    interventions.resume(place, REGION, "fixed")
    assert (place.history(REGION).halt, fed.history().committed_id) == (None, 1)
    fed.drain()
    assert place.registry.region_info(REGION).state == "STARTED"


def test_a_rewind_that_dies_under_a_halt_is_unhealthy_until_it_is_finished_and_halted_then(fed: HandFed) -> None:
    place = fed.workplace
    interventions.halt(place, REGION, "bad prices")
    failpoints.arm(f"{FailPoint.REWIND_TABLE_BEFORE}:raise")
    with pytest.raises(InjectedFailure):
        reset(place, 1)
    failpoints.arm("")
    assert status_of(place, REGION)["state"] == "UNHEALTHY"
    with owning(region_owner(place, REGION)):
        pass
    assert status_of(place, REGION)["state"] == "HALTED"
    assert place.registry.region_info(REGION).state == "HALTED"


def test_a_rewind_ends_a_halt_by_failures_and_says_so(fed: HandFed) -> None:
    with owning(region_owner(fed.workplace, REGION)) as owner:
        owner.halts.halt("failed 6 times in a row", trigger=None, operator=None, error=None)
    said = orders.halt(fed.workplace, REGION, "wait").plan[-1]
    assert "a rewind ends it" in said
    assert reset(fed.workplace, 1) == ("ends", ["this ends the halt"])
    assert fed.history().halt is None
    assert reset(fed.workplace, 1) == (None, [])


def test_a_halt_because_of_a_file_names_it_and_how_to_pass_it(place: Workplace, told: Path) -> None:
    error = {"id": "OPERATOR_FAILED", "message": "no number"}
    with owning(region_owner(place, REGION)) as owner:
        owner.halts.halt("failed 6 times in a row", trigger="/in/b.txt", operator="numbers", error=error)
    (event,) = events(told)
    assert (event["trigger"], event["operator"], event["error"]) == ("/in/b.txt", "numbers", error)
    assert event["remedies"] == [
        f"drainmark resume {REGION}",
        f"drainmark skip {REGION} --file /in/b.txt --reason '…'",
    ]


def test_a_halt_for_what_a_source_lost_says_it_once_with_the_way_on(place: Workplace) -> None:
    lost = InputChanged("log.csv was truncated", remedy='on_lost="restart"')
    with owning(region_owner(place, REGION)) as owner:
        owner.halts.halt(lost.message, trigger=None, operator="ev", error=lost.to_json())
    error = halted_error(REGION, place.history(REGION))
    assert error.message.count(lost.message) == 1
    assert (error.remedy or "").startswith(f'on_lost="restart"; then: drainmark resume {REGION}')
    interventions.resume(place, REGION, "again")
    with owning(region_owner(place, REGION)) as owner:
        owner.halts.halt("failed 6 times in a row", trigger="/in/b.txt", operator="ev", error=lost.to_json())
    error = halted_error(REGION, place.history(REGION))
    assert lost.message in error.message
    assert (error.remedy or "").startswith("fix the cause")


def test_a_remedy_that_names_all_commands_is_not_told_twice(place: Workplace) -> None:
    resume, skip = commands = (resume_command(REGION), skip_command(REGION, "/in/b.txt"))
    erased = ErasedInput("/in/b.txt is back", remedy=f"mend it, and {resume}; or {skip}", commands=commands)
    with owning(region_owner(place, REGION)) as owner:
        owner.halts.halt(erased.message, trigger="/in/b.txt", operator=None, error=described(erased))
    assert halted_error(REGION, place.history(REGION)).remedy == erased.remedy


@pytest.mark.parametrize(
    "commands",
    [
        [f"drainmark resume {REGION}", f"drainmark reset {REGION} --to 2 --accept-loss --yes"],
        [f"drainmark resume {REGION} --accept-loss --reason '…'"],
    ],
)
def test_a_loss_is_accepted_by_resume_only_if_the_source_says_so(place: Workplace, commands: list[str]) -> None:
    """A region of files refuses `resume --accept-loss`, and would stay halted."""
    changed = InputChanged("b.txt was committed and is another file now", remedy="restore it", commands=commands)
    with owning(region_owner(place, REGION)) as owner:
        owner.halts.halt(changed.message, trigger=None, operator="ev", error=described(changed))
    assert status_of(place, REGION)["remedies"] == commands


@pytest.mark.parametrize(
    "error",
    [
        FilesLost("tasks wrote 5 rows, and this process does not find them", remedy=SHARE_FOLDERS),
        SourceRewound("rows were withdrawn", remedy=f"drainmark reset {REGION} --to 2 --cascade, and run"),
    ],
    ids=["no command", "of an older version"],
)
def test_a_halt_that_brings_no_commands_is_ended_by_resume(place: Workplace, error: DrainmarkError) -> None:
    """No words of a remedy are taken for a command."""
    with owning(region_owner(place, REGION)) as owner:
        owner.halts.halt(error.message, trigger=None, operator=None, error=described(error))
    assert status_of(place, REGION)["remedies"] == [f"drainmark resume {REGION}"]
    assert (halted_error(REGION, place.history(REGION)).remedy or "").startswith(error.remedy or "-")


def test_each_halt_is_told(place: Workplace, told: Path) -> None:
    for reason in ("one", "two"):
        interventions.halt(place, REGION, reason)
        interventions.resume(place, REGION, "mended")
    assert [event["reason"] for event in events(told)] == ["one", "two"]


def test_a_death_after_the_commit_is_made_up_for_once(place: Workplace, told: Path) -> None:
    """At least once: a sensor tick or `run` that finds a halt without its command's run runs the command."""

    def die(history: RegionHistory) -> None:
        raise InjectedFailure("killed between commit and command")

    owner = region_owner(place, REGION)
    owner = RegionOwner.of(owner.ledger.identity, replace(owner.outside, on_halt=die), owner.report)
    owner.claim()
    with pytest.raises(InjectedFailure):
        owner.halts.halt("disk", trigger=None, operator=None, error=None)
    owner.leave()
    history = place.history(REGION)
    assert history.halt is not None
    assert halt_hook.make_up(place, REGION, history) is False, "it may be under way"

    with entered(At(time.time() + 2 * halt_hook.LIMIT_SECONDS + 1)):
        assert halt_hook.make_up(place, REGION, history) is True
        assert halt_hook.make_up(place, REGION, history) is False
    assert [event["reason"] for event in events(told)] == ["disk"]


def test_a_halt_that_was_not_committed_is_not_told(place: Workplace, told: Path) -> None:
    owner = region_owner(place, REGION)
    owner.claim()
    failpoints.arm(f"{FailPoint.NOTE_BEFORE}:raise")
    with pytest.raises(InjectedFailure):
        owner.halts.halt("disk", trigger=None, operator=None, error=None)
    owner.leave()
    assert (place.history(REGION).halt, events(told)) == (None, [])


@pytest.mark.parametrize(
    "command",
    [("/no/such/program",), (sys.executable, "-c", "import sys; print('no network'); sys.exit(3)")],
    ids=["missing", "fails"],
)
def test_a_command_that_fails_is_logged_and_halts_all_the_same(
    place: Workplace, command: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert interventions.halt(with_command(place, *command), REGION, "disk")["state"] == "HALTED"
    (record,) = [record for record in caplog.records if record.name == halt_hook.logger.name]
    assert record.levelno == logging.WARNING
    assert command[0] in record.getMessage()


def test_a_command_that_hangs_is_killed_with_its_children(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setattr(halt_hook, "LIMIT_SECONDS", 1.0)
    script = f"sleep 600 & echo $! > {pids}; wait"
    assert interventions.halt(with_command(place, "/bin/sh", "-c", script), REGION, "disk")["state"] == "HALTED"
    assert "killed" in caplog.text
    eventually(lambda: _has_ended(int(pids.read_text())))


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_setting_is_a_list_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drainmark.toml").write_text('on_halt = ["notify", "--channel", "ops"]\n')
    monkeypatch.chdir(tmp_path)
    assert load_settings().on_halt == ("notify", "--channel", "ops")
    monkeypatch.setenv("DRAINMARK_ON_HALT", '["page", "me"]')
    assert load_settings().on_halt == ("page", "me")
    assert os.environ["DRAINMARK_ON_HALT"]
