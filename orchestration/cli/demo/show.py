"""`drainmark demo`: LogWatch on the logs of some hosts, killed once and recovered before your eyes.

The demo is a project of its own below DRAINMARK_HOME, and all that happens in it is done by the command line itself,
in child processes: what you see is what you would type.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.orchestration.cli.options import Home, Yes

if TYPE_CHECKING:
    from rich.console import Console

    from drainmark.orchestration.cli.demo.logs import Counted

APPLICATION = "log_watch"
KILLED_AT = "checkpoint.after_commit"
KILLED_GROUP = 2
GROUPS = 4
SHOWN_ATTACKERS = 12
BAR_WIDTH = 8
PLAIN_WIDTH = 100
"""Columns where standard output is no terminal."""
_KEPT_VARIABLES = ("DRAINMARK_SPARK_MASTER", "DRAINMARK_SPARK_CONF")
_MARK = "# The project of `drainmark demo`, made anew by each demo.\n"

DEFAULT_KILLS = 10
_LOGS_HELP = "A folder with syslog files; the demo works on a copy. Default: generated logs of four hosts."


def demo(
    *,
    logs: Annotated[Path | None, typer.Option("--input", metavar="DIR", help=_LOGS_HELP, show_default=False)] = None,
    chaos: Annotated[bool, typer.Option("--chaos", help="Kill it at random again and again instead of once.")] = False,
    kills: Annotated[int, typer.Option("--kills", min=1, help="With --chaos: how often.")] = DEFAULT_KILLS,
    seed: Annotated[
        int | None, typer.Option("--seed", help="With --chaos: repeats moments and logs.", show_default=False)
    ] = None,
    home: Home = None,
    yes: Yes = False,
) -> None:
    """Run LogWatch, kill it in the middle, let it recover, and compare the result with plain Python."""
    from rich.console import Console

    from drainmark.orchestration.cli.demo.logs import copy_logs, count_in_python
    from drainmark.resources.settings import load_settings
    from drainmark.resources.spark.session import check_java

    check_java()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    project = DemoProject(root=load_settings(home=home).home / "demo", console=console)
    if chaos and logs is not None:
        raise UsageError("--chaos runs on generated logs: they arrive while it goes on", remedy="leave out --input")
    project.make()
    if chaos:
        from drainmark.orchestration.cli.demo.chaos import run_chaos

        run_chaos(project, kills=kills, seed=secrets.randbelow(10_000) if seed is None else seed)
        return
    if logs is None:
        year, lines = _generate(project.inbox), ["generated logs of four hosts under attack"]
    else:
        copied = copy_logs(logs, project.inbox)
        year, lines = copied.year, [f"a copy of {copied.files} file(s) of {logs}", *copied.remarks]
    files = sorted(path for path in project.inbox.rglob("*.log"))
    headline(console, "LogWatch", "who tries to break in? One consistent state a file, of three tables at once")
    console.print(f"{len(files)} files, {_megabytes(files)} MB: {'; '.join(lines)}")
    _kill_and_recover(project, year, len(files))
    counted = count_in_python(files, year)
    _result(project, counted, len(files))


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
        """Remove what an earlier demo left, and begin with an empty inbox.

        Raises:
            UsageError: the folder holds something else.
        """
        marker = self.root / "drainmark.toml"
        if self.root.exists():
            if not marker.is_file() or not marker.read_text().startswith(_MARK):
                raise UsageError(f"{self.root} was not made by a demo", remedy="move it away, or give another --home")
            shutil.rmtree(self.root)
        self.inbox.mkdir(parents=True)
        marker.write_text(_MARK)

    def run(self, *arguments: str, fail_points: str = "") -> int:
        """Show a command, run it in a child process on this terminal, and return how it ended (-9: killed)."""
        self.console.print(f"\n[bold cyan]$[/] [bold]drainmark {' '.join(arguments)}[/]")
        sys.stdout.flush()
        command, environment = self._command(arguments), _environment(fail_points)
        return subprocess.run(command, cwd=self.root, env=environment, check=False).returncode

    def start(self, *arguments: str, fail_points: str = "") -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own, its standard output and error in `runs.log`."""
        command, environment = self._command(arguments), _environment(fail_points)
        with (self.root / "runs.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def read(self, *arguments: str) -> Any:
        """Return what a command prints as JSON.

        Raises:
            DrainmarkError: it failed; its own words are on the terminal.
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
    """Return the children's environment: the user's own home and registry are no business of the demo."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DRAINMARK_") or k in _KEPT_VARIABLES}
    return {**kept, **({"DRAINMARK_FAILPOINTS": fail_points} if fail_points else {})}


def _generate(inbox: Path) -> int:
    from drainmark.jobs.testing.syslog import START, write_syslog

    write_syslog(inbox)
    return START.year


