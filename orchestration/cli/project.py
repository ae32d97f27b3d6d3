"""Verbs around a project: init, dev, doctor, sparks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drainmark.jobs.errors import UsageError
from drainmark.jobs.printable import shell_word
from drainmark.orchestration.cli.templates import TEMPLATES, Kind
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.options import Asked, Inputs, nothing_changed

if TYPE_CHECKING:
    from drainmark.orchestration.verbs.table_repair import RegionRepair

_TO_TEST = ("pip install 'drainmark[test]'", "pytest")
_SHIPPED = Path(__file__).parents[1] / "shipped"


def init(
    asked: Asked,
    *,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder of the new project, made if it is missing; the current folder by default.",
            show_default=False,
        ),
    ] = Path(),
    template: Annotated[
        Kind,
        typer.Option(
            "--template",
            help="words: a word count. logs: access logs of a web server. orders: CSV, with rows that are wrong."
            " kafka: records of a topic, of a cluster that you fill in. s3: JSON of a bucket that you fill in."
            " cdc: the changes of a database's table, from Debezium.",
        ),
    ] = Kind.WORDS,
) -> None:
    """Write a new project: a small application, input to try it on, tests that run it, and drainmark.toml."""
    files = TEMPLATES[template].files
    in_the_way = next((part for part in (path, *path.parents) if part.exists() and not part.is_dir()), None)
    if in_the_way is not None:
        raise UsageError(f"{in_the_way} is a file, no folder", remedy="give another folder")
    there = [name for name in files if (path / name).exists()]
    if there:
        raise UsageError(f"{path / there[0]} exists already", remedy="give another folder")
    try:
        for name, text in files.items():
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        msg = f"{error.filename or path} cannot be written: {error.strerror}"
        raise UsageError(msg, remedy="give another folder") from error
    if asked.as_json:
        output.emit({"path": str(path.absolute()), "files": list(files)})
        return
    output.say(f"wrote {', '.join(files)} below {path.absolute() if path == Path() else path}. Try:")
    has_tests = any(name.startswith("tests/") for name in files)
    for step in (
        *([f"cd {shell_word(str(path))}"] if path != Path() else []),
        *TEMPLATES[template].first_steps,
        *(_TO_TEST if has_tests else ()),
    ):
        output.say(f"  {step}")


def dev(
    asked: Asked,
    *,
    port: Annotated[int, typer.Option("--port", help="Port of the web page.")] = 3000,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Start Dagster's web page and daemon on this project; files are processed as they arrive.

    The pages of regions (`drainmark report`) are served on the next port, to read, and to this machine alone.
    """
    from drainmark.orchestration.workplace.declaration import served_applications
    from drainmark.orchestration.workplace.spark_choice import OWNER_VARIABLE, make_engine
    from drainmark.resources.variables import with_values

    workplace = asked.workplace
    if not served_applications(workplace.settings, workplace):
        output.note('no application is named or has run: add applications = ["app.py"] to drainmark.toml')
    dagster_home = workplace.settings.dagster_home
    workplace.settings.make_home()
    dagster_home.mkdir(parents=True, exist_ok=True)
    own = workplace.settings.project_root / "dagster.yaml"
    shutil.copyfile(own if own.is_file() else _SHIPPED / own.name, dagster_home / own.name)
    os.umask(os.umask(0) | 0o022)  # Dagster's sockets lie in /tmp: who may write to one may launch runs
    own_pid = {OWNER_VARIABLE: str(os.getpid())}  # `execve` keeps it: the resident Spark ends with Dagster
    told = {**own_pid, "DAGSTER_HOME": str(dagster_home), "DRAINMARK_HOME": str(workplace.home)}
    pages = _serve_pages(port + 1, with_values(os.environ, told))
    told["DRAINMARK_PAGES_URL"] = workplace.settings.pages_url or pages
    page = _address(host, port)
    told["DRAINMARK_DAGSTER_URL"] = workplace.settings.dagster_url or page
    os.environ.update(own_pid)
    make_engine(workplace.settings, is_service=True).prepare()
    workspace = str(_SHIPPED / "workspace.yaml")
    dagster = ["-m", "drainmark.orchestration.dagster_page.dev"]
    command = [sys.executable, *dagster, "-w", workspace, "-h", host, "-p", str(port)]
    output.note(f"{page}  (DAGSTER_HOME={dagster_home}); a page a region: {pages}")
    sys.stdout.flush()
    # The shell of a script makes background commands ignore SIGINT, and Dagster treats SIGTERM as SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    environment = with_values(os.environ, told)
    os.execve(sys.executable, command, environment)  # noqa: S606 - signals are to reach Dagster itself


