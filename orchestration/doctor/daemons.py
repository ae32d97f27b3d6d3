"""Checks of the Dagster instance of a home: its settings, and that only one daemon works on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drainmark.jobs import world
from drainmark.orchestration.doctor.findings import Finding, fail, ok, warn

_FRESH_SECONDS = 90.0  # a daemon sends a heartbeat every 30 s
INSTANCE_FILE = "dagster.yaml"


def daemons(dagster_home: Path) -> list[Finding]:
    """Check the Dagster instance in a folder, which need not exist."""
    if not dagster_home.is_dir():
        return [ok("dagster", "Dagster has not run here")]
    if not (dagster_home / INSTANCE_FILE).is_file():
        message = f"{dagster_home} has no {INSTANCE_FILE}: Dagster retries nothing and watches nothing"
        return [warn("dagster", message, "start it by drainmark dev, or copy the dagster.yaml that ships")]
    running = sorted(_processes(dagster_home))
    beating = _beating(dagster_home)
    if len(running) > 1 or len(beating) > 1:
        who = f"pids {', '.join(map(str, running))}" if len(running) > 1 else f"{len(beating)} of them beat"
        message = f"two Dagster daemons work on {dagster_home} ({who}): each starts the same runs"
        return [fail("one_daemon", message, "end all but one")]
    return [ok("one_daemon", "one Dagster daemon works here" if running or beating else "no Dagster daemon works here")]


def _beating(dagster_home: Path) -> set[str]:
    """Return the ids of the daemons with a recent heartbeat: a daemon has one id for all its tasks."""
    import dagster as dg

    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        beats = instance.get_daemon_heartbeats().values()
    return {beat.daemon_id for beat in beats if beat.daemon_id and world.now() - beat.timestamp < _FRESH_SECONDS}


def _processes(dagster_home: Path) -> Iterator[int]:
    """Yield the pids of the instance's daemons on this machine, if this user may see them."""
    import psutil

    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if _is_daemon(command) and Path(process.environ().get("DAGSTER_HOME", "/")) == dagster_home:
                yield process.pid
        except (psutil.Error, OSError):
            continue


def _is_daemon(command: list[str]) -> bool:
    names = {Path(word).name for word in command[:4]}
    return "run" in command and bool(names & {"dagster._daemon", "dagster-daemon"})
