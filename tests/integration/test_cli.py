"""The verbs on real tables: a home that was run once is copied for each test. The rows are made without Spark."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from followed import follow
from hand_runs import NoSpark, engine, gives, without_spark
from harness import settle
from waiting import SOON, eventually

from drainmark.jobs.errors import Owned
from drainmark.orchestration.cli import runs
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_assets.instance import INSTANCE_FILE, instance_at
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import read_at
from drainmark.resources.settings import Settings

__all__ = ["engine", "without_spark"]

REGION = "word_count/lines"
TEXTS = {"a.txt": "to be or not to be\n", "b.txt": "to do\n", "c.txt": "be done\n", "d.txt": "do be do\n"}
AFTER = {
    1: {"to": 2, "be": 2, "or": 1, "not": 1},
    2: {"to": 3, "be": 2, "or": 1, "not": 1, "do": 1},
    3: {"to": 3, "be": 3, "or": 1, "not": 1, "do": 1, "done": 1},
    4: {"to": 3, "be": 4, "or": 1, "not": 1, "do": 3, "done": 1},
}
STATUS_KEYS = {
    *("region", "state", "halt_reason", "committed_sequence_id", "published_sequence_id", "epoch"),
    *("pending_triggers", "consecutive_reset_attempts", "max_consecutive_reset_attempts", "last_error", "owner"),
    *("is_idle", "rewind_horizon", "home", "alignment", "stages", "channels", "remedies"),
    *("inflight_batches", "inflight_bytes"),
}
HISTORY_KEYS = {
    *("kind", "sequence_id", "epoch", "trigger", "trigger_kind", "group", "rows_in", "committed_at"),
    *("process_seconds", "drain_seconds", "checkpoint_seconds", "withdrawn"),
}


@gives("word string")
def words(lines: Any) -> Any:
    return [{"word": word} for row in lines for word in re.findall("[a-z]+", row["value"].lower())]


BY_HAND = {"words": words}


@dataclass(frozen=True)
class Project:
    """A home with its inbox, and the command line on it."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def inbox(self) -> Path:
        return (self.root / "inbox").resolve()

    def call(self, *arguments: Any, code: int = 0) -> Any:
        """Run a verb with --json and return the parsed output; check the exit code."""
        self.capsys.readouterr()
        found = invoke([*map(str, arguments), "--home", str(self.home), "--json"])
        captured = self.capsys.readouterr()
        assert found == code, captured.err
        return json.loads(captured.out) if captured.out else None

    def refused(self, *arguments: Any, code: int = 2) -> dict[str, Any]:
        """Run a verb that fails without a result and return its error object."""
        self.capsys.readouterr()
        found = invoke([*map(str, arguments), "--home", str(self.home), "--json"])
        captured = self.capsys.readouterr()
        assert (found, captured.out) == (code, ""), captured.err
        error: dict[str, Any] = json.loads(captured.err.splitlines()[-1])["error"]
        return error

    def status(self) -> dict[str, Any]:
        entry: dict[str, Any] = self.call("status", "word_count")[0]
        return entry

    def history(self, *arguments: Any) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.call("history", "word_count", *arguments)
        return entries

    def counts(self, *arguments: Any) -> dict[str, int]:
        return {row["word"]: row["count"] for row in self.call("show", "word_counts", *arguments)}

    def run(self, *arguments: Any, code: int = 0) -> Any:
        return self.call("run", "word_count", "--input", self.inbox, *arguments, code=code)

    def workplace(self) -> Workplace:
        return Workplace(Settings(home=self.home, project_root=self.root))

    def write(self, name: str, text: str) -> Path:
        path = self.inbox / name
        path.write_text(text)
        settle(self.inbox)
        return path


