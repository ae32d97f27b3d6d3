"""The command line as scripts see it: verbs, exit codes, the content of each stream, imported modules."""

from __future__ import annotations

import datetime as dt
import gc
import inspect
import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from typer import Exit
from typer.main import get_command
from waiting import SOON

from drainmark.jobs import errors, failpoints, world
from drainmark.orchestration.cli import main
from drainmark.orchestration.cli import project as project_verbs
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.cli.templates import Kind
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import EXAMPLES
from drainmark.orchestration.workplace.workplace import drainmark_version
from drainmark.resources import settings as settings_module

VERBS = (
    *("init", "demo", "dev", "apps", "graph", "run", "scan", "status", "history", "show"),
    *("reset", "rewind", "halt", "skip", "resume", "backfill", "doctor"),
    *("trace", "metrics"),
)
HEAVY = ("dagster", "pyspark", "boto3", "sqlmodel", "alembic")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def child(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the real command in a separate process."""
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRAINMARK_")}
    return subprocess.run(
        command, cwd=cwd, env={**clean, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.seed("H34")
def test_a_process_ends_with_the_code_of_the_error_and_keeps_its_streams_apart(tmp_path: Path) -> None:
    ended = child("--json", "status", cwd=tmp_path)

    assert ended.returncode == 2
    assert ended.stdout == ""
    error = json.loads(ended.stderr)["error"]
    assert error["id"] == "HOME_NOT_FOUND"
    assert set(error) == {"id", "message", "operator", "location", "remedy"}


def test_json_is_json_also_where_a_number_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit([{"a": math.nan, "b": [math.inf, -math.inf, 1.5]}])
    written = capsys.readouterr().out
    assert json.loads(written, parse_constant=pytest.fail) == [{"a": "NaN", "b": ["Infinity", "-Infinity", 1.5]}]


def test_a_time_has_a_zone_in_json_only_where_it_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    moment = dt.datetime(2026, 3, 1, 10, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    output.emit([moment, moment.replace(tzinfo=None), moment.date()])
    assert json.loads(capsys.readouterr().out) == ["2026-03-01T09:00:00Z", "2026-03-01T10:00:00", "2026-03-01"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("apps",),
        ("status", "log_watch"),
        ("graph", "log_watch", "--json"),
        pytest.param(("run", "--help"), marks=pytest.mark.slow),
        pytest.param(("status",), marks=pytest.mark.slow),
        pytest.param(("graph", "enron_ds", "--format", "mermaid"), marks=pytest.mark.slow),
        pytest.param(("history", "word_count"), marks=pytest.mark.slow),
        pytest.param(("metrics",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_looking_imports_neither_dagster_nor_spark_nor_boto3(arguments: Sequence[str], tmp_path: Path) -> None:
    program = (
        "import sys; from drainmark.orchestration.cli.main import invoke; code = invoke(sys.argv[1:]); "
        f"sys.stderr.write(repr((code, [name for name in {HEAVY!r} if name in sys.modules])))"
    )
    clean = {**os.environ, "DRAINMARK_HOME": str(tmp_path / "home")}
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=clean, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert ended.stderr.rpartition("\n")[2] == "(0, [])"
    assert not (tmp_path / "home").exists(), "looking creates nothing"


def test_every_verb_of_the_design_is_there_and_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    known = {command.name for command in main.command_line().registered_commands}
    assert known >= set(VERBS) - {"demo"}
    for verb in sorted(known & set(VERBS)):
        assert invoke([verb, "--help"]) == 0
        assert "Usage" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out == f"drainmark {drainmark_version()}\n"


@pytest.mark.parametrize(("verb", "example"), [(verb, line) for verb, lines in EXAMPLES.items() for line in lines])
def test_the_examples_of_the_help_are_understood(verb: str, example: str) -> None:
    words = shlex.split(example.partition(" > ")[0])
    names = verb.split()
    assert words[: 1 + len(names)] == ["drainmark", *names]
    command: Any = get_command(main.command_line(names[0]))
    for name in names:
        command = command.commands[name]
    command.make_context(verb, words[1 + len(names) :])


def test_the_help_of_every_verb_ends_with_examples() -> None:
    def verbs(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                if command.invoke_without_command:
                    yield f"{above}{name}", command
                yield from verbs(command, f"{above}{name} ")
            elif not command.hidden:
                yield f"{above}{name}", command

    found = dict(verbs(get_command(main.command_line())))
    assert set(found) == set(EXAMPLES)
    assert [name for name, command in found.items() if EXAMPLES[name][0] not in (command.epilog or "")] == []


def test_a_shell_is_told_what_could_follow(tmp_path: Path) -> None:
    asked = {"_DRAINMARK_COMPLETE": "complete_bash", "COMP_WORDS": "drainmark st", "COMP_CWORD": "1"}
    ended = child(cwd=tmp_path, **asked)
    assert (ended.returncode, ended.stdout.split()) == (0, ["status"]), ended.stderr


@pytest.mark.parametrize(
    ("arguments", "collects"),
    [
        (["status"], False), (["--json", "--home", "h", "show", "counts"], False),
        (["run", "status"], True), (["--yes", "push", "graph", "rows"], True), ([], True),
    ],
)  # fmt: skip
def test_only_a_look_does_without_collections(
    arguments: list[str], collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of hours must collect garbage, also if its application has the name of a verb that only looks."""
    monkeypatch.setattr(sys, "argv", ["drainmark", *arguments])
    monkeypatch.setattr(main, "invoke", lambda _: int(gc.isenabled()))
    monkeypatch.setattr(os, "_exit", sys.exit)
    try:
        with pytest.raises(SystemExit) as ended:
            main.main()
    finally:
        gc.enable()
    assert ended.value.code == int(collects)


def test_every_verb_takes_home_json_and_yes() -> None:
    verbs = {command.name: command.callback for command in main.command_line().registered_commands}
    assert {"status", "reset", "rewind"} <= set(verbs)
    for name in set(verbs) - {"demo"}:
        assert {"home", "as_json", "yes"} <= set(inspect.signature(verbs[name]).parameters), name


@pytest.mark.parametrize("verb", [None, "status", "rewind", "quarantine", "--help", "nonsense"])
def test_a_verb_alone_is_told_as_among_all(
    verb: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb starts without the modules of the others, with no visible difference."""
    asked = ([] if verb is None else [verb], [verb or "--help"], [verb or "status", "--no-such"])
    alone = [(invoke(arguments), *capsys.readouterr()) for arguments in asked]
    every = main.command_line()
    monkeypatch.setattr(main, "command_line", lambda _: every)
    assert alone == [(invoke(arguments), *capsys.readouterr()) for arguments in asked]


def test_options_of_every_verb_may_stand_before_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--home", str(home), "--json", "--yes", "status"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert invoke([f"--home={home}", "status", "word_count", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["home"] == str(home)


@pytest.mark.parametrize(
    ("arguments", "identity"),
    [
        (["nonsense"], "USAGE"),
        (["run"], "USAGE"),
        (["run", "word_count", "--no-such-option"], "USAGE"),
        (["run", "word_cuont"], "UNKNOWN_NAME"),
        (["run", "word_count", "--input", "nowhere=/tmp"], "UNKNOWN_NAME"),
        (["run", "word_count", "--set", "year"], "USAGE"),
        (["run", "word_count", "--set", "no_such=1"], "USAGE"),
        (["graph", "word_count", "--format", "svg"], "USAGE"),
        (["history", "no_such_region"], "UNKNOWN_NAME"),
        (["show", "no_such_table"], "UNKNOWN_NAME"),
        (["reset", "word_count", "--to", "1", "--yes"], "USAGE"),
        (["reset", "word_count", "--to-time", "yesterday", "--yes"], "USAGE"),
        (["skip", "word_count", "--file", "x.txt", "--reason", "r"], "UNKNOWN_NAME"),
        (["skip", "word_count", "--file", "x.txt"], "USAGE"),
        (["trace", "word_count"], "USAGE"),
        (["trace", "word_count", "--file", "x.txt"], "USAGE"),
        (["metrics", "no_such_region"], "UNKNOWN_NAME"),
        (["backfill", "word_count", "--input", "/no/such/*"], "USAGE"),
        (["push", "no/such"], "UNKNOWN_NAME"),
        (["push", "word_count"], "USAGE"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_done_is_refused_with_2(
    arguments: list[str], identity: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([*arguments, "--home", str(home), "--json"]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["error"]["id"] == identity
    assert not (home / "checkpoints").exists()


def test_a_table_that_is_declared_and_not_written_yet_is_not_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text(PUSHED)
    (tmp_path / "drainmark.toml").write_text('applications = ["app.py"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    for name, said in (
        ("pushed", "app/rows, which writes it, has not run → drainmark run app.py"),
        ("psuhed", "no region writes a table 'psuhed' → did you mean 'pushed'?"),
    ):
        assert invoke(["show", name]) == 2
        assert said in capsys.readouterr().err


def test_a_scan_counts_what_a_run_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text(PUSHED)
    monkeypatch.chdir(tmp_path)
    assert invoke(["scan", "app.py", "--home", str(tmp_path / "home")]) == 0
    assert "app/rows: 0 slices seen" in capsys.readouterr().out


def test_a_parameter_without_a_default_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sensor's run, `graph` and `scan` have no value for it."""
    wanting = "class Of(dm.Params):\n    year: int\n\n@dm.consistent"
    (tmp_path / "app.py").write_text(
        PUSHED.replace("@dm.consistent", wanting).replace("(scanned)", "(scanned, of: Of)")
    )
    for verb in ("graph", "run"):
        assert (
            invoke([verb, str(tmp_path / "app.py"), "--json", *([] if verb == "graph" else ["--set", "year=1"])]) == 2
        )
        error = json.loads(capsys.readouterr().err)["error"]
        assert "Of.year" in error["message"]
        assert error["location"] == f"{tmp_path / 'app.py'}:3"


def test_only_a_glob_that_a_shell_has_opened_is_to_be_quoted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, is_opened in ((["a.csv", "b.csv"], True), (["zz*"], False)):
        assert invoke(["backfill", "word_count", "--input", *given, "--home", str(home)]) == 2
        assert ("quote the glob" in capsys.readouterr().err) is is_opened


def test_a_fail_point_that_is_none_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    ended = child("status", "--json", cwd=tmp_path, DRAINMARK_FAILPOINTS="publish.before_comit:kill")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "publish.before_commit" in json.loads(ended.stderr)["error"]["message"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nosuch.before:kill", "publish.after_commit"), ("publish.after_commit", "lost_reply"),
        ("publish.after_commit:explode", "lost_reply"), ("publish.after_commit:hang=long", "hang=SECONDS"),
        ("publish.after_commit:kill:0", "'0'"), ("publish.after_commit:kill:second", "'second'"),
    ],
)  # fmt: skip
def test_a_wrong_fail_point_arms_nothing_and_says_what_is_legal(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        failpoints.arm(f"drain.before:raise,{text}")
    world.pass_point(failpoints.FailPoint.DRAIN)


PUSHED = """import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.ReplayableStart(schema="n bigint"))
def rows(scanned):
    return scanned

dm.sink(rows, dm.DeltaAppend("pushed"))
"""


def test_a_push_of_no_rows_is_of_a_region_that_takes_some(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text(PUSHED)
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "drainmark.toml").write_text('applications = ["app.py"]\n')
    with chdir(tmp_path):
        assert invoke(["push", "app", "none.jsonl", "--json", "--home", str(home)]) == 0
    assert json.loads(capsys.readouterr().out) == {"region": "app/rows", "rows": 0, "segment": None}


def test_an_error_for_people_names_the_remedy(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["graph", "log_wach", "--home", str(home)]) == 2
    assert "did you mean 'log_watch'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (errors.OperatorFailed("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.Halted("x"), 3),
        (errors.Owned("x"), 4),
        (errors.Fenced("x"), 4),
        (errors.Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
        (Exit(3), 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**flags: Any) -> Any:
        raise raised

    monkeypatch.setattr(settings_module, "load_settings", fail)
    assert invoke(["status", "--json"]) == code

    captured = capsys.readouterr()
    assert captured.out == ""
    if not isinstance(raised, Exit):
        assert set(json.loads(captured.err)["error"]) == {"id", "message", "operator", "location", "remedy"}


def test_all_broken_rules_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import drainmark as dm\n"
        "@dm.consistent(trigger='operator-driven')\n"
        "@dm.source(dm.DirectoryScan(path='inbox', format='csv'))\n"
        "def lines(scanned): return scanned\n"
        "@dm.functor\n"
        "def words(lnies): return lnies\n"
    )
    assert invoke(["graph", str(broken), "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["id"] == "DECLARATION"
    assert len(error["violations"]) >= 2
    assert all("broken.py:" in violation["location"] for violation in error["violations"])


SOURCE = """import drainmark as dm
from drainmark import F

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="k string, n int"))
def events(scanned):
    return scanned

"""


@pytest.mark.seed("NU6")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("dm.aggregate(events, keys=['k'], values={'n': dm.persentile('n', 0.5)})", "persentile"),
        ("dm.aggregate(events, keys=['k'], values={'n': F.sum('n')})", "dm.sum("),
        ("dm.aggregate(events, keyz=['k'], values={'n': dm.sum('n')})", "keyz"),
        ("dm.sink(lambda events: events, dm.DeltaAppend('t'))", "@dm.functor"),
        ("dm.sink(events, dm.DeltaAppend('t')); dm.sink(events, dm.DeltaAppend('t'), name='y')", "table of its own"),
    ],
)
def test_what_is_declared_wrongly_is_told_once_with_its_line(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(SOURCE + line)
    assert invoke(["graph", str(file)]) != 0
    told = capsys.readouterr().err
    assert told.count(said) == 1, told
    assert f"{file}:9" in told
    assert "Traceback" not in told
    assert len(told.splitlines()) <= 3


def test_an_application_that_exits_while_it_is_read_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text("import sys\nsys.exit(0)\n")
    assert invoke(["graph", str(tmp_path / "app.py"), "--json"]) == 1
    assert "SystemExit" in json.loads(capsys.readouterr().err)["error"]["message"]


def test_a_region_that_never_ran_is_started(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    assert invoke(["status", "word_count", "--json", "--check", "--home", str(home)]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry == {
        "region": "word_count/lines",
        "state": "STARTED",
        "halt_reason": None,
        "committed_sequence_id": 0,
        "published_sequence_id": 0,
        "lags": {},
        "unregistered": [],
        "epoch": 0,
        "pending_triggers": None,
        "consecutive_reset_attempts": 0,
        "max_consecutive_reset_attempts": 5,
        "last_error": None,
        "owner": None,
        "lost_owner": None,
        "begun": None,
        "folder": None,
        "is_idle": False,
        "split": None,
        "dropped_ticks": None,
        "alignment": None,
        "stages": [],
        "channels": [],
        "inflight_batches": 0,
        "inflight_bytes": 0,
        "reads": [],
        "read_by": [],
        "has_left": False,
        "rewind_horizon": 0,
        "remedies": [],
        "home": str(home),
    }


def test_graph_knows_three_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["graph", "word_count"]) == 0
    assert "word_count/lines" in capsys.readouterr().out
    assert invoke(["graph", "word_count", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regions"][0]["region"] == "word_count/lines"
    assert invoke(["graph", "word_count", "--format", "mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart")


@pytest.mark.seed("NU5")
def test_apps_lists_the_shipped_ones_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    assert invoke(["apps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert invoke(["apps", "--examples", "--json"]) == 0
    found = {entry["application"]: entry["regions"] for entry in json.loads(capsys.readouterr().out)}
    assert found["word_count"] == ["word_count/lines"]
    assert set(found) >= {"log_watch", "enron_ds"}


def test_init_writes_a_project_that_compiles_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project"
    assert invoke(["init", str(project)]) == 0
    found = sorted(path.name for path in project.rglob("*") if path.is_file())
    assert found == ["app.py", "drainmark.toml", "hamlet.txt", "test_app.py"]

    monkeypatch.chdir(project)
    assert "  pip install 'drainmark[test]'\n  pytest\n" in capsys.readouterr().out
    assert invoke(["apps", "--json"]) == 0
    assert [entry["regions"] for entry in json.loads(capsys.readouterr().out)] == [["app/lines"]]
    for name in ("app", "app/lines", "app.py", "app.py/lines"):
        assert invoke(["graph", name]) == 0, "an application is called the same by every verb"
        assert "app/lines" in capsys.readouterr().out
    compile((project / "tests" / "test_app.py").read_text(), "test_app.py", "exec")

    (project / "app.py").write_text("mine")
    assert invoke(["init", str(project)]) == 2
    assert (project / "app.py").read_text() == "mine"
    capsys.readouterr()
    for path in ("app.py", "app.py/below"):
        assert invoke(["init", path, "--json"]) == 2, "a file"
        assert "app.py is a file" in json.loads(capsys.readouterr().err)["error"]["message"]
    (project / "other").mkdir()
    (project / "other" / "tests").touch()
    assert invoke(["init", "other", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["id"] == "USAGE"


def test_what_init_says_to_type_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "my shop; it's new"
    assert invoke(["init", str(project)]) == 0
    told = capsys.readouterr().out
    assert [shlex.split(line) for line in told.splitlines() if line.startswith("  cd ")] == [["cd", str(project)]]


@pytest.mark.parametrize("options", [["--left"], ["--left", "--examples"]])
def test_regions_without_code_are_those_of_a_home(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a home nobody knows of any, so it is not said that all have their code."""
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert invoke(["apps", *options]) == 2
    assert capsys.readouterr().out == ""


def environment_of_dev(options: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment that `drainmark dev` gives to Dagster, which is not started."""
    return begun_dev(options, monkeypatch)[0]


def begun_dev(options: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], Any]:
    """Return what Dagster, which is not started, has of `drainmark dev`: the environment, and its handler of SIGINT."""
    started: list[tuple[dict[str, str], Any]] = []
    kept = dict(os.environ)
    monkeypatch.setattr(os, "execve", lambda *given: started.append((given[2], signal.getsignal(signal.SIGINT))))
    monkeypatch.setattr(project_verbs, "_serve_pages", lambda port, environment: "http://127.0.0.1:3001")
    monkeypatch.setenv("DRAINMARK_SPARK", "in-process")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what its script starts
    try:
        assert invoke(["dev", *options]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
        for name in set(os.environ) - set(kept):
            del os.environ[name]
    return started[0]


@pytest.mark.seed("NU9")
def test_dev_ends_at_sigterm_though_a_script_started_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster handles SIGTERM as SIGINT; `test_dev.py` shows it with Dagster."""
    assert begun_dev(["--home", str(home)], monkeypatch)[1] is signal.SIG_DFL


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:3000"), ("0.0.0.0", "127.0.0.1:3000"),  # noqa: S104 - nothing is bound

        ("::", "[::1]:3000"), ("::1", "[::1]:3000"), ("shop", "shop:3000"),
    ],
)  # fmt: skip
def test_dev_says_an_address_that_can_be_reached(
    host: str, address: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = environment_of_dev(["--host", host, "--home", str(home)], monkeypatch)
    assert environment["DRAINMARK_DAGSTER_URL"] == f"http://{address}"
    assert f"http://{address}  (" in capsys.readouterr().err


def test_dev_gives_dagster_values_of_variables_that_had_files(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("DRAINMARK_HOME", str(home)), ("DRAINMARK_DAGSTER_URL", "https://shop.example")):
        (tmp_path / name).write_text(value)
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(f"{name}_FILE", str(tmp_path / name))
    environment = environment_of_dev([], monkeypatch)
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = settings_module.load_settings()
    assert (settings.home, settings.dagster_url) == (home, "https://shop.example")


@pytest.mark.parametrize("kind", Kind)
def test_what_init_writes_by_a_template_compiles(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["init", str(tmp_path / "project"), "--template", kind, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["files"]
    monkeypatch.chdir(tmp_path / "project")
    assert {path.as_posix() for path in Path().rglob("*") if path.is_file()} == set(written)
    assert invoke(["graph", "app.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regions"]


def test_a_cluster_that_is_not_filled_in_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["init", str(tmp_path), "--template", "kafka"]) == 0
    monkeypatch.chdir(tmp_path)
    assert invoke(["scan", "app.py"]) == 2
    assert "add [kafka.main] to drainmark.toml" in capsys.readouterr().err


def test_a_bucket_that_is_not_filled_in_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    s3_server: str,
    s3_credentials: None,
) -> None:
    assert invoke(["init", str(tmp_path), "--template", "s3"]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAINMARK_S3_ENDPOINT_URL", s3_server)
    assert invoke(["scan", "app.py"]) == 1
    assert "s3://FILL-IN/orders/" in capsys.readouterr().err


def test_the_templates_are_named_by_help_completion_and_refusal(tmp_path: Path) -> None:
    asked = {"_DRAINMARK_COMPLETE": "complete_bash", "COMP_WORDS": "drainmark init shop --template ", "COMP_CWORD": "4"}
    assert child(cwd=tmp_path, **asked).stdout.split() == list(Kind)
    assert all(kind in child("init", "--help", cwd=tmp_path).stdout for kind in Kind)
    refused = child("init", "shop", "--template", "nosuch", "--json", cwd=tmp_path)
    assert refused.returncode == 2
    error = json.loads(refused.stderr)["error"]
    assert error["id"] == "USAGE"
    assert all(kind in error["message"] for kind in Kind)
    assert not (tmp_path / "shop").exists()


def test_nothing_but_the_result_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    with output.result_only(is_wanted=True):
        os.write(1, b"noise of the JVM\n")
    output.emit({"a": 1})
    sys.stdout.flush()

    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"a": 1}
    assert captured.err == "noise of the JVM\n"


def test_a_log_line_is_no_command_for_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"import logging\nlogging.getLogger('theirs').warning({HOSTILE!r})\n")
    told = child("graph", "app.py", cwd=tmp_path).stderr
    assert "\\x1b[2J" in told
    assert obeyed(told) == []


HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\rback\x08 \u202egpj.exe\u202c \ud800 [red]bold[/red] a\u200db"


def obeyed(text: str) -> list[str]:
    """Return the characters of an output that a terminal would obey."""
    return [found for found in text if found not in "\n\t" and not found.isprintable() and found != "\u200d"]


@pytest.mark.seed("RT12")
def test_names_and_values_are_no_commands_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(f"one\ntwo {HOSTILE}")
    output.note(HOSTILE)
    output.table([f"column {HOSTILE}"], [[f"cell\nline {HOSTILE}"], [1]])
    error = errors.UsageError(f"message {HOSTILE}", operator=HOSTILE, remedy=f"remedy {HOSTILE}")
    output.complain(error, as_json=False)
    ended = capsys.readouterr()
    assert obeyed(ended.out + ended.err) == []
    assert ended.out.count("\\x1b[2J") == 3
    assert ended.out.count("[red]bold[/red] a\u200db") == 3, "no markup either, and what writing needs is kept"
    assert "cell\\nline" in ended.out
    assert "one\ntwo" in ended.out
    assert "\\u202egpj.exe" in ended.err
    assert obeyed(str(error)) == [], "as Dagster's log and a traceback show it"


@pytest.mark.seed("RT12")
def test_json_says_the_same_in_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"name": HOSTILE, "tag": "\U000e0041", "text": "größe 🦆\n"}
    output.emit(given)
    output.complain(errors.UsageError(HOSTILE), as_json=True)
    ended = capsys.readouterr()
    assert obeyed(ended.out + ended.err) == []
    assert json.loads(ended.out) == given
    assert json.loads(ended.err)["error"]["message"] == HOSTILE
    assert "größe 🦆" in ended.out


@pytest.mark.seed("RT12")
def test_what_nobody_expected_is_told_without_commands_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(verb: str | None) -> Any:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(main, "command_line", fail)
    assert invoke(["status"]) == 1
    assert obeyed(capsys.readouterr().err) == []


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["operators"], ["operators", "--json"]])
def test_a_reader_that_goes_ends_the_process_in_silence(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=SOON, check=False
    )  # fmt: skip
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_streams_that_are_closed_before_the_start_are_the_null_device(tmp_path: Path, closed: str) -> None:
    line = f'exec "{sys.executable}" -m drainmark.orchestration.cli.main operators --json {closed}'
    ended = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=SOON, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


PRINTS = """
import sys, threading
from drainmark.jobs.errors import Interrupted
from drainmark.orchestration.cli.terminal import output
stopped = threading.Event()
with output.while_heard(stopped.set):
    for number in range(9):
        print(number)  # as a function of the author may
        output.note("a group is committed")
        if stopped.is_set():
            raise Interrupted("stopped")
"""


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_run_whose_reader_goes_is_stopped_and_sees_no_error(tmp_path: Path, closed: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writing}
    command = [sys.executable, "-u", "-c", PRINTS]  # Python ends with 120 if it cannot flush what it kept
    ended = subprocess.run(command, cwd=tmp_path, text=True, timeout=SOON, check=False, **streams)
    os.close(writing)
    assert ended.returncode == 1, "the traceback of BrokenPipeError, which the command line turns into 141"
    if closed == "stdout":
        assert "BrokenPipeError" in ended.stderr
        assert "Interrupted" not in ended.stderr
    else:
        assert ended.stdout == "0\n"


def test_the_application_may_be_left_out_where_the_project_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["graph"]) == 2, "here is no project"
    assert invoke(["graph", "nothing"]) == 2
    assert "log_watch" not in capsys.readouterr().err, "the examples are for those who ask for them"
    assert invoke(["init"]) == 0
    capsys.readouterr()
    assert invoke(["scan", "--json"]) == 0
    assert [found["region"] for found in json.loads(capsys.readouterr().out)] == ["app/lines"]
    for name, said in (("ap", "did you mean 'app'"), ("nothing", "known: app\n")):
        assert invoke(["status", name]) == 2
        assert said in capsys.readouterr().err
    for named, said in (('["app.py", "other.py"]', "app, other"), ("[]", "names no application")):
        (tmp_path / "drainmark.toml").write_text(f"applications = {named}\n")
        assert invoke(["run"]) == 2
        assert said in capsys.readouterr().err
