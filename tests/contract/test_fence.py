"""The fence with real processes: an owner stopped between check and commit wakes after another owner took over."""

from __future__ import annotations

import datetime as dt
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from harness import passing
from places import CREDENTIALS, ON_A_DISK, folders, place_at, remove
from publishers import given_rows
from waiting import SOON

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.maintenance.garbage_collection import clear
from drainmark.resources.checkpoints.checkpoint_table import CheckpointTable
from drainmark.resources.checkpoints.region_store import RegionTables
from drainmark.resources.delta.keyed.keyed_changes import Restored
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging, facts
from drainmark.resources.storage.folder import Folder

REGION = "shop/orders"
COLUMNS = ("key", "value", "_sequence_id")
SCHEMA_JSON = (
    '{"type":"struct","fields":['
    '{"name":"key","type":"string","nullable":true,"metadata":{}},'
    '{"name":"value","type":"long","nullable":true,"metadata":{}},'
    '{"name":"_sequence_id","type":"long","nullable":true,"metadata":{}}]}'
)

APPENDED = RegionTable(name="table", role=TableRole.APPEND, operator="o", schema_json=SCHEMA_JSON)


def rows(*values: tuple[str | None, int, int]) -> pa.Table:
    schema = pa.schema([("key", pa.string()), ("value", pa.int64()), ("_sequence_id", pa.int64())])
    return pa.Table.from_pylist([dict(zip(COLUMNS, value, strict=True)) for value in values], schema=schema)


def checkpoint_row(kind: RowKind, epoch: int, sequence_id: int, owner: str) -> CheckpointRow:
    return CheckpointRow(
        kind=kind,
        region=REGION,
        epoch=epoch,
        sequence_id=sequence_id,
        attempt=uuid4().hex,
        recorded_at=dt.datetime.now(dt.UTC),
        run_id=owner,
        drainmark_version="0.1.0",
        graph_fingerprint="",
        params_hash="",
    )


def staged(table: ManagedTable, sequence_id: int, *values: tuple[str | None, int, int]) -> Any:
    return Staging(table.folder, 1, "group").write(rows(*values), f"g{sequence_id}")


# --- the work of the zombie, in its own process -------------------------------------------------------------------


def zombie(verb: str, home: Folder) -> str:
    """Carry out `verb` as the owner of epoch 1; the process stops itself between check and commit, once."""
    pending = [True]

    def stop(point: str) -> None:
        if point.endswith(".before_commit") and pending:
            pending.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    with passing(stop):
        return _done(verb, home)


def _done(verb: str, home: Folder) -> str:
    checkpoint = CheckpointTable(home / "checkpoint", REGION)
    table, history = ManagedTable(home / "table", REGION), ManagedTable(home / "history", REGION)
    if verb == "claim":
        checkpoint.claim(checkpoint_row(RowKind.CLAIM, 2, 3, "zombie"))
    elif verb in ("state", "halt", "rewind"):
        sequence_id = {"state": 3, "halt": 2, "rewind": 3}[verb]
        checkpoint.append([checkpoint_row(RowKind(verb), 1, sequence_id, "zombie")], sequence_id=sequence_id)
    elif verb == "publish":
        table.publish(txn_version(1, 3), staged_already(table))
    elif verb == "merge":
        table.merge(txn_version(1, 3), given_rows(rows((None, 3, 3), ("new", 3, 3)), ["key"]))
    elif verb == "rewind rows":
        table.rewind_rows(txn_version(1, 4), 1, Staging(table.folder, 1, "zombie"))
    elif verb == "rewind upsert":
        table.rewind_upsert(txn_version(1, 4), Restored(1, history, ["key"], COLUMNS))
    elif verb == "compact":
        return str(table.upkeep.compact(txn_version(1, 3), Staging(table.folder, 1, "zombie"), files_at_least=2))
    return "done"


def staged_already(table: ManagedTable) -> Any:
    *_, name = table.folder.names("_staged/1-group")
    path = f"_staged/1-group/{name}"
    return [facts(table.folder.source(path), path, table.folder.size(path))]


def main() -> None:
    """Read one order from each line, `<verb>|<home>`; print one line with its outcome."""
    from drainmark.jobs.errors import Fenced

    for order in sys.stdin:
        verb, _, home = order.strip().partition("|")
        try:
            outcome = zombie(verb, place_at(home, sys.argv[1]))
        except Fenced:
            outcome = "fenced"
        except Exception as error:
            outcome = repr(error)
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()


class Zombie:
    """The process of the old owner: it is stopped in one commit after the other."""

    def __init__(self, endpoint: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **CREDENTIALS, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout

    def stop_in(self, verb: str, home: Folder) -> None:
        """Let the process run `verb` up to the commit; there it stops itself."""
        self.orders.write(f"{verb}|{home}\n")
        self.orders.flush()
        while not os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)[0]:
            answered, _, _ = select.select([self.answers], [], [], 0.01)
            assert not answered, self.answers.readline()

    def wake(self) -> str:
        """Let the process go on, and return the outcome that it prints."""
        self.process.send_signal(signal.SIGCONT)
        return self.answers.readline().strip()


