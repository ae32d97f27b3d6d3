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


def as_nobody(command: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command there, with no HOME but that of `variables`; it may read all, since a checkout may be root's own.

    Args:
        folder: its working directory, which it may write to.
    """
    os.chown(folder, UID, UID)
    left_out = ("HOME", "TMPDIR", "DRAINMARK_", "AWS_")  # the temporary folder of the tests is for their user alone
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    become = ["--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    may_read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return subprocess.run(
        ["setpriv", *become, *may_read, *command],
        cwd=folder, env={**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
