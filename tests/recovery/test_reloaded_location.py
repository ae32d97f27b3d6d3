"""A code location that could not load an application for a passing reason: it reloads itself, in a real Dagster."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from recovery.dev_server import dagster_dev

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(600)]

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", options={"header": "true"}))
def read(scanned):
    return scanned

dm.sink(read, dm.DeltaAppend("copied"))
"""
QUERY = "{repositoriesOrError{... on RepositoryConnection{nodes{sensors{name}}}}}"
WAIT_SECONDS = 240.0


def sensors(port: int) -> set[str]:
    """Return the names of the sensors that Dagster's web server shows."""
    body = json.dumps({"query": QUERY}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - an address of ours
            found = json.load(answer)["data"]["repositoriesOrError"].get("nodes", [])
    except OSError:
        return set()
    return {sensor["name"] for node in found for sensor in node["sensors"]}


def wait_for(find: Callable[[], bool], root: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not find():
        if time.monotonic() > deadline:
            pytest.fail((root / "dagster.log").read_text()[-4000:])
        time.sleep(1)


def test_the_region_is_there_after_its_first_file_though_nobody_reloads(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    (tmp_path / "drainmark.toml").write_text('applications = ["app.py"]\n')
    (tmp_path / "inbox").mkdir()
    (tmp_path / ".drainmark" / "dagster").mkdir(parents=True)
    with dagster_dev(tmp_path) as (_, port):
        wait_for(lambda: "app__broken" in sensors(port), tmp_path)
        (tmp_path / "inbox" / "a.csv").write_text("k,n\nx,1\n")
        wait_for(lambda: "app__read__sensor" in sensors(port), tmp_path)
        assert "app__broken" not in sensors(port)