def _kill_and_recover(project: DemoProject, year: int, files: int) -> None:
    """Run until SIGKILL strikes, show what that left, and run again."""
    group = max(1, -(-files // GROUPS))
    command = ("run", APPLICATION, "--max-group", str(group), "--set", f"year={year}")
    struck = min(KILLED_GROUP, -(-files // group))
    console = project.console

    plan = f"groups of {group} file(s); SIGKILL will strike in group {struck}, between commit and publish"
    headline(console, "1  A run", plan)
    ended = project.run(*command, fail_points=f"{KILLED_AT}:kill:{struck}")
    if ended != -signal.SIGKILL:
        raise DrainmarkError(f"the run was to be killed and ended with {ended}", remedy="see what it says above")
    console.print(f"\n[bold red]Killed[/] by signal {-ended}: no handler ran, nothing was cleaned up. What is left:")
    _expect(project.run("status", APPLICATION))
    console.print(
        "The last group is committed and not published, and the registry still calls its files pending: "
        "the next owner finishes what it finds, and nobody reads half of it meanwhile."
    )

    headline(console, "2  The same command again", "take over, open a new epoch, publish what was committed, go on")
    _expect(project.run(*command))
    _expect(project.run("status", APPLICATION))


def _expect(code: int) -> None:
    if code != 0:
        raise DrainmarkError(f"the command above ended with {code}", remedy="see what it says there")


def _result(project: DemoProject, counted: Counted, files: int) -> None:
    """Show the attackers, compare the sinks with what plain Python counts, and say how to go on."""
    hosts = project.read("show", "log_watch_hosts")
    headline(project.console, "3  The attackers", "log_watch_hosts, _alerts and _attacks, as they are now")
    attacks = project.read("show", "log_watch_attacks")
    _attackers(project.console, hosts, project.read("show", "log_watch_alerts"), attacks)
    compare(project, counted, files)
    _next_steps(project)


def compare(project: DemoProject, counted: Counted, files: int) -> None:
    """Compare sinks and states with what plain Python counts in so many files, and say so.

    Raises:
        DrainmarkError: they differ.
    """
    states = _tally(project.read("history", APPLICATION), "trigger")
    hosts, alerts = project.read("show", "log_watch_hosts"), project.read("show", "log_watch_alerts")
    found: dict[str, Mapping[Any, int]] = {
        "log_watch_failures": _tally(project.read("show", "log_watch_failures"), "remote_host"),
        "log_watch_hosts": {row["remote_host"]: row["failures"] for row in hosts},
        "log_watch_alerts": {(row["remote_host"], _second(row["window_start"])): row["failures"] for row in alerts},
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
        raise DrainmarkError(f"not what plain Python counts: {', '.join(differing) or 'the number of states'}")
    project.console.print(
        f"[bold green]Exactly once:[/] {files} files gave {files} consistent states, and all three tables equal what "
        f"plain Python counts in the same files ({counted.failures.total():,} failures, {len(counted.failures)} hosts, "
        f"{len(counted.alerts)} alerts)."
    )


def _attackers(
    console: Console,
    hosts: Sequence[Mapping[str, Any]],
    alerts: Sequence[Mapping[str, Any]],
    attacks: Sequence[Mapping[str, Any]],
) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    bursts = _tally(alerts, "remote_host")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("remote host", no_wrap=True)
    table.add_column("failures", justify="right", style="bold", no_wrap=True)
    table.add_column("", no_wrap=True, style="red")
    table.add_column("bursts", justify="right", no_wrap=True)
    table.add_column("first seen", no_wrap=True)
    table.add_column("last seen", no_wrap=True)
    table.add_column("got in as", no_wrap=True, style="bold red")
    ranked = sorted(hosts, key=lambda row: (-row["failures"], row["remote_host"]))
    most = ranked[0]["failures"] if ranked else 1
    for row in ranked[:SHOWN_ATTACKERS]:
        bar = "█" * max(1, round(BAR_WIDTH * row["failures"] / most))
        burst = bursts.get(row["remote_host"], 0)
        table.add_row(
            escape(row["remote_host"]), f"{row['failures']:,}", bar, str(burst or ""),
            _minute(row["first_seen"]), _minute(row["last_seen"]), escape(_got_in(row["remote_host"], attacks)),
        )  # fmt: skip
    console.print(table)
    if len(ranked) > SHOWN_ATTACKERS:
        console.print(f"... and {len(ranked) - SHOWN_ATTACKERS} more. ", end="")
    kinds = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in sorted(_tally(attacks, "kind").items()))
    console.print(f"A burst: ten failures or more in five minutes. Attacks, in the order of the logs: {kinds or 0}.")


def _got_in(remote_host: str, attacks: Sequence[Mapping[str, Any]]) -> str:
    """Return as whom a remote host logged in after failures, and where."""
    mine = (row for row in attacks if row["remote_host"] == remote_host)
    return ", ".join(sorted({f"{row['user']}@{row['host']}" for row in mine if row["user"] is not None}))


def _next_steps(project: DemoProject) -> None:
    program = "drainmark"
    if Path(sys.argv[0]).name == program and shutil.which(program) is None:
        program = _shorter(Path(sys.argv[0]), project.root)
    folder = _shorter(project.root, Path.cwd())
    headline(project.console, "Go on", f"the demo is a project of its own in {folder}")
    for arguments, meaning in (
        ("dev", "opens Dagster's UI; drop a *.log file into inbox/ and watch the sensor take it"),
        (f"history {APPLICATION} --last 5", "one consistent state a file"),
        (f"reset {APPLICATION} --by 4", "what it would take to go back four files (add --yes to do it)"),
    ):
        project.console.print(f"  [dim]# {meaning}[/]\n  (cd {folder} && {program} {arguments})", soft_wrap=True)


def _shorter(path: Path, start: Path) -> str:
    """Return a path as one would type it from a folder."""
    return min(os.path.relpath(path, start), str(path.absolute()), key=len)


def headline(console: Console, title: str, subtitle: str) -> None:
    """Begin a part of what is shown."""
    console.print()
    console.rule(f"[bold]{title}[/]", align="left", style="cyan")
    console.print(f"[dim]{subtitle}[/]")


def _tally(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row[column]] = counts.get(row[column], 0) + 1
    return counts


def _second(moment: str | None) -> str | None:
    """Return a time of the command line's JSON as `2005-06-14 15:16:01`."""
    return None if moment is None else moment[:19].replace("T", " ")


def _minute(moment: str | None) -> str:
    return "unknown" if moment is None else f"{dt.datetime.fromisoformat(moment):%b %d %H:%M}"


def _megabytes(files: Sequence[Path]) -> str:
    return f"{sum(path.stat().st_size for path in files) / 1e6:,.1f}"
