"""The registry's contract, over SQLite and PostgreSQL (see the fixture `url`)."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError
from waiting import SOON

from drainmark.jobs.errors import Fenced, RegistryLost, StoreUnavailable, UsageError
from drainmark.jobs.protocol.records.triggers import NewTrigger, RebuiltTrigger, TriggerStatus
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.registry import engines
from drainmark.resources.registry.queries import statement
from drainmark.resources.registry.registry import Registry
from drainmark.resources.settings import Settings

REGION = "app/start"


@pytest.fixture
def registry(url: str) -> Iterator[Registry]:
    opened = Registry(url)
    yield opened
    opened.close()


@pytest.fixture
def owned(registry: Registry) -> Registry:
    """Return a registry with a region at epoch 1 and the pending inputs 1, 2, 3."""
    registry.triggers.add(REGION, [found(1), found(2), found(3)])
    registry.progress.set_epoch(REGION, 1)
    return registry


def found(number: int, *, version: int = 1, size_bytes: int = 10) -> NewTrigger:
    identity = {"size": size_bytes, "mtime_ns": version, "inode": number}
    return NewTrigger(
        uri=f"file:///in/{number}", identity=identity, identity_key=f"{number}-{version}", size_bytes=size_bytes
    )


def uris(registry: Registry, limit: int = 100, max_bytes: int | None = None) -> list[int]:
    """Return the numbers of the pending inputs, in order."""
    return [int(trigger.uri.rpartition("/")[2]) for trigger in registry.triggers.pending(REGION, limit, max_bytes)]


def commit(registry: Registry, count: int) -> None:
    """Commit the next inputs, one id each, under epoch 1."""
    triggers = registry.triggers.pending(REGION, count)
    first = registry.progress.take_ids(REGION, 1, count)
    registry.triggers.settle(
        REGION, 1, [(trigger.order_index, first + place) for place, trigger in enumerate(triggers)]
    )


# --- triggers -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("X13")
def test_inputs_wait_in_the_order_in_which_they_were_given(registry: Registry) -> None:
    assert registry.triggers.add(REGION, [found(3), found(1)]) == 2
    assert registry.triggers.add(REGION, [found(2)]) == 1
    assert uris(registry) == [3, 1, 2]
    assert registry.pending_count(REGION) == 3


@pytest.mark.seed("X12")
def test_inputs_of_a_group_under_way_are_passed_over(registry: Registry) -> None:
    registry.triggers.add(REGION, [found(number) for number in (1, 2, 3)])
    first, second, _ = registry.triggers.pending(REGION, 3)
    assert [trigger.order_index for trigger in registry.triggers.pending(REGION, 1, after=first.order_index)] == [
        second.order_index
    ]
    assert uris(registry) == [1, 2, 3], "they are pending until they are committed"


def test_a_trigger_comes_back_as_it_was_given(registry: Registry) -> None:
    before = time.time()
    registry.triggers.add(REGION, [found(7)])
    (trigger,) = registry.triggers.pending(REGION, 1)
    assert trigger.identity == {"size": 10, "mtime_ns": 1, "inode": 7}
    assert (trigger.region, trigger.status, trigger.origin, trigger.output) == (
        REGION,
        TriggerStatus.PENDING,
        "scan",
        "",
    )
    assert abs(trigger.discovered_at.timestamp() - before) < 60
    assert trigger.discovered_at.utcoffset() is not None


def test_a_known_identity_is_ignored_whatever_became_of_it(owned: Registry) -> None:
    commit(owned, 1)
    assert owned.triggers.add(REGION, [found(1), found(2), found(4)]) == 1
    assert uris(owned) == [2, 3, 4]


@pytest.mark.parametrize("status", [TriggerStatus.SUPERSEDED, TriggerStatus.MISSING])
def test_what_gave_way_and_is_there_again_is_pending_at_the_end(owned: Registry, status: TriggerStatus) -> None:
    owned.triggers.add(REGION, [found(1), found(2)])
    first, _ = owned.triggers.pending(REGION, 2)
    owned.triggers.mark(REGION, 1, [first.id], status, "not as scanned")
    assert owned.triggers.known(REGION) == {"file:///in/1": "", "file:///in/2": "2-1", "file:///in/3": "3-1"}
    assert owned.triggers.add(REGION, [found(1)]) == 1
    assert uris(owned) == [2, 3, 1]
    assert owned.triggers.add(REGION, [found(1)]) == 0


def test_one_call_with_the_same_identity_twice_adds_it_once(registry: Registry) -> None:
    assert registry.triggers.add(REGION, [found(1), found(1)]) == 1


def test_a_changed_file_is_a_new_input_and_the_newest_is_the_known_one(registry: Registry) -> None:
    registry.triggers.add(REGION, [found(1), found(2)])
    assert registry.triggers.add(REGION, [found(1, version=2)]) == 1
    assert registry.triggers.known(REGION) == {"file:///in/1": "1-2", "file:///in/2": "2-1"}
    assert [trigger.identity_key for trigger in registry.triggers.by_uri(REGION, "file:///in/1")] == ["1-1", "1-2"]


def test_nothing_to_add_and_nothing_to_ask_are_answered(registry: Registry) -> None:
    assert registry.triggers.add(REGION, []) == 0
    assert registry.by_order(REGION, []) == []
    assert registry.triggers.pending(REGION, 5) == []


def test_more_places_are_asked_for_than_a_statement_has_parameters(owned: Registry) -> None:
    assert [trigger.order_index for trigger in owned.by_order(REGION, range(70_000, 0, -1))] == [1, 2, 3]


@pytest.mark.seed("V61")
def test_regions_do_not_see_each_other(registry: Registry) -> None:
    registry.triggers.add(REGION, [found(1)])
    assert registry.triggers.add("other", [found(1)]) == 1
    registry.progress.set_epoch("other", 5)
    assert registry.region_info(REGION).epoch == 0
    assert registry.pending_count("other") == 1
    assert registry.regions() == [REGION, "other"]


@pytest.mark.parametrize("other", ["apq_1/s", "apP_1/s", "ap%1/s", "ap_1/s2", "ap_1", "Ap_1/S", "äap_1/s"])
def test_a_region_that_is_forgotten_takes_no_queue_of_another_along(registry: Registry, other: str) -> None:
    """`_` stands for any letter in a pattern of SQL, and SQLite's patterns ignore case."""
    for name in ("ap_1/s", "ap_1/s#a", "ap_1/s#b_c", other, f"{other}#a"):
        registry.triggers.add(name, [found(1)])
    registry.forget("ap_1/s")
    assert registry.pending_count(other) == registry.pending_count(f"{other}#a") == 1
    assert [registry.pending_count(f"ap_1/s{queue}") for queue in ("", "#a", "#b_c")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("limit", "max_bytes", "expected"),
    [
        (2, None, [1, 2]),
        (9, 20, [1, 2]),
        (9, 29, [1, 2]),
        (9, 1, [1]),  # an input larger than a group is a group alone
    ],
)
def test_a_group_is_bounded_by_count_and_bytes(
    owned: Registry, limit: int, max_bytes: int | None, expected: list[int]
) -> None:
    assert uris(owned, limit, max_bytes) == expected


