"""The project of the demo: its folder, its commands, and the comparison with plain Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.orchestration.cli.terminal.output import CLOSED_PIPE, short_time

if TYPE_CHECKING:
    from rich.console import Console

    from drainmark.orchestration.cli.demo.logs import Counted


APPLICATION = "log_watch"


_KEPT_VARIABLES = ("DRAINMARK_SPARK_MASTER", "DRAINMARK_SPARK_CONF")


_MARK = "# The project of `drainmark demo`, made anew by each demo.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoProject:
    """The demo's folder: `drainmark.toml`, `inbox/` and its own home.

    Attributes:
        root: made anew by each demo.
        console: standard output.
    """

    root: Path
    console: Console

    @property
    def inbox(self) -> Path:
        return self.root / "inbox"

    @property
    def home(self) -> Path:
        """DRAINMARK_HOME of the children."""
        return self.root / ".drainmark"

    def make(self) -> None:
        """Remove the folder of an earlier demo, and make a new one with an empty inbox.

        Raises:
            UsageError: the folder exists and was not made by a demo.
        """
        marker = self.root / "drainmark.toml"
        if self.root.exists():
            if not marker.is_file() or not marker.read_text().startswith(_MARK):
                raise UsageError(f"{self.root} was not made by a demo", remedy="move it away, or give another --home")
            shutil.rmtree(self.root)
        self.inbox.mkdir(parents=True)
        marker.write_text(_MARK)

    def run(self, *arguments: str, fail_points: str = "") -> int:
        """Show a command, run it in a child process on this terminal, and return its exit code (-9: killed).

        Raises:
            BrokenPipeError: nobody reads the output any more.
        """
        self.console.print(f"\n[bold cyan]$[/] [bold]drainmark {' '.join(arguments)}[/]")
        sys.stdout.flush()
        command, environment = self._command(arguments), _environment(fail_points)
        code = subprocess.run(command, cwd=self.root, env=environment, check=False).returncode
        if code == CLOSED_PIPE:
            raise BrokenPipeError
        return code

    def start(self, *arguments: str, fail_points: str = "") -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own; its standard output and error go to `runs.log`."""
        command, environment = self._command(arguments), _environment(fail_points)
        with (self.root / "runs.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def read(self, *arguments: str) -> Any:
        """Return the JSON output of a command.

        Raises:
            DrainmarkError: the command failed; its error is on the terminal.
        """
        import json

        command, environment = self._command((*arguments, "--json")), _environment()
        found = subprocess.run(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=False
        )
        if found.returncode != 0:
            raise DrainmarkError(f"`drainmark {' '.join(arguments)}` ended with {found.returncode}")
        return json.loads(found.stdout)

    @staticmethod
    def _command(arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments]


def _environment(fail_points: str = "") -> dict[str, str]:
    """Return the children's environment, without the user's own settings, so that the demo uses its own home."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DRAINMARK_") or k in _KEPT_VARIABLES}
    return {**kept, **({"DRAINMARK_FAILPOINTS": fail_points} if fail_points else {})}


def compare(project: DemoProject, counted: Counted, files: int) -> None:
    """Compare sinks and states with the counts of plain Python, and print the result.

    Raises:
        DrainmarkError: they differ.
    """
    states = tally(project.read("history", APPLICATION), "trigger")
    hosts, alerts = project.read("show", "log_watch_hosts"), project.read("show", "log_watch_alerts")
    found: dict[str, Mapping[Any, int]] = {
        "log_watch_failures": tally(project.read("show", "log_watch_failures"), "remote_host"),
        "log_watch_hosts": {row["remote_host"]: row["failures"] for row in hosts},
        "log_watch_alerts": {(row["remote_host"], short_time(row["window_start"])): row["failures"] for row in alerts},
        "consistent states": states,
    }
    wanted: dict[str, Mapping[Any, int]] = {
        "log_watch_failures": dict(counted.failures),
        "log_watch_hosts": dict(counted.failures),
        "log_watch_alerts": dict(counted.alerts),
        "consistent states": dict.fromkeys(states, 1),
    }
    differing = [name for name, content in wanted.items() if found[name] != content]
    if differing or len(states) != files:
        raise DrainmarkError(f"not as plain Python counts: {', '.join(differing) or 'the number of states'}")
    project.console.print(
        f"[bold green]Exactly once:[/] {files} files gave {files} consistent states, and all three tables equal the "
        f"counts of plain Python ({counted.failures.total():,} failures, {len(counted.failures)} hosts, "
        f"{len(counted.alerts)} alerts)."
    )


def headline(console: Console, title: str, subtitle: str) -> None:
    """Print the headline of a part of the demo."""
    console.print()
    console.rule(f"[bold]{title}[/]", align="left", style="cyan")
    console.print(f"[dim]{subtitle}[/]")


def tally(rows: Sequence[Mapping[str, Any]], column: str) -> Counter[str]:
    return Counter(row[column] for row in rows)
