"""The command line at a terminal of 80 columns: the words that TAB offers, and the display before the first group."""

from __future__ import annotations

import io
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn
from waiting import SOON

from drainmark.orchestration.cli import main, runs
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.cli.terminal import completion, options, output
from drainmark.orchestration.runs import part_loop
from drainmark.orchestration.runs.run_loop import RegionLoop
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.registry.queries import SqliteLooks

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="text"))
def lines(scanned):
    return scanned

dm.sink(lines, dm.DeltaAppend("copied"))
"""


class Shell:
    """An interactive bash on its own terminal."""

    def __init__(self, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAINMARK_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        environment = {**kept, "HOME": str(folder), "PATH": path, "PS1": "$ ", "TERM": "xterm", "COLUMNS": "80"}
        self.terminal, end = pty.openpty()
        os.set_blocking(self.terminal, False)
        self.process = subprocess.Popen(
            ["bash", "--norc", "-i"], cwd=folder, env=environment, stdin=end, stdout=end, stderr=end,
            start_new_session=True,
        )  # fmt: skip
        os.close(end)

    def typed(self, text: str, until: str, *, seconds: float = SOON) -> str:
        """Type a text and return the output up to the text `until`.

        Raises:
            AssertionError: the text does not appear in time.
        """
        os.write(self.terminal, text.encode())
        shown, end = "", time.monotonic() + seconds
        while until not in shown.replace("\r\n", "\n"):
            assert time.monotonic() < end, f"{until!r} is not in {shown!r}"
            try:
                shown += os.read(self.terminal, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
        return shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a.txt").write_text("a\n")
    (tmp_path / "copies.py").write_text(APPLICATION)
    (tmp_path / "drainmark.toml").write_text('applications = ["copies.py", "never_run.py"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    return tmp_path


@pytest.fixture
def shell(project: Path) -> Iterator[Shell]:
    if shutil.which("bash") is None or not (Path(sys.executable).parent / "drainmark").exists():
        pytest.skip("needs bash and the installed command")
    opened = Shell(project)
    yield opened
    opened.close()


def offered(words: str, project: Path, **settings: str) -> list[str]:
    """Return the words that the command offers when a shell asks for completions of a line."""
    asked = {"_DRAINMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main"]
    environment = {**os.environ, **asked, **settings}
    ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout.split()


def asking(home: Path | None = None) -> Any:
    """Return a substitute for the context that typer passes to a completion function."""
    return SimpleNamespace(params={"home": str(home) if home else None})


def test_a_shell_completes_as_soon_as_it_is_told_to(shell: Shell) -> None:
    installed = shell.typed("drainmark --install-completion; echo ended with $?\n", "ended with 0")
    assert "Traceback" not in installed
    shell.typed(". ~/.bashrc; echo rea''dy\n", "ready\n")
    shell.typed("drainmark reset co\t", "drainmark reset copies ")
    shell.typed("\x15drainmark run --dry\t", "--dry-run ")


def test_applications_regions_and_tables_are_offered_by_name(project: Path) -> None:
    assert offered("drainmark run ", project) == ["copies", "never_run"]
    assert offered("drainmark reset ", project) == ["copies", "never_run"]
    assert offered("drainmark show ", project) == []
    assert invoke(["scan", "copies"]) == 0
    assert offered("drainmark reset ", project) == ["copies/lines", "never_run"]
    assert offered("drainmark status c", project) == ["copies", "copies/lines"]
    assert offered("drainmark scan --region c", project) == ["copies/lines"]


def test_nothing_is_offered_and_nothing_said_where_the_settings_are_broken(project: Path) -> None:
    (project / "drainmark.toml").write_text("applications = 1\n")
    assert offered("drainmark run ", project) == []


def test_a_look_at_tab_leaves_a_registry_as_it_is(project: Path) -> None:
    """This holds for a registry that a run would migrate, for an empty file, and for a file that is no database."""
    file = project / ".drainmark" / "registry.db"
    file.parent.mkdir()
    file.touch()
    with closing(sqlite3.connect(project / "older.db")) as older:
        older.execute("create table alembic_version (version_num text)")
        older.execute("insert into alembic_version values ('0001')")
        older.commit()
    for content in (b"", (project / "older.db").read_bytes(), b"no database"):
        file.write_bytes(content)
        for offers in (completion.applications, completion.regions, completion.applications_and_regions):
            assert offers(asking()) == ["copies", "never_run"]
        assert completion.tables(asking()) == []
        assert file.read_bytes() == content
        assert [each.name for each in file.parent.iterdir()] == ["registry.db"]


@pytest.mark.parametrize(
    ("name", "url", "opened"),
    [("REGISTRY_URL", "postgresql+psycopg://nowhere/db", "registry"), ("TABLES_URL", "s3://nowhere/x", "tables")],
)
def test_no_server_is_asked_at_tab_and_the_names_of_the_settings_are_there(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, url: str, opened: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Workplace, opened, property(asked.append))
    monkeypatch.setenv(f"DRAINMARK_{name}", url)
    for offers in (completion.applications, completion.regions, completion.applications_and_regions):
        assert offers(asking()) == ["copies", "never_run"]
    assert completion.tables(asking()) == []
    assert asked == []


def test_a_source_of_names_that_fails_keeps_no_other_from_being_asked(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke(["scan", "copies"]) == 0

    def fail(*_: Any) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(Workplace, "known_regions", fail)
        assert completion.regions(asking()) == ["copies/lines", "never_run"]
    monkeypatch.setattr(SqliteLooks, "regions", fail)
    assert completion.applications_and_regions(asking()) == ["copies", "never_run"]


@pytest.mark.parametrize(
    ("words", "place", "line", "verb"),
    [
        ("drainmark run ", 2, "drainmark run ", "run"),
        ("drainmark ru", 1, "drainmark ru", None),
        ("drainmark --home H run ", 4, "drainmark run --home H ", "run"),
        ("drainmark --home 'a b' --json status co more", 5, "drainmark status --home 'a b' --json co more", "status"),
        ("drainmark --home H ru", 3, "drainmark --home H ru", None),
        ("drainmark --home H", 2, "drainmark --home H", None),
        ("drainmark --home=H quarantine li", 3, "drainmark quarantine --home=H li", "quarantine"),
        ("drainmark run 'a", 2, "drainmark run 'a", None),
    ],
)
def test_the_verb_of_a_line_is_found_behind_options_and_put_first(
    words: str, place: int, line: str, verb: str | None
) -> None:
    of_bash = {"COMP_WORDS": words, "COMP_CWORD": str(place)}
    assert main._asked_verb(of_bash) == verb
    assert of_bash["COMP_WORDS"] == line
    of_zsh = {"_TYPER_COMPLETE_ARGS": words.removesuffix(" more")}
    assert main._asked_verb(of_zsh) == verb
    assert of_zsh["_TYPER_COMPLETE_ARGS"] == line.removesuffix(" more")


def test_a_home_in_front_of_the_verb_is_the_one_that_is_asked(project: Path) -> None:
    assert invoke(["scan", "copies", "--home", "other"]) == 0
    assert offered("drainmark --home other reset ", project) == ["copies/lines", "never_run"]
    assert offered("drainmark --home other quarantine li", project) == ["list"]


def test_a_run_shows_what_it_waits_for_until_the_first_group_and_then_its_groups() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Progress(TextColumn("{task.description}"), TextColumn("{task.fields[numbers]}"), console=screen) as bars:
        watch, tell = runs._bars(bars)

        def shown() -> list[str]:
            return [f"{task.description} {task.fields['numbers']}".strip() for task in bars.tasks if task.visible]

        assert shown() == []
        tell("starting Spark (local[*]) …")
        assert shown() == ["starting Spark (local[*])"]
        watch.on_step("claim", {})
        assert shown() == ["processing the first group"]
        report: Any = SimpleNamespace(
            region="a/b", triggers=2, last_id=2, rows_in=10,
            process_seconds=1.0, drain_seconds=1.0, checkpoint_seconds=0.0, publish_seconds=0.0,
        )  # fmt: skip
        watch.on_group(report, 3)
        watch.on_step("claim", {})
        assert shown() == ["a/b 2/5  id 2  5 rows/s"]


def test_a_clock_is_of_what_is_waited_for_now() -> None:
    moments = iter(range(0, 1000, 10))
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    bars = Progress(console=screen, auto_refresh=False, get_time=lambda: float(next(moments)))
    watch, tell = runs._bars(bars)
    for _ in range(5):
        assert bars.tasks[0].elapsed
    tell("starting Spark (local[*]) …")
    assert bars.tasks[0].elapsed == 10.0
    watch.on_step("claim", {})
    assert bars.tasks[0].elapsed == 10.0


def test_nothing_is_waited_for_after_a_batch_and_after_a_pass_without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Progress(console=Console(file=io.StringIO(), force_terminal=True))
    watch, tell = runs._bars(bars)
    tell("starting Spark (local[*]) …")
    batch: Any = SimpleNamespace(line="a/b: 1 file, 2 rows")
    runs._batch(watch, batch)
    assert not bars.tasks[0].visible
    watch.on_step("claim", {})
    assert bars.tasks[0].visible
    loop: Any = SimpleNamespace(watch=watch)
    RegionLoop._groups(loop, SimpleNamespace(groups=lambda: ()))  # type: ignore[arg-type]
    assert not bars.tasks[0].visible
    tell("starting Spark (local[*]) …")
    none = SimpleNamespace(begin=lambda: None, batches=lambda: (), end=lambda: None)
    monkeypatch.setattr(part_loop, "autonomous_run", lambda *_, **__: none)
    nothing: Any = None
    part_loop.PartLoop(
        workplace=nothing, opened=nothing, part=nothing, run_id="r", pause=lambda _: None, on_rest=watch.on_rest
    ).run(seconds=1e-6)
    assert not bars.tasks[0].visible


def progress_on(stream: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show a run's progress on `stream`, as its standard error."""
    engine: Any = SimpleNamespace(tell=output.waiting)
    monkeypatch.setattr(sys, "stderr", stream)
    with runs._progress(engine, {}) as watch:
        engine.tell("starting Spark …")
        watch.on_note("noted")
    stream.flush()


