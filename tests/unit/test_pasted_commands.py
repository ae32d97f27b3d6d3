"""Commands in remedies name files of any name; pasted into a shell, they do what they say, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from by_hand import HandFed

from drainmark.jobs import failpoints
from drainmark.jobs.errors import UsageError
from drainmark.jobs.errors.environment import ErasedInput
from drainmark.jobs.printable import printable
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.regions.plan_diff import StateChange
from drainmark.jobs.runtime.messages import halt_text, skip_command
from drainmark.jobs.scan.folder import uri_of
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.cli.plan import remedy_for
from drainmark.orchestration.inspection.status import status_of
from drainmark.orchestration.verbs.interventions import to_skip
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

NAMES = (
    "a'b",
    '"; touch done; "',
    "$(touch done)",
    "`touch done`",
    "a\nb",
    "\x1b[2J\u202e",
    "REGION.csv",
    "-h",
    "!x",
    "☃ ~",
)
NO_TEXT = os.fsdecode(b"\xff.csv")


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield HandFed(place, tmp_path / "inbox")
    place.registry.close()


def pasted(command: str, folder: Path) -> list[str]:
    """Return the words after `drainmark`, as a shell gives them to it."""
    script = f'drainmark() {{ printf "%s\\0" "$@"; }}; {command}'
    told = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=True)
    assert os.listdir(folder) == []
    return os.fsdecode(told.stdout).split("\0")[:-1]


@pytest.mark.parametrize("name", [*NAMES, NO_TEXT])
def test_the_command_that_passes_a_file_finds_it(fed: HandFed, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    fed.write(name, ["1"])
    uri = uri_of(str(fed.inbox / name))
    fed.add(name)
    with fed.owning() as owner:
        told = f"{name} is lost"
        error = {"message": told, "remedy": f"put {name} back"}
        owner.halts.halt(told, trigger=uri, operator=None, error=error)
    said = halt_text(fed.region, fed.history())
    assert f"put {name} back; then: drainmark resume {fed.region}, or: " in said.replace(printable(name), name)
    command = status_of(fed.workplace, fed.region)["remedies"][-1]
    assert command in said, "the text says it in a form that can be pasted, too"
    words = pasted(command, tmp_path / "empty")
    assert words[:2] == ["skip", fed.region]
    assert invoke([*words, "--home", str(fed.workplace.home)]) == 0
    (trigger,) = fed.workplace.registry.triggers.by_uri(fed.region, uri)
    assert trigger.status is TriggerStatus.SKIPPED


def test_the_whole_path_of_one_of_several_files_can_be_pasted(fed: HandFed, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("$(touch done)", "b"):
        (fed.inbox / folder).mkdir(parents=True)
        fed.write(f"{folder}/x.csv", ["1"])
    fed.add("$(touch done)/x.csv", "b/x.csv")
    with pytest.raises(UsageError) as caught:
        to_skip(fed.workplace, fed.region, ["x.csv"], fed.history())
    path = (caught.value.remedy or "").removeprefix("give the whole path, e.g. ")
    (word,) = pasted(f"drainmark {path}", tmp_path / "empty")
    assert [*to_skip(fed.workplace, fed.region, [word], fed.history())[0]] == [word]


def test_the_command_that_passes_over_several_files_goes_on_after_a_failure(fed: HandFed, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    names = ("1.csv", "2.csv", "3.csv")
    uris = [uri_of(str(fed.inbox / name)) for name in names]
    for name in names:
        fed.write(name, ["1"])
    fed.add(*names)
    command = skip_command(fed.region, *uris[:2])
    with fed.owning() as owner:
        error = {"id": ErasedInput.id, "message": "erased", "commands": [command]}
        owner.halts.halt("erased", trigger=uris[0], operator=None, error=error)
    words = [*pasted(command, tmp_path / "empty"), "--home", str(fed.workplace.home)]
    failpoints.arm("checkpoint.before_commit:raise:2")
    try:
        assert invoke(words) != 0
    finally:
        failpoints.arm("")
    assert fed.history().halt is not None
    assert command in status_of(fed.workplace, fed.region)["remedies"]
    assert invoke(words) == 0, "what is skipped already is passed over"
    history = fed.history()
    assert history.halt is None
    assert [row.trigger_uri for row in history.states.values()] == uris[:2]
    assert fed.workplace.registry.pending_count(fed.region) == 1
    assert invoke(words) == 2, "nothing is left to do"
    assert fed.history().committed_id == history.committed_id


def test_the_path_of_an_application_is_one_word(tmp_path: Path) -> None:
    table = SimpleNamespace(operator="totals", why="")
    operators = [SimpleNamespace(operator="totals", state=StateChange.INCOMPATIBLE)]
    region = SimpleNamespace(region="app/start", operators=operators, full=())
    command = remedy_for(table, region, "/srv/my $(touch done)/app.py").partition(",")[0]  # type: ignore[arg-type]
    assert pasted(command, tmp_path) == ["plan", "/srv/my $(touch done)/app.py", "--drop-state", "totals"]
