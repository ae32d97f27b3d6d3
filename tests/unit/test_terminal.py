"""The command line at a terminal of 80 columns: what TAB offers, and what a run shows before its first group."""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from drainmark.orchestration.cli import runs
from drainmark.orchestration.cli.main import invoke

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="text"))
def lines(scanned):
    return scanned

dm.sink(lines, dm.DeltaAppend("copied"))
"""


class Shell:
    """An interactive bash on a terminal of its own."""

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

    def typed(self, text: str, until: str, *, seconds: float = 60.0) -> str:
        """Type text and return all that is shown up to some text.

        Raises:
            AssertionError: it is not shown.
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


def offered(words: str, project: Path) -> list[str]:
    """Return what the command answers when a shell asks how its line could go on."""
    asked = {"_DRAINMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "drainmark.orchestration.cli.main"]
    ended = subprocess.run(
        command, cwd=project, env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    return ended.stdout.split()


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


def test_what_is_said_while_a_jvm_has_standard_error_is_seen_all_the_same(tmp_path: Path) -> None:
    """Such as that the run was interrupted meanwhile, after which nobody waits for that JVM."""
    code = (
        "import os, sys; from pathlib import Path; from drainmark.orchestration.cli import main, output\n"
        "from drainmark.resources.spark.session import _stderr_to\n"
        "main._keep_errors()\n"
        "with _stderr_to(Path('log')):\n"
        "    output.note('interrupted'); os.write(2, b'noise of the JVM'); sys.stderr.flush()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stderr == "interrupted\n"
    assert (tmp_path / "log").read_text() == "noise of the JVM"
