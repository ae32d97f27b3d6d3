"""Another host, as a process sees it: another host name, and a wrong clock."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drainmark.orchestration.testing.crash.children import Nursery

_NEW_HOST_NAME = 0x04000000  # CLONE_NEWUTS
_FAKETIME = "faketime/libfaketime.so.1"
_LIBRARIES = (Path("/usr/lib"), Path("/usr/local/lib"))


@contextmanager
def other_host(name: str = "elsewhere", *, ahead_seconds: int = 0) -> Iterator[Nursery]:
    """Yield a process that forks children on another host; skip the test if this machine cannot do that.

    Args:
        ahead_seconds: the seconds by which its clock is ahead of the clock here.
    """
    made: list[Nursery] = []
    refused: list[OSError] = []

    def open_there() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_HOST_NAME):  # for this thread alone, and for the processes that it starts
            refused.append(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
            return
        socket.sethostname(name)
        made.append(Nursery())

    with pytest.MonkeyPatch.context() as patched:
        if ahead_seconds:
            patched.setenv("LD_PRELOAD", str(_faketime()))
            patched.setenv("FAKETIME", f"{ahead_seconds:+d}")
            patched.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            told = subprocess.check_output([sys.executable, "-c", "import time; print(time.time())"])
            assert abs(float(told) - time.time() - ahead_seconds) < 60, "the clock is right"
        thread = threading.Thread(target=open_there)
        thread.start()
        thread.join()
    if refused:
        pytest.skip(f"no namespace for another host name: {refused[0]}")
    assert socket.gethostname() != name
    try:
        yield made[0]
    finally:
        made[0].close()


def _faketime() -> Path:
    found = [path for folder in _LIBRARIES for path in folder.glob(f"**/{_FAKETIME}")]
    if not found:
        pytest.skip("libfaketime is not here (Debian: faketime): no clock can be wrong")
    return found[0]
