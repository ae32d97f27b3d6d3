"""`dagster dev` for a project folder, or only its daemon: with code server and run workers, in a new session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from integration.dagster_scene import ROOT
from ports import free_port


@contextmanager
def dagster_dev(
    root: Path,
    *,
    has_pages: bool = True,
    location: Sequence[str] = ("-m", "drainmark.orchestration.definitions"),
    path: Sequence[Path] = (),
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Serve a project with the instance `.drainmark/dagster`; log to `dagster.log`; yield process and port.

    Args:
        has_pages: as `dagster dev` does; else there is only the daemon, which starts in less time.
        location: the options of Dagster that name the code location.
        path: more folders of Python modules.
    """
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DRAINMARK_", "DAGSTER_"))},
        "DAGSTER_HOME": str(root / ".drainmark" / "dagster"),
        "DRAINMARK_DAGSTER_URL": f"http://127.0.0.1:{port}",
        "PYTHONPATH": ":".join(map(str, (ROOT, *path))),
    }
    programs = Path(sys.executable).parent
    served = [programs / "dagster", "dev", "-h", "127.0.0.1", "-p", str(port)]
    command = [
        *(served if has_pages else [programs / "dagster-daemon", "run"]),
        *location,
    ]
    with (root / "dagster.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process, port
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        kill_session(process.pid)
        process.wait()


def kill_session(leader: int) -> None:
    """Kill the processes that are left of the session that the test started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if session == leader:
                os.kill(int(entry.name), signal.SIGKILL)