def test_what_is_committed_skipped_or_refused_waits_no_more(owned: Registry) -> None:
    first, second, third = owned.triggers.pending(REGION, 3)
    owned.triggers.settle(REGION, 1, [(first.order_index, 1)])
    owned.triggers.mark_skipped(REGION, 1, second.id, 2, "cannot be mended")
    owned.triggers.mark(REGION, 1, [third.id], TriggerStatus.REFUSED, "not a CSV")
    assert owned.pending_count(REGION) == 0
    orders = [first.order_index, second.order_index, third.order_index]
    after = owned.by_order(REGION, orders)
    assert [(trigger.status, trigger.sequence_id, trigger.reason) for trigger in after] == [
        (TriggerStatus.COMMITTED, 1, None),
        (TriggerStatus.SKIPPED, 2, "cannot be mended"),
        (TriggerStatus.REFUSED, None, "not a CSV"),
    ]


def test_a_refused_input_can_be_made_pending_again(owned: Registry) -> None:
    (first, *_) = owned.triggers.pending(REGION, 1)
    owned.triggers.mark(REGION, 1, [first.id], TriggerStatus.MISSING, "gone")
    owned.triggers.mark(REGION, 1, [first.id], TriggerStatus.PENDING, None)
    assert uris(owned) == [1, 2, 3]


def test_a_status_that_needs_a_sequence_id_is_not_given_without(owned: Registry) -> None:
    with pytest.raises(ValueError, match="settle"):
        owned.triggers.mark(REGION, 1, [1], TriggerStatus.COMMITTED, None)


