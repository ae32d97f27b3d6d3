"""`drainmark demo`: LogWatch on the logs of some hosts, killed once and recovered before your eyes.

The demo is a project of its own below DRAINMARK_HOME. It runs the command line itself in child processes, so that it
shows the commands that a user would type.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.jobs.printable import printable_cell, shell_word
from drainmark.orchestration.cli.demo.chaos import run_chaos
from drainmark.orchestration.cli.demo.project import APPLICATION, DemoProject, compare, headline, tally
from drainmark.orchestration.cli.terminal.options import Home, Yes

if TYPE_CHECKING:
    from rich.console import Console

    from drainmark.orchestration.cli.demo.logs import Counted

KILLED_AT = "checkpoint.after_commit"
KILLED_GROUP = 2
GROUPS = 4
SHOWN_ATTACKERS = 12
BAR_WIDTH = 8
PLAIN_WIDTH = 100
"""Columns if standard output is not a terminal."""

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
    from rich.markup import escape

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
        run_chaos(project, kills=kills, seed=secrets.randbelow(10_000) if seed is None else seed)
        return
    if logs is None:
        year, lines = _generate(project.inbox), ["generated logs of four hosts under attack"]
    else:
        copied = copy_logs(logs, project.inbox)
        folder = escape(printable_cell(str(logs)))
        year, lines = copied.year, [f"a copy of {copied.files} file(s) of {folder}", *copied.remarks]
    files = sorted(path for path in project.inbox.rglob("*.log"))
    headline(console, "LogWatch", "who tries to break in? One consistent state a file, of three tables at once")
    console.print(f"{len(files)} files, {_megabytes(files)} MB: {'; '.join(lines)}")
    _kill_and_recover(project, year, len(files))
    counted = count_in_python(files, year)
    _result(project, counted, len(files))


def _generate(inbox: Path) -> int:
    from drainmark.jobs.testing.syslog import START, write_syslog

    write_syslog(inbox)
    return START.year


def _kill_and_recover(project: DemoProject, year: int, files: int) -> None:
    """Run until SIGKILL strikes, show the state after it, and run again."""
    group = max(1, -(-files // GROUPS))
    command = ("run", APPLICATION, "--max-group", str(group), "--set", f"year={year}")
    struck = min(KILLED_GROUP, -(-files // group))
    console = project.console

    plan = f"groups of {group} file(s); SIGKILL will strike in group {struck}, between commit and publish"
    headline(console, "1  A run", plan)
    ended = project.run(*command, fail_points=f"{KILLED_AT}:kill:{struck}")
    if ended != -signal.SIGKILL:
        raise DrainmarkError(f"the run was to be killed and ended with {ended}", remedy="see the messages above")
    console.print(f"\n[bold red]Killed[/] by signal {-ended}: no handler ran, nothing was cleaned up. What is left:")
    _expect(project.run("status", APPLICATION))
    console.print(
        "The last group is committed and not published, and the registry still calls its files pending: "
        "the next owner publishes it, and no reader sees half of it meanwhile."
    )

    headline(console, "2  The same command again", "take over, open a new epoch, publish what was committed, go on")
    _expect(project.run(*command))
    _expect(project.run("status", APPLICATION))


def _expect(code: int) -> None:
    if code != 0:
        raise DrainmarkError(f"the command above ended with {code}", remedy="see the messages there")


def _result(project: DemoProject, counted: Counted, files: int) -> None:
    """Show the attackers, compare the sinks with the counts of plain Python, and show the next steps."""
    hosts = project.read("show", "log_watch_hosts")
    headline(project.console, "3  The attackers", "log_watch_hosts, _alerts and _attacks, as they are now")
    attacks = project.read("show", "log_watch_attacks")
    _attackers(project.console, hosts, project.read("show", "log_watch_alerts"), attacks)
    compare(project, counted, files)
    _next_steps(project)


def _attackers(
    console: Console,
    hosts: Sequence[Mapping[str, Any]],
    alerts: Sequence[Mapping[str, Any]],
    attacks: Sequence[Mapping[str, Any]],
) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    bursts = tally(alerts, "remote_host")
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
            escape(printable_cell(row["remote_host"])),
            f"{row['failures']:,}",
            bar,
            str(burst or ""),
            _minute(row["first_seen"]),
            _minute(row["last_seen"]),
            escape(printable_cell(_got_in(row["remote_host"], attacks))),
        )
    console.print(table)
    if len(ranked) > SHOWN_ATTACKERS:
        console.print(f"... and {len(ranked) - SHOWN_ATTACKERS} more. ", end="")
    kinds = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in sorted(tally(attacks, "kind").items()))
    console.print(f"A burst: ten failures or more in five minutes. Attacks, in the order of the logs: {kinds or 0}.")


def _got_in(remote_host: str, attacks: Sequence[Mapping[str, Any]]) -> str:
    """Return the accounts and hosts, `user@host`, at which a remote host logged in after failures."""
    mine = (row for row in attacks if row["remote_host"] == remote_host)
    return ", ".join(sorted({f"{row['user']}@{row['host']}" for row in mine if row["user"] is not None}))


def _next_steps(project: DemoProject) -> None:
    from rich.markup import escape

    program = "drainmark"
    if Path(sys.argv[0]).name == program and shutil.which(program) is None:
        program = _shorter(Path(sys.argv[0]), project.root)
    folder = _shorter(project.root, Path.cwd())
    headline(project.console, "Go on", f"the demo is a project of its own in {escape(printable_cell(folder))}")
    place = escape(f"cd {shell_word(folder)} && {shell_word(program)}")
    for arguments, meaning in (
        ("dev", "opens Dagster's UI; drop a *.log file into inbox/ and watch the sensor take it"),
        (f"history {APPLICATION} --last 5", "one consistent state a file"),
        (f"reset {APPLICATION} --by 4", "what it would take to go back four files (add --yes to do it)"),
    ):
        project.console.print(f"  [dim]# {meaning}[/]\n  ({place} {arguments})", soft_wrap=True)


def _shorter(path: Path, start: Path) -> str:
    """Return a path in its shorter form: relative to a folder, or absolute."""
    return min(os.path.relpath(path, start), str(path.absolute()), key=len)


def _minute(moment: str | None) -> str:
    return "unknown" if moment is None else f"{dt.datetime.fromisoformat(moment):%b %d %H:%M}"


def _megabytes(files: Sequence[Path]) -> str:
    return f"{sum(path.stat().st_size for path in files) / 1e6:,.1f}"
