"""Processes of a user id that the password file does not know, as OpenShift and `docker --user` start them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

UID = 54321
ROOT = Path(__file__).parents[1]

needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user"
)


def become_nobody(command: Sequence[str], folder: Path) -> list[str]:
    """Return the command by that user, who may write to the folder, and read all: a checkout may be root's own."""
    os.chown(folder, UID, UID)
    become = ["--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    may_read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", *become, *may_read, *command]


def as_nobody(command: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with no HOME but that of `variables`."""
    left_out = ("HOME", "TMPDIR", "DRAINMARK_", "AWS_")  # the temporary folder of the tests is for their user alone
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return subprocess.run(
        become_nobody(command, folder),
        cwd=folder, env={**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