def test_a_rewind_puts_inputs_back_in_their_old_order_before_newer_ones(owned: Registry) -> None:
    commit(owned, 3)
    owned.triggers.add(REGION, [found(4)])
    assert owned.triggers.requeue_above(REGION, 1, 1) == 2
    assert uris(owned) == [2, 3, 4]
    assert [trigger.sequence_id for trigger in owned.triggers.pending(REGION, 9)] == [None, None, None]


def test_a_rewind_leaves_refused_inputs_refused(owned: Registry) -> None:
    first, second, _ = owned.triggers.pending(REGION, 3)
    owned.triggers.mark_skipped(REGION, 1, first.id, 1, "why")
    owned.triggers.mark(REGION, 1, [second.id], TriggerStatus.REFUSED, "why")
    assert owned.triggers.requeue_above(REGION, 1, 0) == 1
    assert uris(owned) == [1, 3]


# --- ids, epochs, fence -------------------------------------------------------------------------------------------


@pytest.mark.seed("E16", "H40", "V79")
def test_ids_start_at_one_and_are_taken_once(owned: Registry) -> None:
    assert owned.progress.take_ids(REGION, 1, 3) == 1
    assert owned.progress.take_ids(REGION, 1, 1) == 4
    owned.progress.set_next_id(REGION, 1, 9)
    owned.progress.set_next_id(REGION, 1, 2)  # never back
    assert owned.progress.take_ids(REGION, 1, 1) == 9


@pytest.mark.seed("H26")
@pytest.mark.parametrize("epoch", [1, 0])
def test_an_epoch_only_rises(owned: Registry, epoch: int) -> None:
    with pytest.raises(Fenced):
        owned.progress.set_epoch(REGION, epoch)
    assert owned.region_info(REGION).epoch == 1


WRITES: dict[str, Callable[[Registry], Any]] = {
    "take_pending": lambda registry: registry.triggers.take_pending(REGION, 1, 2, sequence_id=5),
    "mark_skipped": lambda registry: registry.triggers.mark_skipped(REGION, 1, 1, 1, "why"),
    "mark": lambda registry: registry.triggers.mark(REGION, 1, [1], TriggerStatus.REFUSED, "why"),
    "requeue_above": lambda registry: registry.triggers.requeue_above(REGION, 1, 0),
    "take_ids": lambda registry: registry.progress.take_ids(REGION, 1, 1),
    "set_next_id": lambda registry: registry.progress.set_next_id(REGION, 1, 50),
    "record_error": lambda registry: registry.progress.record_error(REGION, 1, {"id": "X"}),
    "clear_error": lambda registry: registry.progress.clear_error(REGION, 1),
    "set_state": lambda registry: registry.progress.set_state(REGION, 1, "HALTED"),
    "clear_halt_request": lambda registry: registry.progress.clear_halt_request(REGION, 1),
    "save_cursor": lambda registry: registry.save_cursor(REGION, "lines", "late", epoch=1),
    "rebuild": lambda registry: registry.rebuild(REGION, epoch=1, next_id=1, triggers=[]),
}


@pytest.mark.seed("H26")
@pytest.mark.parametrize("write", WRITES)
def test_an_owner_whose_epoch_is_over_changes_nothing(owned: Registry, write: str) -> None:
    owned.progress.request_halt(REGION, "stop")
    owned.progress.set_epoch(REGION, 2)
    owned.save_cursor(REGION, "lines", "new", epoch=2)

    def contents() -> Any:
        return owned.region_info(REGION), owned.by_order(REGION, [1, 2, 3]), owned.load_cursor(REGION, "lines")

    before = contents()
    with pytest.raises(Fenced):
        WRITES[write](owned)
    assert contents() == before


@pytest.mark.seed("H26")
def test_a_region_that_vanished_fences_its_owner(registry: Registry) -> None:
    with pytest.raises(Fenced):
        registry.progress.set_state("unheard/of", 1, "PROCESSING")


# --- progress -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("H27", "R3")
def test_a_registry_is_empty_until_a_run_has_written_even_if_a_scan_has(registry: Registry) -> None:
    assert registry.is_empty(REGION)
    registry.triggers.add(REGION, [found(1)])
    assert registry.is_empty(REGION)
    registry.progress.set_epoch(REGION, 1)
    assert not registry.is_empty(REGION)


