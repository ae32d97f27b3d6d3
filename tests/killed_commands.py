"""A verb in a process of its own, which a fail point kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from drainmark.jobs.failpoints import ENVIRONMENT

KILLED = -signal.SIGKILL


def killed_at(failpoint: str, *arguments: str) -> int:
    """Return the code of a process of the command line with a fail point."""
    ended = subprocess.run(
        [sys.executable, "-m", "drainmark.orchestration.cli.main", *arguments],
        env={**os.environ, ENVIRONMENT: failpoint}, capture_output=True, check=False,
    )  # fmt: skip
    assert b"Traceback" not in ended.stderr, ended.stderr.decode()
    return ended.returncode
