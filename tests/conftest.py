"""One Spark session for the whole run; a new home for each test."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import azurite
import canary
import hypothesis
import pytest
import quick_disk
import quick_jvm
import quick_reads
from azurite import Azurite
from postgres import postgres_server, postgres_url
from waiting import AHEAD

from drainmark.jobs import failpoints, world
from drainmark.orchestration.testing.session import shared_engine
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

__all__ = ["postgres_server", "postgres_url"]

hypothesis.settings.register_profile("drainmark", deadline=None)  # other work on the machine must fail no test
hypothesis.settings.load_profile("drainmark")
quick_disk.quicken()
quick_jvm.quicken()
quick_reads.quicken()
gc.disable()  # until all modules are there: a fifth of their collection was that of garbage, of which they make none
_WRITES_NOTHING = sys.dont_write_bytecode
sys.dont_write_bytecode = False  # otherwise each process of pytest rewrites the asserts of all modules
os.environ.update(canary.KEYS | azurite.ENVIRONMENT)  # the tasks of the shared Spark have the environment of its start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: each process gets whole files, and the longest must not be the last.

    With another S3 server, keep only the tests that use one.
    """
    if canary.CHECKS_SIGNATURES:
        items[:] = [item for item in items if _asks_for_a_bucket(item)]
    items.sort(key=lambda item: not _LONGEST.intersection(item.path.parts))


_LONGEST = frozenset(("recovery", "cluster", "test_operator_library.py"))
"""Folders and files that take longest."""


def _asks_for_a_bucket(item: pytest.Item) -> bool:
    named = set(getattr(item, "fixturenames", ()))
    chosen = [each for each in getattr(getattr(item, "callspec", None), "params", {}).values() if isinstance(each, str)]
    return bool(named & {"s3_server", "s3_place"} or {"s3", "bucket"}.intersection(chosen))


def pytest_collection_finish() -> None:
    """Restore the setting of the environment: tests rewrite applications, so no bytecode of them may be kept."""
    sys.dont_write_bytecode = _WRITES_NOTHING
    gc.freeze()  # the modules and the items stay
    gc.enable()


@pytest.fixture(scope="session")
def engine() -> SparkEngine:
    """Return the Spark session of the run; the plugin of the kit stops it."""
    return shared_engine()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Yield the endpoint of an S3 server in another process; each test makes its own buckets.

    It is a moto server, in another process because some calls of `deltalake` hold the GIL. `make test-s3` uses another.
    """
    if canary.CHECKS_SIGNATURES:
        from seaweed import Seaweed

        other = Seaweed()
        yield other.url
        other.remove()
        return
    server = subprocess.Popen([sys.executable, _MOTO, "127.0.0.1", "0"], **_PIPES)
    assert server.stdout is not None
    yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    server.kill()
    server.wait()


_MOTO = str(Path(__file__).with_name("moto_server.py"))
_PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}


@pytest.fixture(scope="session")
def azurite_server() -> Iterator[Azurite]:
    """Yield a server of Azure's Blob Storage, in another process; each test makes its own containers."""
    if not azurite.is_installed():
        pytest.skip("make azurite installs Azurite; it needs Node.js")
    server = Azurite()
    yield server
    server.remove()


@pytest.fixture
def azure(azurite_server: Azurite) -> str:
    """Return the address of a new container; the environment says how to reach it."""
    name = f"c{uuid.uuid4().hex[:12]}"
    azurite_server.make(name)
    return f"az://{name}"


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set credentials in the environment, and hide the configuration of the machine."""
    for name, value in (
        *canary.CREDENTIALS.items(),
        ("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config")),
        ("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials")),
    ):
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Take away the fail points that a test has armed."""
    yield
    failpoints.arm("")


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return seconds by which the clock of time limits is ahead: who begins to hang adds some, and is late at once.

    So a limit can be as long as a busy machine needs for all else. An application appends to `waiting.AHEAD`.
    """
    AHEAD.clear()
    monkeypatch.setattr(world.World, "monotonic", lambda _: time.monotonic() + sum(AHEAD))
    return AHEAD


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Return an empty folder for input."""
    (folder := tmp_path / "inbox").mkdir()
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a new home."""
    return Settings(home=tmp_path / "home", project_root=tmp_path)


@pytest.fixture
def workplace(settings: Settings, engine: SparkEngine) -> Iterator[Workplace]:
    """Yield an open home with the Spark session of the run."""
    place = Workplace(settings)
    place.use_engine(engine)
    yield place
    place.registry.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that writes a file below the inbox in one step."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / "inbox" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.part")
        hidden.write_text(text)
        return hidden.rename(path)

    return write_file