def test_errors_states_and_hints_are_kept_and_cleared(owned: Registry) -> None:
    owned.progress.record_error(REGION, 1, {"id": "BAD_INPUT", "operator": "words"})
    owned.progress.set_state(REGION, 1, "DRAINING")
    info = owned.region_info(REGION)
    assert info.last_error == {"id": "BAD_INPUT", "operator": "words"}
    assert info.last_error_at is not None
    assert info.state == "DRAINING"
    owned.progress.clear_error(REGION, 1)
    assert owned.region_info(REGION).last_error is None
    assert owned.region_info(REGION).last_error_at is None


def test_a_halt_can_be_asked_for_by_anybody_and_taken_back_by_the_owner(registry: Registry) -> None:
    registry.progress.request_halt(REGION, "maintenance")
    assert registry.region_info(REGION).halt_requested == "maintenance"
    registry.progress.set_epoch(REGION, 1)
    registry.progress.clear_halt_request(REGION, 1)
    assert registry.region_info(REGION).halt_requested is None


def test_probes_are_remembered_beside_each_other(registry: Registry) -> None:
    assert registry.progress.get_probed(REGION) == {}
    registry.progress.set_probed(REGION, {"words": "a"})
    registry.progress.set_probed(REGION, {"hosts": "b"})
    registry.progress.set_probed(REGION, {"words": "c"})
    assert registry.progress.get_probed(REGION) == {"words": "c", "hosts": "b"}


def test_cursors_are_kept_by_source(registry: Registry) -> None:
    assert registry.load_cursor(REGION, "lines") is None
    registry.save_cursor(REGION, "lines", "{}")
    registry.save_cursor(REGION, "lines", '{"at": 1}')
    registry.save_cursor(REGION, "others", "{}")
    assert registry.load_cursor(REGION, "lines") == '{"at": 1}'


# --- rebuild ------------------------------------------------------------------------------------------------------


def rebuilt(number: int, status: TriggerStatus, sequence_id: int | None = None) -> RebuiltTrigger:
    new = found(number)
    return RebuiltTrigger(
        uri=new.uri,
        identity=new.identity,
        identity_key=new.identity_key,
        size_bytes=new.size_bytes,
        order_index=number,
        status=status,
        sequence_id=sequence_id,
        reason="why" if status is TriggerStatus.REFUSED else None,
    )


@pytest.mark.seed("H27", "R3")
def test_a_rebuilt_region_is_what_it_was(owned: Registry, tmp_path: Path) -> None:
    commit(owned, 1)
    _, third = owned.triggers.pending(REGION, 2)
    owned.triggers.mark(REGION, 1, [third.id], TriggerStatus.REFUSED, "why")

    def durable() -> list[tuple[Any, ...]]:
        rows = owned.by_order(REGION, [1, 2, 3, 4])
        return [(row.uri, row.identity, row.order_index, row.status, row.sequence_id, row.reason) for row in rows]

    before, info = durable(), owned.region_info(REGION)
    triggers = [
        rebuilt(2, TriggerStatus.PENDING),
        rebuilt(1, TriggerStatus.COMMITTED, 1),
        rebuilt(3, TriggerStatus.REFUSED),
    ]
    owned.rebuild(REGION, epoch=1, next_id=2, triggers=triggers)
    assert durable() == before
    assert owned.region_info(REGION) == info
    assert owned.triggers.add(REGION, [found(1), found(4)]) == 1
    assert uris(owned) == [2, 4]


@pytest.mark.seed("H27", "H40")
def test_a_rebuild_drops_what_it_is_not_told_and_never_lowers_the_next_id(owned: Registry) -> None:
    owned.progress.take_ids(REGION, 1, 10)
    owned.save_cursor(REGION, "lines", "{}")
    owned.triggers.add("other", [found(1)])
    owned.rebuild(REGION, epoch=4, next_id=3, triggers=[])
    assert owned.region_info(REGION).next_id == 11
    assert owned.region_info(REGION).epoch == 4
    assert owned.pending_count(REGION) == 0
    assert owned.load_cursor(REGION, "lines") is None
    assert owned.pending_count("other") == 1


@pytest.mark.seed("H27")
def test_a_rebuild_that_fails_leaves_everything(owned: Registry) -> None:
    twice = [rebuilt(1, TriggerStatus.PENDING), rebuilt(5, TriggerStatus.PENDING, 1)]
    object.__setattr__(twice[1], "order_index", 1)  # two inputs at one place: the table refuses
    with pytest.raises(Exception, match=r"(?i)unique"):
        owned.rebuild(REGION, epoch=9, next_id=1, triggers=twice)
    assert uris(owned) == [1, 2, 3]
    assert owned.region_info(REGION).epoch == 1


