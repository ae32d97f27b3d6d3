"""A PostgreSQL that restarts, stays away, loses its answer or becomes a standby (fault matrix R2, C4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import At
from postgres import PostgresServer, server
from sqlalchemy import make_url, text
from waiting import eventually

from drainmark.jobs.errors import Owned, Retry, StoreUnavailable
from drainmark.jobs.protocol.records.triggers import NewTrigger, RebuiltTrigger, TriggerStatus
from drainmark.jobs.world import entered
from drainmark.resources.registry.lease import Lease, describe
from drainmark.resources.registry.registry import Registry

__all__ = ["server"]

REGION = "app/start"


@pytest.fixture
def registry(server: PostgresServer) -> Iterator[Registry]:
    """Yield a registry with a region at epoch 1 and three pending inputs."""
    opened = Registry(server.new_database())
    opened.triggers.add(REGION, [found(number) for number in (1, 2, 3)])
    opened.progress.set_epoch(REGION, 1)
    yield opened
    opened.close()


def found(number: int) -> NewTrigger:
    return NewTrigger(uri=f"file:///in/{number}", identity={"n": number}, identity_key=str(number), size_bytes=1)


@pytest.mark.seed("R2")
@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_what_was_written_is_there_after_a_restart_and_nobody_has_to_open_anew(
    registry: Registry, server: PostgresServer, mode: str
) -> None:
    assert registry.progress.take_ids(REGION, 1, 2) == 1
    server.restart(mode)
    assert registry.pending_count(REGION) == 3
    assert registry.progress.take_ids(REGION, 1, 1) == 3


@pytest.mark.seed("R2")
def test_a_transaction_that_is_cut_is_an_outage_and_left_nothing(registry: Registry, server: PostgresServer) -> None:
    def write() -> None:
        with registry.database.writing() as connection:
            connection.execute(text("UPDATE drainmark_region SET next_id = 99"))
            server.restart()
            connection.execute(text("UPDATE drainmark_region SET next_id = 100"))

    with pytest.raises(StoreUnavailable) as caught:
        write()
    assert caught.value.retry is Retry.WAIT
    assert registry.region_info(REGION).next_id == 1


@pytest.mark.seed("R2")
def test_a_server_that_is_away_is_waited_for_and_a_lease_survives_it(
    registry: Registry, server: PostgresServer
) -> None:
    lease = Lease.acquire(registry, REGION, "run", heartbeat_seconds=0.1)
    server.stop()
    try:
        for ask in (lambda: registry.pending_count(REGION), lambda: registry.progress.take_ids(REGION, 1, 1)):
            with pytest.raises(StoreUnavailable):
                ask()
        threading.Event().wait(0.3)  # heartbeats fail in this time
    finally:
        server.start()
    before = describe(registry, REGION)
    assert before
    beaten = before.heartbeat_at

    def beats() -> bool:
        after = describe(registry, REGION)
        assert after
        return after.heartbeat_at > beaten

    eventually(beats, "a heartbeat after the server came back")
    lease.release(clean=True)
    assert describe(registry, REGION) is None


@pytest.mark.seed("R2", "H25")
def test_a_lease_that_could_not_be_released_is_free_for_the_same_process(
    registry: Registry, server: PostgresServer
) -> None:
    """Otherwise a run that waits out an outage would find the region owned by itself."""
    lease = Lease.acquire(registry, REGION, "run")
    server.stop()
    try:
        lease.release(clean=True)  # a run that has ended does not fail because of this
    finally:
        server.start()
    stale = describe(registry, REGION)
    assert stale
    assert stale.pid == os.getpid()
    with Lease.acquire(registry, REGION, "next") as next_lease:
        assert next_lease.previous_clean is None
        with pytest.raises(Owned):
            Lease.acquire(registry, REGION, "third")


@pytest.mark.seed("R2", "H25")
def test_a_lease_that_was_taken_without_an_answer_is_free_for_the_same_process(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LostReply(registry, monkeypatch, after=2), pytest.raises(StoreUnavailable):  # look, then take
        Lease.acquire(registry, REGION, "run")
    assert describe(registry, REGION), "it landed"
    Lease.acquire(registry, REGION, "next").release(clean=True)


@pytest.mark.seed("R2")
def test_a_standby_is_an_outage_not_a_bug(registry: Registry) -> None:
    """A connection that outlived a failover meets this: its server takes no writes any more."""
    with registry.database.reading() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    with pytest.raises(StoreUnavailable):
        registry.progress.take_ids(REGION, 1, 1)


@pytest.mark.seed("R2")
def test_of_several_hosts_the_one_that_answers_is_used(server: PostgresServer) -> None:
    url = make_url(server.new_database())
    several = url.set(query={"host": [str(server.folder / "gone"), str(server.folder)]})
    registry = Registry(several.render_as_string())
    assert registry.triggers.add(REGION, [found(1)]) == 1
    registry.close()


# --- the answer is lost: the transaction landed, the caller is told otherwise -------------------------------------


class LostReply:
    """A block in which, from the n-th commit on, the connection breaks right after the server has committed."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch, *, after: int = 1) -> None:
        self.dialect, self.patch, self.left = registry.database.engine.dialect, monkeypatch, after

    def __enter__(self) -> None:
        commit = self.dialect.do_commit

        def commit_and_break(connection: Any) -> None:
            commit(connection)
            self.left -= 1
            if self.left <= 0:
                import psycopg

                msg = "server closed the connection unexpectedly"
                raise psycopg.OperationalError(msg)

        self.patch.setattr(self.dialect, "do_commit", commit_and_break)

    def __exit__(self, *error: object) -> None:
        self.patch.undo()