def _address(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server; for a server on all addresses, the loopback."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - nothing is bound
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _serve_pages(port: int, environment: Mapping[str, str]) -> str:
    """Start the server of the pages, which ends with this process, the later Dagster; return its address."""
    from drainmark.orchestration.html_report.page_server import HOST, listening

    with listening(port) as listener:
        command = [sys.executable, "-m", "drainmark.orchestration.html_report.page_server", str(listener.fileno())]
        subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
        return f"http://{HOST}:{listener.getsockname()[1]}"


def doctor(
    asked: Asked,
    *,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Rebuild what the registry lost; with --yes also tables that others changed.",
        ),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Do not try Spark.")] = False,
    inputs: Inputs = None,
    app: Annotated[
        list[str] | None,
        typer.Option(
            "--app", metavar="APP", help="An application, if neither drainmark.toml nor an earlier run names it."
        ),
    ] = None,
) -> None:
    """Check that everything is in its place, and try Spark and its executors. Exit code 1 if something is wrong."""
    from drainmark.orchestration import doctor as surgery
    from drainmark.orchestration.verbs import table_repair

    workplace = asked.workplace
    wanted = table_repair.plan(workplace) if repair else []
    if wanted and not asked.yes:
        _show_repairs(wanted, as_json=asked.as_json)
        raise _only_shown(wanted, is_rebuilding=bool(inputs) or surgery.lost_regions(workplace) != [])
    repaired: dict[str, Any] = {}

    def rebuild(regions: Sequence[str] | None = None) -> None:
        done = surgery.repair(workplace, applications=app or (), inputs=inputs or (), regions=regions)
        repaired.update({each["region"]: each for each in done})

    if repair:
        rebuild(None if inputs else surgery.lost_regions(workplace))
    mended = [table_repair.mend(workplace, each.region, rebuild=partial(rebuild, [each.region])) for each in wanted]
    if not asked.as_json:
        _show_repairs(mended, as_json=False)
    with output.result_only(asked.as_json):
        examined = surgery.examine(workplace, with_engine=not quick, tell=output.waiting)
    found = {**examined, "repaired": [*repaired.values()], "repairs": [each.to_json() for each in mended]}
    asked.answer(found, _show)
    if found["problems"]:
        raise typer.Exit(1)


def _only_shown(wanted: Sequence[RegionRepair], *, is_rebuilding: bool) -> UsageError:
    """Return the error behind repairs that are only shown: how to carry them out, and what no repair can do.

    Args:
        is_rebuilding: whether the registry is to be rebuilt, too.
    """
    further = [each.remedy for each in wanted if each.remedy is not None]
    if is_rebuilding or any(each.is_of_use for each in wanted):
        return nothing_changed(then=further)
    return UsageError("nothing was changed: no repair gives the lost rows back", remedy="; and: ".join(further))


def _show_repairs(found: Sequence[RegionRepair], *, as_json: bool) -> None:
    from drainmark.orchestration.verbs.table_repair import repair_lines

    if as_json:
        output.emit({"repairs": [region.to_json() for region in found]})
        return
    for region in found:
        for line in repair_lines(region):
            output.say(line)


def _show(found: dict[str, Any]) -> None:
    versions = ", ".join(f"{name} {number or 'missing'}" for name, number in found["versions"].items())
    output.say(f"home      {found['home']}")
    output.say(f"project   {found['project_root']}")
    output.say(f"versions  {versions}")
    output.say(f"registry  {'revision ' + found['registry_revision'] if found['registry_revision'] else 'none yet'}")
    output.say(f"free      {found['free_bytes'] / 1e9:.1f} GB")
    output.say(f"jars      {'cached' if found['jars_cached'] else 'not fetched yet: the first run needs the network'}")
    for region in found["regions"]:
        code = "" if region["is_code_found"] else ", its code was not found"
        output.say(f"region    {region['region']}: epoch {region['epoch']}{code}")
    for entry in found["repaired"]:
        counts = ", ".join(f"{count} {status}" for status, count in entry["triggers"].items() if count)
        scanned = f"scanned {entry['folder']}" if entry["folder"] else "no folder was scanned: the next run does it"
        output.say(f"repaired  {entry['region']}: {counts or 'nothing'}; {scanned}")
    columns = ("check", "", "what was found", "what to do")
    checks = [(found["check"], found["verdict"], found["message"], found["remedy"]) for found in found["checks"]]
    output.table(columns, checks)
    if not found["problems"]:
        output.say("all is well")


_SPARK_COLUMNS = ("pid", "state", "since (UTC)", "memory", "master", "used by", "kept for", "")


def sparks(
    asked: Asked,
    *,
    stop: Annotated[bool, typer.Option("--stop", help="Stop those that no run uses; with --yes all.")] = False,
) -> None:
    """List the resident Sparks of this home on this machine, or stop them; the next run that needs one starts it."""
    from drainmark.orchestration.verbs import residents

    found = residents.resident_sparks(asked.workplace.home)
    used = [entry for entry in found if entry["users"] and not asked.yes] if stop else []
    ended = [entry for entry in found if entry not in used] if stop else []
    residents.stop(ended)
    if asked.as_json:
        output.emit([{**entry, "stopped": entry in ended} for entry in found])
    elif not found:
        output.say("no resident Spark is here; a run that needs one starts it")
    else:
        output.table(_SPARK_COLUMNS, [_spark_row(entry, is_stopped=entry in ended) for entry in found])
    if used:
        pids = ", ".join(str(pid) for entry in used for pid in entry["users"])
        raise UsageError(f"still there: runs use it, pid {pids}", remedy="wait for them, or repeat it with --yes")


def _spark_row(entry: dict[str, Any], *, is_stopped: bool) -> tuple[Any, ...]:
    from drainmark.jobs.regions.formatting import counted

    memory = f"{entry['memory_bytes'] / 2**20:,.0f} MB" if entry["memory_bytes"] else ""
    remarks = [f"restarted {counted(entry['starts'] - 1, 'time')}"] if entry["starts"] > 1 else []
    remarks += [entry["failure"].splitlines()[-1]] if entry["failure"] else []
    users, owners = (" ".join(f"pid {pid}" for pid in entry[key]) for key in ("users", "owners"))
    since, state = output.short_time(entry["since"]), "stopped" if is_stopped else entry["state"]
    return (entry["pid"], state, since, memory, entry["master"], users, owners, "; ".join(remarks))