@pytest.fixture(scope="module")
def ran_once(engine: NoSpark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a home in which four files were committed: 1 and 2 as one group, then 3, then 4."""
    root = tmp_path_factory.mktemp("cli")
    (root / "inbox").mkdir()
    for names in (("a.txt", "b.txt"), ("c.txt",), ("d.txt",)):
        for name in names:
            (root / "inbox" / name).write_text(TEXTS[name])
        settle(root / "inbox")
        options = ["--input", str(root / "inbox"), "--home", str(root / "home"), "--json"]
        assert invoke(["run", "word_count", *options]) == 0
    return root


@pytest.fixture
def project(ran_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    """Return a copy of that home on the same inbox; the inbox must keep the files that were scanned."""
    root = tmp_path / "project"
    shutil.copytree(ran_once / "home", root / "home", symlinks=True)
    (root / "inbox").symlink_to(ran_once / "inbox")
    return Project(root, capsys)


@pytest.fixture
def fresh(engine: NoSpark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    """Return an empty home and inbox."""
    (tmp_path / "inbox").mkdir()
    return Project(tmp_path, capsys)


# --- run, status, history, show -----------------------------------------------------------------------------------


def test_a_run_whose_reader_goes_hands_the_region_over_and_the_next_one_goes_on(fresh: Project) -> None:
    texts = {f"{number}.txt": f"to be {number}\n" for number in range(10, 16)}
    for name, text in texts.items():
        fresh.write(name, text)
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", "word_count", "--max-group", "1"]
    command += ["--input", str(fresh.inbox), "--home", str(fresh.home)]
    piped = f"{{ {shlex.join(command)} 2>&1; echo $? >&3; }} 3>{shlex.quote(str(fresh.root / 'code'))} | head -1"
    ended = subprocess.run(
        ["sh", "-c", piped], cwd=fresh.root, capture_output=True, text=True, timeout=SOON, check=True
    )  # fmt: skip
    assert (fresh.root / "code").read_text() == "141\n"
    assert (len(ended.stdout.splitlines()), ended.stderr) == (1, "")
    status, committed = fresh.status(), len(fresh.history())
    assert (status["state"], status["owner"], status["consecutive_reset_attempts"]) == ("STARTED", None, 0)
    assert 1 <= committed <= len(texts)
    assert (fresh.run()["regions"][0]["triggers"] or 0) == len(texts) - committed
    assert fresh.counts()["be"] == len(texts)


def test_a_command_that_nobody_reads_is_carried_out_to_its_end(project: Project) -> None:
    settings = project.workplace().settings
    settings.dagster_home.mkdir(parents=True)
    (settings.dagster_home / INSTANCE_FILE).touch()
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "halt", "word_count", "--reason", "a test"]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [*command, "--home", str(project.home)],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        cwd=project.root,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SOON,
        check=False,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")
    assert project.status()["state"] == "HALTED"
    with instance_at(settings.dagster_home) as instance:
        assert instance.all_asset_keys(), "Dagster is told after the outcome is printed"


def test_a_log_has_a_word_about_a_slow_start(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.write("a.txt", TEXTS["a.txt"])
    monkeypatch.setattr(runs, "_PATIENCE_SECONDS", 0.0)
    assert invoke(["run", "word_count", "--input", str(fresh.inbox), "--home", str(fresh.home)]) == 0
    said = fresh.capsys.readouterr().err
    assert said.index("after 0 s: ") < said.index("committed 1")


@pytest.mark.seed("NU4")
def test_status_and_history_have_every_field_of_the_contract(project: Project) -> None:
    status = project.status()
    assert set(status) >= STATUS_KEYS
    assert (status["state"], status["committed_sequence_id"], status["published_sequence_id"]) == ("STARTED", 4, 4)
    assert (status["pending_triggers"], status["owner"], status["epoch"]) == (0, None, 3)

    entries = project.history()
    assert all(set(entry) >= HISTORY_KEYS for entry in entries)
    assert [entry["sequence_id"] for entry in entries] == [1, 2, 3, 4]
    assert [entry["group"] for entry in entries] == [[1, 2], [1, 2], [3, 3], [4, 4]]
    assert [Path(entry["trigger"]).name for entry in entries] == list(TEXTS)
    assert entries[0]["committed_at"] == entries[1]["committed_at"] < entries[2]["committed_at"]
    assert [entry["sequence_id"] for entry in project.history("--last", 2)] == [3, 4]
    seconds = [(e["process_seconds"], e["drain_seconds"], e["checkpoint_seconds"]) for e in entries]
    assert seconds[0] == seconds[1], "of one group"
    assert all(each and each > 0 for of_group in seconds for each in of_group)


def test_show_and_read_answer_for_every_state(project: Project) -> None:
    assert project.counts() == AFTER[4]
    for number, counts in AFTER.items():
        assert project.counts("--at", number) == counts
        table = read_at("word_count", "word_counts", at=number, home=str(project.home))
        assert dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True)) == counts
    assert project.counts("--at", 0) == {}
    assert "nearest id is 4" in project.refused("show", "word_counts", "--at", 9)["remedy"]
    assert "word_counts" in project.refused("show", "word_count")["remedy"]


def test_nothing_to_do_is_no_claim(project: Project) -> None:
    summary = project.call("run", "word_count", "--input", project.inbox)
    assert summary["regions"][0]["outcome"] == "nothing to do"
    assert project.status()["epoch"] == 3


def test_looking_does_not_need_a_terminal_or_a_registry(project: Project) -> None:
    before = project.history("--all")
    (project.home / "registry.db").unlink()
    assert project.status()["pending_triggers"] is None
    assert project.history("--all") == before
    assert not (project.home / "registry.db").exists()
    for verb in ("status", "history word_count", "show word_counts", "apps", "graph word_count"):
        assert invoke([*verb.split(), "--home", str(project.home)]) == 0


# --- reset and rewind ---------------------------------------------------------------------------------------------


def test_without_a_yes_the_plan_is_shown_and_nothing_changes(project: Project) -> None:
    before = (project.status(), project.history("--all"))

    plan = project.call("reset", "word_count", "--to", 1, code=2)

    assert (plan["to"], plan["withdrawn"], plan["gone"], plan["changed"]) == (1, [2, 3, 4], [], [])
    assert [Path(uri).name for uri in plan["pending"]] == ["b.txt", "c.txt", "d.txt"]
    assert plan["rows"] == {
        "state/word_count/words_by_word": 6,
        "lake/word_counts": 4,
        "lake/word_count_quarantine": 0,
    }
    assert (project.status(), project.history("--all")) == before
    assert project.call("reset", "word_count", code=2)["to"] is None
    assert project.status()["epoch"] == before[0]["epoch"]


@pytest.mark.parametrize(
    ("target", "number"),
    [
        (("--to", "1"), 1),
        (("--to-file", "b.txt"), 2),
        (("--by", "1"), 3),
        (("--by", "4"), 0),
        (("--to-initial",), 0),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, tuple) else str(value),
)
@pytest.mark.seed("H4")
def test_a_rewind_takes_every_table_back(project: Project, target: tuple[str, ...], number: int) -> None:
    done = project.call("rewind", "word_count", *target, "--yes")

    assert (done["to"], done["committed_sequence_id"], done["requeued"]) == (number, number, 4 - number)
    assert project.counts() == AFTER.get(number, {})
    status = project.status()
    assert (status["state"], status["pending_triggers"], status["committed_sequence_id"]) == (
        "STARTED", 4 - number, number,
    )  # fmt: skip
    everything = project.history("--all")
    assert [entry["sequence_id"] for entry in everything if entry["withdrawn"]] == list(range(number + 1, 5))
    assert [(entry["to"], entry["sequence_id"]) for entry in everything if entry["kind"] == "rewind"] == [(number, 5)]


def test_a_time_means_the_last_state_by_then(project: Project) -> None:
    second, third = (project.history()[place]["committed_at"] for place in (1, 2))
    assert project.call("reset", "word_count", "--to-time", second, code=2)["to"] == 2
    assert project.call("reset", "word_count", "--to-time", third, code=2)["to"] == 3
    shown = second[:19].replace("T", " ")
    last = max(entry["sequence_id"] for entry in project.history() if entry["committed_at"][:19] <= second[:19])
    assert project.call("reset", "word_count", "--to-time", shown, code=2)["to"] == last, "as history shows it"
    assert project.call("reset", "word_count", "--to-time", "2001-01-01", code=2)["to"] == 0


def test_a_wrong_target_is_refused_and_the_nearest_named(project: Project) -> None:
    assert "--to 4" in project.refused("reset", "word_count", "--to", 7, "--yes")["remedy"]
    project.call("reset", "word_count", "--to", 2, "--yes")
    refused = project.refused("reset", "word_count", "--to", 3, "--yes")
    assert (refused["id"], "--to 2" in refused["remedy"]) == ("REWIND_REFUSED", True)
    assert project.refused("reset", "word_count", "--to-file", "d.txt", "--yes")["id"] == "REWIND_REFUSED"
    assert project.refused("reset", "word_count", "--to", 1, "--by", 1, "--yes")["id"] == "USAGE"
    assert project.refused("reset", "word_count", "--by", 9, "--yes")["id"] == "REWIND_REFUSED"


def test_a_bare_reset_opens_an_epoch_and_keeps_what_is_committed(project: Project) -> None:
    done = project.call("reset", "word_count", "--yes")
    assert (done["committed_sequence_id"], done["epoch"]) == (4, 4)
    assert project.counts() == AFTER[4]


def test_lost_inputs_need_a_word_and_then_the_rest_is_processed(fresh: Project) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        fresh.write(name, TEXTS[name])
    fresh.run()
    (fresh.inbox / "b.txt").unlink()
    fresh.write("c.txt", "quite another text\n")

    plan = fresh.call("reset", "word_count", "--to", 1, code=2)
    assert [Path(uri).name for uri in (*plan["gone"], *plan["changed"])] == ["b.txt", "c.txt"]
    assert fresh.refused("reset", "word_count", "--to", 1, "--yes")["id"] == "REWIND_REFUSED"
    assert fresh.status()["committed_sequence_id"] == 3

    fresh.call("reset", "word_count", "--to", 1, "--yes", "--accept-loss")
    fresh.run()
    assert fresh.counts() == {**AFTER[1], "quite": 1, "another": 1, "text": 1}
    assert fresh.status()["pending_triggers"] == 0


def test_the_new_content_of_a_changed_file_is_taken_by_the_command_of_the_halt(fresh: Project) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        fresh.write(name, TEXTS[name])
    fresh.run()
    fresh.write("b.txt", "to be done\n")
    halted = fresh.refused("run", "word_count", "--input", fresh.inbox, code=3)
    anew = f"drainmark reset {REGION} --to 1 --accept-loss --yes"
    assert fresh.status()["remedies"] == [f"drainmark resume {REGION}", anew]
    follow(halted["remedy"], "reset", fresh.home)
    fresh.run()
    assert fresh.counts() == {"to": 3, "be": 4, "or": 1, "not": 1, "done": 2}


# --- skip, halt, resume -------------------------------------------------------------------------------------------


def test_halt_and_resume(project: Project) -> None:
    assert project.call("halt", "word_count", "--reason", "lunch")["state"] == "HALTED"
    status = project.call("status", "--check", code=3)[0]
    assert (status["state"], status["halt_reason"]) == ("HALTED", "lunch")
    project.capsys.readouterr()
    assert invoke(["status", "--home", str(project.home)]) == 0
    assert f"{REGION} is halted: lunch\n" in project.capsys.readouterr().out
    assert project.refused("run", "word_count", "--input", project.inbox, code=3)["id"] == "HALTED"
    assert project.call("resume", "word_count", "--reason", "full")["was_halted"] is True
    assert project.call("status", "--check")[0]["state"] == "STARTED"
    events = [(entry["kind"], entry["reason"]) for entry in project.history("--all")][-2:]
    assert events == [("halt", "lunch"), ("resume", "full")]


def test_a_skipped_file_leaves_an_empty_state(project: Project) -> None:
    project.call("reset", "word_count", "--to", 2, "--yes")
    done = project.call("skip", "word_count", "--file", "c.txt", "--reason", "nonsense")

    assert done["sequence_id"] == 6
    assert project.counts() == AFTER[2]
    assert (project.status()["committed_sequence_id"], project.status()["pending_triggers"]) == (6, 1)
    assert project.history()[-1]["sequence_id"] == 2, "a skip is no state of the default list"
    assert project.refused("skip", "word_count", "--file", "c.txt", "--reason", "again")["id"] == "USAGE"
    assert project.refused("skip", "word_count", "--file", "a.txt", "--reason", "late")["id"] == "USAGE"
    assert "--to 2" in project.refused("reset", "word_count", "--to", 6, "--yes")["remedy"]


def test_an_owned_region_is_left_alone(project: Project) -> None:
    place = project.workplace()
    with owning(region_owner(place, REGION)):
        assert project.status()["owner"]["pid"] == os.getpid()
        for verb in (
            ("reset", "word_count", "--yes"),
            ("resume", "word_count"),
            ("reset", "word_count", "--to", "1", "--yes"),
        ):
            assert project.refused(*verb, code=4)["id"] == "OWNED"
        with pytest.raises(Owned):
            interventions.halt(place, REGION, "now", patience_seconds=0.3)
    assert project.status()["owner"] is None
    place.registry.close()


POISON = """
from __future__ import annotations

import drainmark as dm

@dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=2)
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt"))
def lines(scanned):
    return scanned