def rebuilt() -> list[RebuiltTrigger]:
    return [
        RebuiltTrigger(
            uri="file:///in/1", identity={}, identity_key="1", size_bytes=1, order_index=1,
            status=TriggerStatus.COMMITTED, sequence_id=1,
        )
    ]  # fmt: skip


WRITES: dict[str, Callable[[Registry], Any]] = {
    "add_triggers": lambda registry: registry.triggers.add(REGION, [found(3), found(4)]),
    "settle": lambda registry: registry.triggers.settle(REGION, 1, [(1, 1), (2, 2)]),
    "mark_skipped": lambda registry: registry.triggers.mark_skipped(REGION, 1, 1, 1, "why"),
    "mark": lambda registry: registry.triggers.mark(REGION, 1, [1], TriggerStatus.REFUSED, "why"),
    "requeue_above": lambda registry: registry.triggers.requeue_above(REGION, 1, 0),
    "set_next_id": lambda registry: registry.progress.set_next_id(REGION, 1, 50),
    "set_state": lambda registry: registry.progress.set_state(REGION, 1, "DRAINING"),
    "request_halt": lambda registry: registry.progress.request_halt(REGION, "why"),
    "clear_halt_request": lambda registry: registry.progress.clear_halt_request(REGION, 1),
    "set_probed": lambda registry: registry.progress.set_probed(REGION, {"words": "a"}),
    "save_cursor": lambda registry: registry.save_cursor(REGION, "lines", "{}"),
    "rebuild": lambda registry: registry.rebuild(REGION, epoch=1, next_id=2, triggers=rebuilt()),
}


def contents(registry: Registry) -> Any:
    rows = registry.by_order(REGION, list(range(1, 20)))
    triggers = [(row.uri, row.order_index, row.status, row.sequence_id, row.reason) for row in rows]
    cursor = registry.load_cursor(REGION, "lines")
    return (registry.region_info(REGION), triggers, registry.progress.get_probed(REGION), cursor)


@pytest.mark.seed("R2")
@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_answer_was_lost_may_be_repeated(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with LostReply(registry, monkeypatch), pytest.raises(StoreUnavailable):
        WRITES[name](registry)
    landed = contents(registry)
    WRITES[name](registry)
    assert contents(registry) == landed


@pytest.mark.seed("R2", "E16")
def test_ids_whose_answer_was_lost_are_gone_and_never_given_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LostReply(registry, monkeypatch), pytest.raises(StoreUnavailable):
        registry.progress.take_ids(REGION, 1, 3)
    assert registry.progress.take_ids(REGION, 1, 1) == 4


@pytest.mark.seed("R2", "H26")
def test_an_epoch_whose_answer_was_lost_is_left_for_a_higher_one(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LostReply(registry, monkeypatch), pytest.raises(StoreUnavailable):
        registry.progress.set_epoch(REGION, 2)
    registry.progress.set_epoch(REGION, registry.region_info(REGION).epoch + 1)
    assert registry.region_info(REGION).epoch == 3


# --- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.seed("FM-C4")
def test_a_lease_expires_by_the_database_clock_alone(registry: Registry) -> None:
    """A host with a clock that is ahead takes no lease from others, and its own lease does not last longer."""
    with Lease.acquire(registry, REGION, "run"), entered(At(4_000_000_000.0)):
        owner = describe(registry, REGION)
        assert owner
        assert owner.heartbeat_age_seconds < 15
        assert owner.acquired_at.year < 2090
        with pytest.raises(Owned):
            Lease.acquire(registry, REGION, "ahead")