@pytest.fixture(scope="module")
def old(s3_server: str) -> Iterator[Zombie]:
    started = Zombie(s3_server)
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.fixture
def home(place: Folder) -> Folder:
    """Return a home in which epoch 1 has committed and published the ids 1 and 2."""
    checkpoint = CheckpointTable(place / "checkpoint", REGION)
    checkpoint.create()
    checkpoint.claim(checkpoint_row(RowKind.CLAIM, 1, 1, "zombie"))
    checkpoint.append(
        [checkpoint_row(RowKind.STATE, 1, sequence_id, "zombie") for sequence_id in (1, 2)], sequence_id=2
    )
    for name in ("table", "history"):
        table = ManagedTable(place / name, REGION)
        table.create(SCHEMA_JSON)
        table.publish(txn_version(1, 1), staged(table, 1, ("a", 1, 1), (None, 1, 1)))
        table.publish(txn_version(1, 2), staged(table, 2, ("b", 2, 2)))
    return place


def content(table: ManagedTable) -> list[tuple[str | None, int, int]]:
    return sorted((tuple(row.values()) for row in table.read().to_pylist()), key=repr)  # type: ignore[arg-type]


@ON_A_DISK
@pytest.mark.seed("H1", "H2", "H25", "V103")
@pytest.mark.parametrize(
    "verb", ["claim", "state", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("halt", "rewind"))]
)
def test_a_stopped_owner_wakes_fenced_at_the_checkpoint_table(home: Folder, old: Zombie, verb: str) -> None:
    old.stop_in(verb, home)
    owner = CheckpointTable(home / "checkpoint", REGION)
    owner.claim(checkpoint_row(RowKind.CLAIM, 2, 3, "owner"))
    owner.append([checkpoint_row(RowKind.STATE, 2, 4, "owner")], sequence_id=4)
    before = owner.rows()

    assert old.wake() == "fenced"

    assert owner.rows() == before
    assert owner.txn() == (2, 4)
    assert [row.run_id for row in before if row.epoch == 2] == ["owner", "owner"]


@pytest.mark.seed("H1", "H2", "H3", "H7")
def test_a_stopped_publish_wakes_to_find_it_done(home: Folder, old: Zombie) -> None:
    table = ManagedTable(home / "table", REGION)
    files = staged(table, 3, ("c", 3, 3))
    old.stop_in("publish", home)
    table.publish(txn_version(1, 3), files)
    assert table.upkeep.compact(txn_version(1, 3), Staging(table.folder, 2, "owner"), files_at_least=2)
    table.publish(txn_version(2, 4), staged(table, 4, ("d", 4, 4)))
    before = table.delta_version()

    assert old.wake() == "done"

    assert content(table) == sorted([("a", 1, 1), (None, 1, 1), ("b", 2, 2), ("c", 3, 3), ("d", 4, 4)], key=repr)
    assert table.delta_version() == before
    assert table.txn_version() == txn_version(2, 4)


@ON_A_DISK
@pytest.mark.seed("H2", "H5")
def test_a_stopped_merge_wakes_to_find_it_done(home: Folder, old: Zombie) -> None:
    table = ManagedTable(home / "table", REGION)
    old.stop_in("merge", home)
    table.merge(txn_version(1, 3), given_rows(rows((None, 3, 3), ("new", 3, 3)), ["key"]))
    table.merge(txn_version(2, 4), given_rows(rows((None, 4, 4)), ["key"]))

    assert old.wake() == "done"

    assert content(table) == sorted([("a", 1, 1), ("b", 2, 2), (None, 4, 4), ("new", 3, 3)], key=repr)
    assert table.txn_version() == txn_version(2, 4)


@ON_A_DISK
@pytest.mark.seed("H2", "H4")
@pytest.mark.parametrize("verb", ["rewind rows", "rewind upsert"])
def test_a_stopped_rewind_wakes_to_find_it_done(home: Folder, old: Zombie, verb: str) -> None:
    table, history = (ManagedTable(home / name, REGION) for name in ("table", "history"))
    old.stop_in(verb, home)
    if verb == "rewind rows":
        table.rewind_rows(txn_version(1, 4), 1, Staging(table.folder, 2, "owner"))
    else:
        table.rewind_upsert(txn_version(1, 4), Restored(1, history, ["key"], COLUMNS))
    table.publish(txn_version(2, 5), staged(table, 5, ("b", 5, 5)))

    assert old.wake() == "done"

    assert content(table) == sorted([("a", 1, 1), (None, 1, 1), ("b", 5, 5)], key=repr)
    assert table.txn_version() == txn_version(2, 5)