@pytest.mark.seed("NU9")
def test_every_verb_tells_who_waits_that_spark_starts(project: Path) -> None:
    engine = options.Asked(home=None, as_json=False, yes=False).workplace.engine
    assert engine.tell is output.waiting


def test_a_log_has_lines_and_no_bars_whatever_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    log = io.StringIO()
    progress_on(log, monkeypatch)
    assert log.getvalue() == "noted\n"


@pytest.mark.parametrize(("name", "has_bars"), [("dumb", False), ("xterm", True)])
def test_a_terminal_that_cannot_move_its_cursor_has_lines(
    monkeypatch: pytest.MonkeyPatch, name: str, has_bars: bool
) -> None:
    monkeypatch.setenv("TERM", name)
    terminal, end = pty.openpty()
    with os.fdopen(end, "w") as stream:
        progress_on(stream, monkeypatch)
        shown = ""
        while ("noted" if has_bars else "noted\r\n") not in shown:
            shown += os.read(terminal, 65536).decode()
    os.close(terminal)
    if has_bars:
        assert "\x1b[" in shown
    else:
        assert shown.split("\r\n") == ["starting Spark …", "noted", ""]


def test_what_is_said_while_a_jvm_has_standard_error_is_seen_all_the_same(tmp_path: Path) -> None:
    """An example is the message that the run was interrupted, after which no code waits for the JVM."""
    code = (
        "import os, sys; from pathlib import Path; from drainmark.orchestration.cli import main\n"
        "from drainmark.orchestration.cli.terminal import output\n"
        "from drainmark.resources.spark.session import _stderr_to\n"
        "main._keep_errors()\n"
        "with _stderr_to(Path('log')):\n"
        "    output.note('interrupted'); os.write(2, b'noise of the JVM'); sys.stderr.flush()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stderr == "interrupted\n"
    assert (tmp_path / "log").read_text() == "noise of the JVM"