# --- several processes --------------------------------------------------------------------------------------------

ADD = """
import sys
from drainmark.resources.registry.registry import Registry
from drainmark.jobs.protocol.records.triggers import NewTrigger
registry = Registry(sys.argv[1])
found = [NewTrigger(uri=f"file:///in/{n}", identity={}, identity_key="1", size_bytes=1) for n in range(600)]
sys.stdin.readline()
print(sum(registry.triggers.add("app/start", found[at : at + 20]) for at in range(0, 600, 20)))
"""

TAKE = """
import sys
from drainmark.resources.registry.registry import Registry
registry = Registry(sys.argv[1])
sys.stdin.readline()
print(*(registry.progress.take_ids("app/start", 1, 2) for _ in range(40)))
"""


def race(program: str, url: str) -> list[str]:
    """Run a program in two processes that start their work together; return their output."""
    command = [sys.executable, "-c", program, url]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=SOON)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    return outputs


@pytest.mark.seed("R1")
def test_two_scans_at_once_add_each_input_once(registry: Registry, url: str) -> None:
    added = [int(output) for output in race(ADD, url)]
    assert sum(added) == 600
    orders = [trigger.order_index for trigger in registry.triggers.pending(REGION, 1000)]
    assert len(orders) == len(set(orders)) == 600


@pytest.mark.seed("E16")
def test_two_processes_never_get_the_same_ids(registry: Registry, url: str) -> None:
    registry.progress.set_epoch(REGION, 1)
    firsts = [int(first) for output in race(TAKE, url) for first in output.split()]
    assert sorted(firsts) == list(range(1, 161, 2))


TAKE_FILES = """
import sys
from drainmark.resources.registry.registry import Registry
registry = Registry(sys.argv[1])
sys.stdin.readline()
while taken := registry.triggers.take_pending("app/start", 1, 7, sequence_id=3):
    print(*(trigger.order_index for trigger in taken))
"""


@pytest.mark.seed("V46", "R1")
def test_two_processes_never_take_the_same_inputs(owned: Registry, url: str) -> None:
    owned.triggers.add(REGION, [found(number) for number in range(4, 301)])
    taken = [int(place) for output in race(TAKE_FILES, url) for place in output.split()]
    assert sorted(taken) == list(range(1, 301))
    assert owned.pending_count(REGION) == 0
    assert {trigger.sequence_id for trigger in owned.by_order(REGION, [1, 150, 300])} == {3}


@pytest.mark.seed("V46")
def test_inputs_are_taken_in_order_within_bounds(owned: Registry) -> None:
    assert [trigger.order_index for trigger in owned.triggers.take_pending(REGION, 1, 5, 25, sequence_id=1)] == [1, 2]
    assert [trigger.order_index for trigger in owned.triggers.take_pending(REGION, 1, 5, 1, sequence_id=2)] == [3]
    assert owned.triggers.take_pending(REGION, 1, 5, sequence_id=3) == []