@ON_A_DISK
@pytest.mark.seed("H7")
def test_a_stopped_compaction_wakes_to_give_up(home: Folder, old: Zombie) -> None:
    table = ManagedTable(home / "table", REGION)
    table.publish(txn_version(1, 3), staged(table, 3, ("c", 3, 3)))
    old.stop_in("compact", home)
    table.rewind_rows(txn_version(2, 4), 1, Staging(table.folder, 2, "owner"))

    assert old.wake() == "False"

    assert content(table) == sorted([("a", 1, 1), (None, 1, 1)], key=repr)
    assert table.txn_version() == txn_version(2, 4)


@ON_A_DISK
@pytest.mark.seed("H7", "H8")
@pytest.mark.parametrize("collects", ["at the claim", pytest.param("gc", marks=pytest.mark.slow)])
def test_a_stopped_compaction_wakes_after_its_files_were_collected(
    home: Folder, old: Zombie, tmp_path: Path, collects: str
) -> None:
    """The next owner commits nothing else to the table: deleted files must not become visible."""
    table = ManagedTable(home / "table", REGION)
    table.publish(txn_version(1, 3), staged(table, 3, ("c", 3, 3)))
    store = RegionTables(tmp_path / "links", REGION, home)
    store.checkpoint.create()
    store.checkpoint.claim(checkpoint_row(RowKind.CLAIM, 2, 4, "owner"))
    before, version = content(table), table.delta_version()
    if collects == "gc":  # gc of a table without garbage commits nothing
        clear(store, [APPENDED], epoch=1, horizon=0, now=time.time())
    assert store.leftovers.collect_orphans(["table"], 1) == 0
    assert table.delta_version() == version
    old.stop_in("compact", home)
    if collects == "gc":
        clear(store, [APPENDED], epoch=2, horizon=0, now=time.time())
    else:
        assert store.leftovers.collect_orphans(["table"], 2) == 1
    assert all("zombie" not in name for name in folders(table.folder, "_staged"))

    assert old.wake() == "False"

    assert content(table) == before
    assert table.txn_version() == txn_version(2, 0)
    table.publish(txn_version(2, 4), staged(table, 4, ("d", 4, 4)))
    assert content(table) == sorted([*before, ("d", 4, 4)], key=repr)


@ON_A_DISK
@pytest.mark.seed("H2", "H10")
def test_a_stopped_publish_wakes_after_the_log_was_cleaned(home: Folder, old: Zombie) -> None:
    """The commit may even land, with a number below the checkpoint of the log: no reader ever sees it."""
    table = ManagedTable(home / "table", REGION)
    files = staged(table, 3, ("c", 3, 3))
    old.stop_in("publish", home)
    table.publish(txn_version(1, 3), files)
    table.rewind_rows(txn_version(2, 4), 2, Staging(table.folder, 2, "owner"))
    table.upkeep.maintain()
    for name in [name for name in table.folder.names("_delta_log") if name.endswith(".json")]:
        remove(table.folder, f"_delta_log/{name}")

    assert old.wake() == "done"

    assert content(table) == sorted([("a", 1, 1), (None, 1, 1), ("b", 2, 2)], key=repr)
    assert table.txn_version() == txn_version(2, 4)


@ON_A_DISK
@pytest.mark.seed("H1", "H2", "H10")
@pytest.mark.parametrize("verb", ["state", pytest.param("claim", marks=pytest.mark.slow)])
def test_a_stopped_owner_wakes_fenced_after_the_log_of_the_checkpoint_table_was_cleaned(
    home: Folder, old: Zombie, verb: str
) -> None:
    """The log has no entry of the number that its commit would get, so that nothing seems to be in its way."""
    old.stop_in(verb, home)
    owner = CheckpointTable(home / "checkpoint", REGION)
    owner.claim(checkpoint_row(RowKind.CLAIM, 2, 3, "owner"))
    owner.append([checkpoint_row(RowKind.STATE, 2, 4, "owner")], sequence_id=4)
    before = owner.rows()
    owner.maintain()
    *cleaned, _ = [name for name in owner.folder.names("_delta_log") if name.endswith(".json")]
    for name in cleaned:
        remove(owner.folder, f"_delta_log/{name}")

    assert old.wake() == "fenced"

    assert owner.rows() == before


CREATE = f"""
import sys
from places import place_at
from drainmark.resources.delta.managed_table import ManagedTable
table = ManagedTable(place_at(*sys.argv[1:]), {REGION!r})
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.readline()
table.create({SCHEMA_JSON!r})
assert table.txn_version() is None
"""


@ON_A_DISK
@pytest.mark.seed("H13")
def test_four_processes_create_one_table(place: Folder, s3_server: str) -> None:
    root = place / "lake" / "table"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE, root.uri, s3_server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **CREDENTIALS, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate(timeout=SOON)
    assert [racer.returncode for racer in racers] == [0, 0, 0, 0]
    assert ManagedTable(root, REGION).delta_version() == 0
    assert [name for name in root.names("_delta_log") if name.endswith(".json")] == [f"{0:020}.json"]


if __name__ == "__main__":
    main()