@dm.functor
def numbers(lines) -> "n string":
    if any(row["value"] == "bad" for row in lines):
        raise ValueError("poison")
    return [{"n": row["value"]} for row in lines]

dm.sink(numbers, dm.DeltaAppend("numbers"))
"""


@pytest.mark.seed("E14", "E18", "H31")
def test_a_poison_file_halts_the_region_and_can_be_skipped(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINMARK_RETRY_BACKOFF_SECONDS", "0.05")
    app = fresh.root / "poison.py"
    app.write_text(POISON)
    for name, text in {"1.txt": "one", "2.txt": "bad", "3.txt": "three"}.items():
        fresh.write(name, text)
    run = ("run", app, "--input", fresh.inbox)

    failed = fresh.refused(*run, "--attempts", 1, code=1)
    assert failed["id"] == "OPERATOR_FAILED"
    status = fresh.call("status")[0]
    assert (status["state"], status["pending_triggers"]) == ("UNHEALTHY", 2)
    assert status["committed_sequence_id"] > 1, "the ids of the failed group of three are gone for good"
    assert status["max_consecutive_reset_attempts"] == 2, "known from the run's note"
    assert status["last_error"]["trigger"].endswith("2.txt")

    assert fresh.refused(*run, code=3)["id"] == "HALTED"
    assert fresh.call("status", "--check", code=3)[0]["state"] == "HALTED"
    assert fresh.call("skip", "poison", "--file", fresh.inbox / "2.txt", "--reason", "bad")["is_resumed"] is True
    assert fresh.call(*run)["regions"][0]["triggers"] == 1
    assert [row["n"] for row in fresh.call("show", "numbers")] == ["one", "three"]


@pytest.mark.seed("I4")
def test_a_committed_file_that_changes_halts_the_region(fresh: Project) -> None:
    fresh.write("a.txt", TEXTS["a.txt"])
    fresh.run()
    fresh.write("a.txt", "something else\n")
    error = fresh.refused("run", "word_count", "--input", fresh.inbox, code=3)
    assert "a.txt was committed" in error["message"]
    assert fresh.call("status", "--check", code=3)[0]["state"] == "HALTED"


# --- backfill, doctor ---------------------------------------------------------------------------------------------


def test_a_backfill_queues_each_identity_once(project: Project, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    for name in ("old.dat", "older.dat"):
        (archive / name).write_text("be")
    settle(archive)
    os.utime(archive / "older.dat", (1, 1))
    glob = f"{archive}/*.dat"

    assert project.call("backfill", "word_count", "--input", glob, "--dry-run")["queued"] == 2
    assert project.call("backfill", "word_count", "--input", glob, "--since", "1999-01-01")["queued"] == 1
    again = project.call("backfill", "word_count", "--input", archive)
    assert (again["matched"], again["queued"], again["pending"]) == (2, 1, 1)
    known = Path(project.history()[0]["trigger"]).parent
    committed = project.call("backfill", "word_count", "--input", f"{known}/*.txt")
    assert (committed["matched"], committed["queued"], committed["committed"]) == (4, 0, 4)

    project.run()
    assert project.counts() == {**AFTER[4], "be": AFTER[4]["be"] + 2}


@pytest.mark.seed("I4")
def test_a_changed_file_of_a_region_that_keeps_state_is_backfilled_behind_a_rewind(fresh: Project) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        fresh.write(name, TEXTS[name])
    fresh.run()
    fresh.write("b.txt", "to be done\n")
    refused = fresh.refused("backfill", "word_count", "--input", fresh.inbox, code=2)
    assert f"{fresh.inbox / 'b.txt'} was committed as 2" in refused["message"]
    assert fresh.status()["pending_triggers"] == 0
    follow(refused["remedy"], "reset", fresh.home)
    fresh.call("backfill", "word_count", "--input", fresh.inbox)
    fresh.run()
    assert fresh.counts() == {"to": 3, "be": 4, "or": 1, "not": 1, "done": 2}


@pytest.mark.seed("H27")
def test_a_lost_registry_is_rebuilt_and_nothing_is_processed_twice(project: Project) -> None:
    inbox = project.inbox
    project.call("reset", "word_count", "--to", 2, "--yes")
    project.call("skip", "word_count", "--file", "c.txt", "--reason", "nonsense")
    before = (project.status(), project.history("--all"))
    for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
        (project.home / name).unlink(missing_ok=True)

    assert project.refused("run", "word_count", "--input", inbox, code=1)["id"] == "REGISTRY_LOST"
    assert project.call("doctor", "--quick", code=1)["problems"]
    repaired = project.call("doctor", "--repair", "--quick", "--input", inbox)
    assert (repaired["problems"], repaired["repaired"][0]["triggers"]["committed"]) == ([], 2)

    assert (project.status(), project.history("--all")) == before
    project.call("run", "word_count", "--input", inbox)
    assert [Path(entry["trigger"]).name for entry in project.history()] == ["a.txt", "b.txt", "d.txt"]
    assert project.counts() == {"to": 3, "be": 3, "or": 1, "not": 1, "do": 3}


def test_a_damaged_registry_is_set_aside(project: Project) -> None:
    before = project.history()
    for name in ("registry.db-wal", "registry.db-shm"):
        (project.home / name).unlink(missing_ok=True)
    (project.home / "registry.db").write_bytes(b"no database at all, by no means" * 100)
    assert project.status()["pending_triggers"] is None
    project.call("doctor", "--repair", "--quick", "--input", project.inbox)
    assert (project.status()["pending_triggers"], project.history()) == (0, before)
    assert list(project.home.glob("registry.db.damaged-*"))


def test_doctor_says_what_is_installed(project: Project) -> None:
    found = project.call("doctor", "--quick")
    assert found["home"] == str(project.home)
    assert all(found["versions"][name] for name in ("python", "java", "spark", "delta", "dagster"))
    assert found["regions"] == [{"region": REGION, "epoch": 3, "registry_epoch": 3, "is_code_found": True}]


# --- the process --------------------------------------------------------------------------------------------------


def test_a_dry_run_commits_nothing(fresh: Project) -> None:
    fresh.write("a.txt", TEXTS["a.txt"])
    found = fresh.run("--dry-run")["regions"][0]
    assert (found["pending_triggers"], [Path(uri).name for uri in found["next"]]) == (1, ["a.txt"])
    assert found["vectorises"]["words"] == {"vectorises": True, "reason": None}
    assert not (fresh.home / "checkpoints").exists()
    assert fresh.status()["pending_triggers"] == 0


@pytest.mark.seed("I1")
def test_a_file_that_still_settles_is_waited_for(fresh: Project) -> None:
    (fresh.inbox / "a.txt").write_text("just written\n")
    assert fresh.run()["regions"][0]["triggers"] == 1


@pytest.mark.slow
def test_a_signal_ends_the_run_with_130_and_costs_no_attempt(fresh: Project) -> None:
    fresh.write("a.txt", TEXTS["a.txt"])
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", "run", "word_count", "--for", "300", "--json"]
    options = ["--input", str(fresh.inbox), "--home", str(fresh.home)]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: fresh.status()["committed_sequence_id"] == 1)
    fresh.write("b.txt", TEXTS["b.txt"])
    eventually(lambda: fresh.status()["committed_sequence_id"] == 2)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON)

    assert (process.returncode, out) == (130, "")
    assert json.loads(err.splitlines()[-1])["error"]["id"] == "INTERRUPTED"
    status = fresh.status()
    assert (status["state"], status["owner"], status["consecutive_reset_attempts"]) == ("STARTED", None, 0)
    assert status["epoch"] == 1, "one claim served both files"
