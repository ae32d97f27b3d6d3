"""Azurite, Azure's emulator of Blob Storage, in a process of its own: `make azurite` installs it."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from ports import free_ports

PROGRAM = Path(__file__).parents[1] / "build/azurite/node_modules/.bin/azurite-blob"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account and the key that each Azurite has; they are in its documentation."""

_START_SECONDS = 60.0
(PORT,) = free_ports(1)
URL = f"http://127.0.0.1:{PORT}"
ENVIRONMENT = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": URL}
"""The variables by which clients find the server of this process; Spark's tasks have them from its start."""


def is_installed() -> bool:
    """Say whether Azurite and what it needs are here."""
    return PROGRAM.exists() and shutil.which("node") is not None


class Azurite:
    """A running server with its data on a disk, so that it can be killed and started again."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="drainmark-azurite-"))
        self.start()

    def start(self) -> None:
        """Start the server and wait for it."""
        given = ("--blobPort", str(PORT), "--location", str(self._folder), "--silent", "--skipApiVersionCheck")
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([str(PROGRAM), *given, "--disableTelemetry"], **quiet)  # type: ignore[call-overload]
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1):
                return
            time.sleep(0.1)
        raise AssertionError("Azurite does not answer")

    def make(self, container: str) -> None:
        """Make a container."""
        now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{named}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
        signed = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
        headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signed}", "Content-Length": "0"}
        url = f"{URL}/{ACCOUNT}/{container}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))  # noqa: S310 it is ours

    def kill(self) -> None:
        """Kill the server; its data stay."""
        self._process.kill()
        self._process.wait()

    def remove(self) -> None:
        """End the server, and delete all its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