STUCK = """
import sys
from drainmark.resources.registry.registry import Registry
registry = Registry(sys.argv[1])
with registry.database.writing():
    print("writing", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.seed("H25")
def test_a_locked_registry_is_readable_and_names_the_process_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    monkeypatch.setattr(engines, "BUSY_SECONDS", 0.2)
    registry = Registry(url)
    command = [sys.executable, "-c", STUCK, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "writing\n"
        assert registry.pending_count(REGION) == 0
        with pytest.raises(StoreUnavailable) as caught:
            registry.triggers.add(REGION, [found(1)])
        child.communicate("go\n", timeout=SOON)
    if Path("/proc/locks").exists():
        assert caught.value.facts["pid"] in {child.pid, None}  # some sandboxes list no locks
    assert registry.triggers.add(REGION, [found(1)]) == 1
    registry.close()


def test_a_reader_waits_for_no_writer_however_many_threads_of_this_process_wait(registry: Registry) -> None:
    values = {"region": REGION, "source": "one", "cursor": "first"}
    with ThreadPoolExecutor(20) as pool:
        with registry.database.writing() as connection:
            connection.execute(statement("cursors/save"), values)
            waiting = [pool.submit(registry.save_cursor, REGION, "one", str(number)) for number in range(20)]
            time.sleep(0.5)
            begun = time.monotonic()
            assert registry.load_cursor(REGION, "one") is None
            assert time.monotonic() - begun < 10
        for each in waiting:
            each.result()
    assert registry.load_cursor(REGION, "one") in map(str, range(20))


# --- opening ------------------------------------------------------------------------------------------------------


@pytest.mark.seed("V162")
def test_the_file_is_for_its_owner_alone_and_writes_are_durable(tmp_path: Path) -> None:
    registry = Registry(f"sqlite:///{tmp_path}/home/registry.db")
    registry.triggers.add(REGION, [found(1)])
    for file in (tmp_path / "home").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    with registry.database.reading() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
    registry.close()


def test_what_other_processes_write_is_seen_after_a_second_opening_in_this_one(tmp_path: Path) -> None:
    """A close of a file drops all locks of the process on it; without a lock, other processes delete its log."""
    url = f"sqlite:///{tmp_path}/registry.db"
    registry = Registry(url)
    registry.progress.set_epoch(REGION, 1)
    Registry(url).close()
    for epoch in (2, 3):  # the deleted log has a copy of the first change: only the second one proves it
        other = f"registry = Registry({url!r}); registry.progress.set_epoch({REGION!r}, {epoch}); registry.close()"
        program = f"from {Registry.__module__} import Registry; {other}"
        subprocess.run([sys.executable, "-c", program], check=True)
        assert registry.region_info(REGION).epoch == epoch
    registry.close()


def test_processes_that_make_the_file_at_the_same_moment_wait_for_each_other(tmp_path: Path) -> None:
    file, begun = tmp_path / "registry.db", threading.Event()

    def make() -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begun.set()
            time.sleep(0.3)
            other.execute("COMMIT")

    making = threading.Thread(target=make)
    making.start()
    begun.wait()
    registry = Registry(f"sqlite:///{file}")
    making.join()
    registry.progress.set_epoch(REGION, 1)
    registry.close()


def test_a_file_that_was_deleted_is_opened_anew(tmp_path: Path) -> None:
    """A service goes on while an operator deletes the registry, and follows the remedy `drainmark doctor --repair`."""
    home = tmp_path / "home"
    place = Workplace(Settings(home=home, project_root=tmp_path), is_service=True)
    for epoch in (1, 2):
        assert place.registry.is_empty(REGION)
        place.registry.progress.set_epoch(REGION, epoch)
        for file in home.glob("registry.db*"):
            file.unlink()
    rebuilt = Registry(f"sqlite:///{home}/registry.db")
    rebuilt.progress.set_epoch(REGION, 3)
    rebuilt.close()
    assert place.registry.region_info(REGION).epoch == 3
    assert place.registry is place.registry
    place.registry.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "nonsense"])
def test_a_url_that_names_no_registry_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Registry(url)


def test_a_damaged_file_names_the_repair(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"this was a registry once" * 100)
    with pytest.raises(RegistryLost) as caught:
        Registry(f"sqlite:///{tmp_path}/registry.db")
    assert "doctor --repair" in (caught.value.remedy or "")


def test_damage_of_an_open_registry_is_the_same_error_for_a_writer_and_a_reader(tmp_path: Path) -> None:
    registry = Registry(f"sqlite:///{tmp_path}/registry.db")
    with closing(sqlite3.connect(tmp_path / "registry.db")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else the log would hide the damage
    (tmp_path / "registry.db").write_bytes(b"this was a registry once" * 1000)
    for use in (lambda: registry.triggers.add(REGION, [found(1)]), lambda: registry.region_info(REGION)):
        with pytest.raises(DatabaseError):
            use()
    registry.close()


def test_importing_the_registry_loads_no_framework_and_no_models() -> None:
    program = (
        "import sys, drainmark.resources.settings;"
        "import drainmark.resources.registry.registry, drainmark.resources.registry.lease;"
        "heavy = {'dagster', 'pyspark', 'boto3', 'alembic', 'sqlmodel', 'deltalake', 'psutil'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_ten_thousand_inputs_are_added_at_once(tmp_path: Path) -> None:
    registry = Registry(f"sqlite:///{tmp_path}/registry.db")
    assert registry.triggers.add(REGION, [found(number) for number in range(10_000)]) == 10_000
    assert len(registry.triggers.known(REGION)) == 10_000
    registry.close()
