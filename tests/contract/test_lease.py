"""Leases between real processes: killed, stopped, racing (H25)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from waiting import SOON, eventually

from drainmark.jobs.errors import Owned
from drainmark.resources.registry.lease import Lease, describe, process_started
from drainmark.resources.registry.registry import Registry

REGION = "app/start"
LEASE_SECONDS = 1.5
LONG_SECONDS = 3600.0
"""A lease that lasts, however late its heartbeats are on a busy machine."""
HEARTBEAT_SECONDS = 0.2

HOLD = f"""
import logging, sys
from drainmark.resources.registry.lease import Lease
from drainmark.resources.registry.registry import Registry
told = []
class Noting(logging.Handler):
    def emit(self, record):
        told.append(record.action)
logging.getLogger().addHandler(Noting())
lease = Lease.acquire(
    Registry(sys.argv[1]), "{REGION}", "child", lease_seconds={LEASE_SECONDS}, heartbeat_seconds={HEARTBEAT_SECONDS}
)
print("held", flush=True)
sys.stdin.readline()
lease._thread.join({SOON})  # the thread ends when it learns that it lost
print("lost" if "lease_lost" in told else "kept", flush=True)
"""

RACE = f"""
import sys
from drainmark.jobs.errors import Owned
from drainmark.resources.registry.lease import Lease
from drainmark.resources.registry.registry import Registry
registry = Registry(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    Lease.acquire(registry, "{REGION}", "child")
    print("won", flush=True)
except Owned:
    print("refused", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def registry(url: str) -> Iterator[Registry]:
    opened = Registry(url)
    yield opened
    opened.close()


def acquire(registry: Registry, run_id: str = "run", seconds: float = LONG_SECONDS) -> Lease:
    return Lease.acquire(registry, REGION, run_id, lease_seconds=seconds, heartbeat_seconds=HEARTBEAT_SECONDS)


@contextmanager
def child(program: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has printed its first line; kill it at the end, even if it is stopped."""
    command = [sys.executable, "-c", program, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str]) -> str:
    """Let a child go on; return the line that it prints next."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def owner_of(registry: Registry) -> str:
    owner = describe(registry, REGION)
    assert owner
    return owner.run_id


def heartbeat(registry: Registry) -> float:
    owner = describe(registry, REGION)
    assert owner
    return owner.heartbeat_at.timestamp()


# --- one process --------------------------------------------------------------------------------------------------


def test_a_lease_says_who_holds_it_until_it_is_released(registry: Registry) -> None:
    assert describe(registry, REGION) is None
    with acquire(registry, "run-1"):
        owner = describe(registry, REGION)
        assert owner
        assert (owner.pid, owner.run_id, owner.is_alive) == (os.getpid(), "run-1", True)
        assert abs(owner.acquired_at.timestamp() - time.time()) < 60
    assert describe(registry, REGION) is None


@pytest.mark.parametrize("clean", [True, False])
def test_the_next_owner_learns_how_the_last_one_ended(registry: Registry, clean: bool) -> None:
    first = acquire(registry)
    assert first.previous_clean is None
    first.release(clean=clean)
    second = acquire(registry)
    assert second.previous_clean is clean
    second.release(clean=True)


def test_an_error_in_the_block_is_no_clean_end(registry: Registry) -> None:
    with pytest.raises(ZeroDivisionError), acquire(registry):
        raise ZeroDivisionError
    with acquire(registry) as lease:
        assert lease.previous_clean is False


@pytest.mark.seed("V61")
def test_a_held_lease_is_refused_even_within_one_process(registry: Registry) -> None:
    with acquire(registry, "run-1"), pytest.raises(Owned) as caught:
        acquire(registry, "run-2")
    assert caught.value.exit_code == 4
    assert (caught.value.facts["pid"], caught.value.facts["run_id"]) == (os.getpid(), "run-1")
    assert f"owned by pid {os.getpid()} on " in str(caught.value)


@pytest.mark.seed("V61")
def test_regions_have_leases_of_their_own(registry: Registry) -> None:
    with acquire(registry), Lease.acquire(registry, "other", "run"):
        assert describe(registry, REGION)
        assert describe(registry, "other")


def test_the_heartbeat_goes_on_while_the_owner_works(registry: Registry) -> None:
    with acquire(registry):
        first = heartbeat(registry)
        eventually(lambda: heartbeat(registry) > first)


def test_an_owner_that_lost_its_lease_notices_and_does_not_release_the_new_one(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    lease = acquire(registry)
    with registry.database.writing() as connection:
        connection.execute(text("UPDATE drainmark_lease SET token = 'somebody else'"))
    eventually(lambda: caplog.messages == [f"Lease of {REGION} was taken over"])
    lease.release(clean=True)
    assert describe(registry, REGION)


def test_processes_are_known_by_their_start_time() -> None:
    own = process_started(os.getpid())
    assert own is not None
    assert own == process_started(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert process_started(process.pid) is not None
        process.kill()
        # Nobody has waited for it yet: a zombie still has its number, but will never write again.
        eventually(lambda: process_started(process.pid) is None)
    assert process_started(process.pid) is None


# --- several processes --------------------------------------------------------------------------------------------


@pytest.mark.seed("H25")
def test_a_killed_owner_is_taken_over_at_once(registry: Registry, url: str) -> None:
    with child(HOLD, url) as owner:
        with pytest.raises(Owned) as caught:
            acquire(registry)
        assert caught.value.facts["pid"] == owner.pid
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        seen = describe(registry, REGION, lease_seconds=LONG_SECONDS)
        assert seen
        assert not seen.is_alive
        # The lease lasts an hour: only the death of the process can be the reason.
        lease = acquire(registry, "next")
        assert lease.previous_clean is None
        lease.release(clean=True)


@pytest.mark.seed("H25")
def test_a_process_that_got_the_number_of_a_dead_owner_does_not_own(registry: Registry) -> None:
    abandoned = acquire(registry)
    abandoned._stop.set()
    with registry.database.writing() as connection:
        connection.execute(text("UPDATE drainmark_lease SET process_started = 'long ago'"))
    with acquire(registry, "next"):
        assert owner_of(registry) == "next"


@pytest.mark.seed("H25")
@pytest.mark.parametrize("column", ["host", "boot_id"])
def test_an_owner_elsewhere_keeps_its_lease_until_it_expires(registry: Registry, column: str) -> None:
    abandoned = acquire(registry)
    abandoned._stop.set()
    abandoned._thread.join()
    with registry.database.writing() as connection:
        # There is no such process here; but there may be one on another machine, or in another pid namespace.
        connection.execute(text(f"UPDATE drainmark_lease SET {column} = 'elsewhere', pid = 0"))  # noqa: S608
    with pytest.raises(Owned):
        acquire(registry)
    with registry.database.writing() as connection:
        connection.execute(text("UPDATE drainmark_lease SET heartbeat_at = heartbeat_at - 3601"))
    acquire(registry).release(clean=True)


@pytest.mark.seed("H25")
def test_a_stopped_owner_keeps_its_lease_until_it_expires_and_then_learns_that_it_lost(
    registry: Registry, url: str
) -> None:
    with child(HOLD, url) as owner:
        owner.send_signal(signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        last = heartbeat(registry)
        with pytest.raises(Owned):
            acquire(registry)
        taken: list[Lease] = []

        def take() -> bool:
            try:
                taken.append(acquire(registry, "next", LEASE_SECONDS))
            except Owned:
                return False
            return True

        eventually(take)
        since = describe(registry, REGION)
        assert since
        assert since.acquired_at.timestamp() - last >= LEASE_SECONDS - 0.01
        owner.send_signal(signal.SIGCONT)
        assert say(owner) == "lost"
        assert owner_of(registry) == "next"
        taken[0].release(clean=True)


@pytest.mark.seed("H25")
def test_of_three_processes_that_race_for_a_lease_one_gets_it(registry: Registry, url: str) -> None:
    # The owner died without a release: all three find a lease that is free.
    abandoned = acquire(registry)
    abandoned._stop.set()
    abandoned._thread.join()
    with registry.database.writing() as connection:
        connection.execute(text("UPDATE drainmark_lease SET process_started = 'long ago'"))
    with child(RACE, url) as one, child(RACE, url) as two, child(RACE, url) as three:
        racers = (one, two, three)
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("\n")
            racer.stdin.flush()
        outcomes = [racer.stdout.readline().strip() for racer in racers if racer.stdout]
        assert sorted(outcomes) == ["refused", "refused", "won"]
        owner = describe(registry, REGION)
        assert owner
        assert owner.pid == racers[outcomes.index("won")].pid
