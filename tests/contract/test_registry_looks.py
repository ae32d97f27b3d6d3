"""Looks at the file of a registry without SQLAlchemy: they give the same answers as the registry itself."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from drainmark.jobs.errors import StoreUnavailable
from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.resources.registry.lease import Lease, describe
from drainmark.resources.registry.queries import REVISIONS, SqliteLooks
from drainmark.resources.registry.registry import Registry

REGION = "app/start"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a höme #1" / "registry.db"


@pytest.fixture
def registry(file: Path) -> Iterator[Registry]:
    """Yield a registry with ten inputs, four of them pending; a cursor, an error and an owner."""
    made = Registry(f"sqlite:///{file}")
    found = [
        NewTrigger(uri=f"file:///in/{n}", identity={"size": n}, identity_key=f"{n}", size_bytes=n) for n in range(10)
    ]
    made.triggers.add(REGION, found)
    made.triggers.add(f"{REGION}#queue", found[:1])
    made.progress.set_epoch(REGION, 3)
    made.triggers.settle(REGION, 3, [(trigger.order_index, trigger.id) for trigger in made.triggers.pending(REGION, 6)])
    made.progress.record_error(REGION, 3, {"message": "naïve"})
    made.progress.set_state(REGION, 3, "DRAINING")
    made.save_cursor(REGION, "scan", "here")
    yield made
    made.close()


def told(looks: Any) -> dict[str, Any]:
    return {
        "regions": looks.regions(),
        "info": [looks.region_info(region) for region in (REGION, "nobody/knows")],
        "pending": [looks.pending_count(region) for region in (REGION, "nobody/knows")],
        "placed": [looks.by_order(REGION, orders) for orders in ([], [7], [3, 9, 99])],
        "cursor": [looks.load_cursor(REGION, source) for source in ("scan", "none")],
    }


def test_a_look_tells_what_the_registry_tells(registry: Registry, file: Path) -> None:
    looks = SqliteLooks(file)
    assert looks.is_of_today()
    assert told(looks) == told(registry)
    assert looks.regions() == [REGION]
    assert looks.pending_count(REGION) == 4


def test_a_look_sees_the_owner(registry: Registry, file: Path) -> None:
    looks = SqliteLooks(file)
    assert describe(looks, REGION) is None
    with Lease.acquire(registry, REGION, "a-run"):
        seen = describe(looks, REGION)
        assert seen is not None
        assert (seen.run_id, seen.is_alive) == ("a-run", True)
        assert 0 <= seen.heartbeat_age_seconds < 60
    assert describe(looks, REGION) is None


def test_a_look_waits_for_no_writer_and_sees_only_what_is_committed(registry: Registry, file: Path) -> None:
    looks = SqliteLooks(file)
    with registry.database.writing() as connection:
        connection.execute(text("DELETE FROM drainmark_trigger"))
        assert looks.pending_count(REGION) == 4


def test_a_folder_may_be_called_what_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"h\xffme") / "registry.db"
    Registry(f"sqlite:///{file}").close()
    assert SqliteLooks(file).is_of_today()


@pytest.mark.parametrize("trouble", ["missing", "empty", "damaged", "older", "newer"])
def test_what_is_no_registry_of_today_is_left_to_who_opens_it(registry: Registry, file: Path, trouble: str) -> None:
    registry.close()
    match trouble:
        case "missing":
            file = file.with_name("none.db")
        case "empty" | "damaged":
            for each in file.parent.iterdir():
                each.unlink()
            file.write_bytes(b"no registry" * 500 if trouble == "damaged" else b"")
        case _:
            with sqlite3.connect(file) as connection:
                revision = REVISIONS[0] if trouble == "older" else "9999"
                connection.execute("UPDATE drainmark_version SET version_num = ?", [revision])
    assert not SqliteLooks(file).is_of_today()
    assert file.exists() == (trouble != "missing"), "looking creates nothing"


def test_a_file_that_breaks_later_says_so(registry: Registry, file: Path) -> None:
    looks = SqliteLooks(file)
    assert looks.is_of_today()
    registry.close()
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TABLE drainmark_region")
    with pytest.raises(StoreUnavailable):
        looks.regions()


def test_status_needs_no_sqlalchemy_where_the_registry_is_a_file(registry: Registry, file: Path) -> None:
    registry.close()
    program = (
        "import sys; from drainmark.orchestration.cli.main import invoke;"
        "code = invoke(['status', '--home', sys.argv[1], '--json']);"
        "unwanted = {'sqlalchemy', 'drainmark.jobs.regions.plan', 'drainmark.jobs.operators.catalogue'};"
        "unwanted &= set(sys.modules);"
        "sys.exit(str(unwanted) if unwanted else code)"
    )
    saved = SqliteLooks(file)  # as a run leaves it, so that `status` need not look for the application
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE drainmark_cursor SET source = '@declared', cursor = '{}'")
    assert saved.load_cursor(REGION, "@declared") == "{}"
    ended = subprocess.run(
        [sys.executable, "-c", program, str(file.parent)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert '"pending_triggers": 4' in ended.stdout
