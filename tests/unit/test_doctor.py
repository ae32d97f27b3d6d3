"""Checks of `doctor` that need no region: disk, store, settings, versions, Dagster's daemons."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import HandFed
from killed_commands import KILLED, killed_at

from drainmark.jobs.errors import Fenced
from drainmark.jobs.failpoints import FailPoint
from drainmark.orchestration.doctor import examine, machine
from drainmark.orchestration.doctor.findings import Finding, Severity
from drainmark.orchestration.doctor.machine import daemons
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta.health.store_check import shortcomings
from drainmark.resources.registry.lease import Lease
from drainmark.resources.settings import Settings
from drainmark.resources.storage.folder import LocalFolder

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/export /net/nfs nfs4 rw 0 0
user@host:/ /net/with\\040space fuse.sshfs rw 0 0
/dev/sdb1 /net/nfs/local xfs rw 0 0
tmpfs /net/nfsish tmpfs rw 0 0
"""


@pytest.mark.seed("R7")
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/opt/registry.db", None),
        ("/net/nfs/project/registry.db", "nfs4"),
        ("/net/nfs/local/registry.db", None),
        ("/net/nfsish/registry.db", None),
        ("/net/with space/registry.db", "fuse.sshfs"),
    ],
)
def test_sqlite_on_a_network_disk_is_refused(file: str, kind: str | None) -> None:
    found = machine.registry_disk(f"sqlite:///{file}", MOUNTS)
    assert found.verdict is (Severity.OK if kind is None else Severity.FAIL)
    if kind is not None:
        assert kind in found.message
        assert "postgresql" in (found.remedy or "")
    assert machine.registry_disk("postgresql://host/db", MOUNTS).verdict is Severity.OK


@pytest.mark.parametrize(
    ("conf", "verdict"),
    [
        ({}, Severity.OK),
        ({"spark.hadoop.fs.s3a.performance.flags": "mkdir"}, Severity.OK),
        ({"spark.hadoop.fs.s3a.performance.flags": "mkdir, Create"}, Severity.FAIL),
        ({"spark.hadoop.fs.s3a.performance.flags": "*"}, Severity.FAIL),
        ({"fs.s3a.create.performance": "true"}, Severity.FAIL),
        ({"fs.s3a.create.performance": "false"}, Severity.OK),
    ],
)
def test_a_flag_by_which_commits_overwrite_each_other_is_refused(conf: dict[str, str], verdict: Severity) -> None:
    """Delta commits with a create that must not overwrite; with the flag, S3A lets this create overwrite."""
    assert machine.spark_settings(conf).verdict is verdict


def test_versions_that_drainmark_does_not_ask_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.versions().verdict is Severity.OK
    wanted = ["pyarrow>=999", "no-such-package", "typer", "psycopg>=999; extra == 'postgres'"]
    monkeypatch.setattr(machine, "requires", lambda name: wanted)
    found = machine.versions()
    assert found.verdict is Severity.FAIL
    assert "pyarrow" in found.message
    assert "no-such-package is missing" in found.message
    assert "typer" not in found.message
    assert "psycopg" not in found.message, "an extra that nobody asked for"


# --- the store ----------------------------------------------------------------------------------------------------


def test_room_for_the_tables_is_asked_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tables may be on separate disks."""
    tables, other = LocalFolder(tmp_path / "tables"), tmp_path / "other disk"
    (tmp_path / "tables").mkdir()
    (finding,) = machine.tables_disk(tables, MOUNTS)
    assert finding.verdict is Severity.OK, "what does not exist yet is made on the disk above"
    (tables.path / "lake").symlink_to(other)
    (finding,) = machine.tables_disk(tables, MOUNTS)
    assert finding.verdict is Severity.FAIL
    assert str(other) in finding.message, "it is not mounted"
    other.mkdir()
    free = {str(other): 1000, str(tables.path): 10**12}
    usage = shutil.disk_usage

    def asked(place: Path) -> Any:
        return usage(place)._replace(free=free[str(place.resolve())])

    monkeypatch.setattr(machine.shutil, "disk_usage", asked)
    (finding,) = machine.tables_disk(tables, MOUNTS)
    assert (finding.verdict, finding.check) == (Severity.FAIL, "tables_disk")
    assert "1000 bytes" in finding.message
    assert str(tables.path / "lake") in finding.message
    free[str(other)] = 10**10
    (finding,) = machine.tables_disk(tables, MOUNTS)
    assert finding.verdict is Severity.OK
    assert "10.0 GB" in finding.message, "the disk with the least room"


def test_tables_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    found = machine.tables_disk(LocalFolder(tmp_path), MOUNTS)
    assert [finding.verdict for finding in found] == [Severity.FAIL]
    assert str(tmp_path / "state") in found[0].message
    assert list(tmp_path.iterdir()) == [tmp_path / "state"], "it leaves nothing behind"


@pytest.mark.seed("K3")
def test_tables_in_memory_do_not_outlive_the_container_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    mounts = f"{MOUNTS}tmpfs {tmp_path / 'state'} tmpfs rw 0 0\n"
    (finding,) = machine.tables_disk(LocalFolder(tmp_path), mounts)
    assert finding.verdict is Severity.WARN
    assert str(tmp_path / "state") in finding.message
    assert finding.remedy


class Overwriting(LocalFolder):
    """A store without put-if-absent."""

    def write(self, path: str, data: pa.Buffer) -> None:
        (self.path / path).parent.mkdir(exist_ok=True)
        (self.path / path).write_bytes(data)


@pytest.mark.seed("D3")
def test_a_store_is_tried_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortcomings(LocalFolder(tmp_path)) == []
    wrong = shortcomings(Overwriting(tmp_path))
    assert any("written over another" in what for what in wrong)
    assert any("not the content that was written" in what for what in wrong)

    def refuse(*names: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    (what,) = shortcomings(LocalFolder(tmp_path))
    assert "hard links" in what
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    (what,) = shortcomings(LocalFolder(tmp_path / "file"))
    assert "does not answer" in what


# --- Dagster ------------------------------------------------------------------------------------------------------


def verdicts(found: list[Finding]) -> dict[str, Severity]:
    return {finding.check: finding.verdict for finding in found}


@pytest.fixture
def dagster_home(tmp_path: Path) -> Path:
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("run_retries: {enabled: true}\nrun_monitoring: {enabled: true}\n")
    return home


def beat(dagster_home: Path, daemon_type: str, daemon_id: str, seconds_ago: float = 0.0) -> None:
    """Write a heartbeat as a daemon does."""
    import dagster as dg
    from dagster._daemon.types import DaemonHeartbeat

    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        heartbeat = DaemonHeartbeat(time.time() - seconds_ago, daemon_type, daemon_id, errors=[])
        instance.add_daemon_heartbeat(heartbeat)


@pytest.mark.seed("FM-C1")
def test_two_daemons_are_seen_in_their_heartbeats(dagster_home: Path) -> None:
    assert verdicts(daemons(dagster_home)) == {"one_daemon": Severity.OK}
    beat(dagster_home, "SENSOR", "first")
    beat(dagster_home, "SCHEDULER", "first")
    beat(dagster_home, "BACKFILL", "gone", seconds_ago=600)
    assert verdicts(daemons(dagster_home)) == {"one_daemon": Severity.OK}
    beat(dagster_home, "SCHEDULER", "second")
    assert verdicts(daemons(dagster_home)) == {"one_daemon": Severity.FAIL}


def test_a_dagster_home_without_settings_is_told(tmp_path: Path) -> None:
    assert verdicts(daemons(tmp_path / "none")) == {"dagster": Severity.OK}
    assert verdicts(daemons(tmp_path)) == {"dagster": Severity.WARN}


def test_an_instance_of_others_that_cannot_be_opened_here_is_no_fault_of_the_home(tmp_path: Path) -> None:
    """Its database may have a password that only Dagster's machine knows."""
    own, platform = tmp_path / "own", tmp_path / "platform"
    platform.mkdir()
    (platform / "dagster.yaml").write_text("storage: {sqlite: {base_dir: {env: NOBODY_HAS_SET_THIS}}}\n")
    (found,) = machine.instance(own, platform)
    assert (found.check, found.verdict) == ("instance", Severity.WARN)
    assert "NOBODY_HAS_SET_THIS" in found.message
    with pytest.raises(Exception, match="NOBODY_HAS_SET_THIS"):
        machine.instance(platform, platform)


def line_of(found: Finding) -> str:
    """Return the line of `dagster.yaml` that a remedy names."""
    return (found.remedy or "").split("`")[1]


def test_what_an_instance_lacks_is_told(dagster_home: Path) -> None:
    (dagster_home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    retries, monitoring, daemon = daemons(dagster_home)
    assert (retries.verdict, monitoring.verdict, daemon.verdict) == (Severity.WARN, Severity.WARN, Severity.OK)
    (dagster_home / "dagster.yaml").write_text(f"{line_of(retries)}\n{line_of(monitoring)}\n")
    assert verdicts(daemons(dagster_home)) == {"one_daemon": Severity.OK}


def test_an_instance_that_keeps_the_places_of_killed_runs_is_told_where_there_are_pools(dagster_home: Path) -> None:
    import dagster as dg

    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        instance.event_log_storage.set_concurrency_slots("spark", 1)
    found, daemon = daemons(dagster_home)
    assert (found.check, found.verdict, daemon.verdict) == ("instance", Severity.WARN, Severity.OK)
    (dagster_home / "dagster.yaml").write_text(f"run_retries: {{enabled: true}}\n{line_of(found)}\n")
    assert verdicts(daemons(dagster_home)) == {"one_daemon": Severity.OK}


def test_a_launcher_of_containers_needs_run_monitoring(dagster_home: Path) -> None:
    """Else the sensors see a run that dies in the op of its region, and no other one."""
    launcher = "run_launcher: {module: dagster._core.test_utils, class: MockedRunLauncher}"
    (dagster_home / "dagster.yaml").write_text(f"run_retries: {{enabled: true}}\n{launcher}\n")
    found, _ = daemons(dagster_home)
    assert "container" in found.message


@pytest.fixture
def two_daemons(dagster_home: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start two of Dagster's own daemons on one instance, with nothing to run; yield their processes."""
    (dagster_home / "workspace.yaml").write_text("load_from: []\n")
    beat(dagster_home, "BACKFILL", "gone", seconds_ago=600)  # creates the databases; two daemons at once cannot
    command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(dagster_home / "workspace.yaml")]
    environment = {**os.environ, "DAGSTER_HOME": str(dagster_home)}
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.seed("FM-C1")
def test_two_daemons_are_seen_while_they_live(dagster_home: Path, two_daemons: list[subprocess.Popen[bytes]]) -> None:
    assert verdicts(daemons(dagster_home)) == {"one_daemon": Severity.FAIL}
    assert all(str(process.pid) in daemons(dagster_home)[0].message for process in two_daemons)


def writers(place: Workplace) -> tuple[str, str]:
    """Return the verdict and the message about the one writer of the only region."""
    ((verdict, message),) = [
        (each["verdict"], each["message"])
        for each in examine(place, with_engine=False)["checks"]
        if each["check"] == "one_writer"
    ]
    return verdict, message


@pytest.fixture
def drained(tmp_path: Path) -> Iterator[HandFed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    fed = HandFed(place, tmp_path / "inbox")
    fed.write("a", ["1"])
    fed.add("a")
    fed.drain()
    yield fed
    place.registry.close()


@pytest.mark.seed("R4")
def test_an_owner_that_was_passed_in_another_registry_is_told(drained: HandFed, tmp_path: Path) -> None:
    place = drained.workplace
    file = tmp_path / "second.db"
    with closing(sqlite3.connect(place.home / "registry.db")) as first, closing(sqlite3.connect(file)) as second:
        first.backup(second)
    others = Workplace(place.settings.model_copy(update={"registry_url": f"sqlite:///{file}"}))
    owning = drained.owning()
    owning.__enter__()
    assert writers(place)[0] == "ok"
    with HandFed(others, drained.inbox).owning():
        pass
    verdict, message = writers(place)
    assert (verdict, str(os.getpid()) in message) == ("fail", True)
    with pytest.raises(Fenced):
        owning.__exit__(None, None, None)
    others.registry.close()


@pytest.mark.seed("R4")
def test_a_claim_whose_process_died_before_it_told_the_registry_is_no_second_owner(drained: HandFed) -> None:
    place, home = drained.workplace, str(drained.workplace.home)
    at = f"{FailPoint.CLAIM_AFTER}:kill"
    assert killed_at(at, "halt", drained.region, "--reason", "stock-taking", "--home", home) == KILLED
    assert place.registry.region_info(drained.region).epoch < drained.history().epoch
    assert writers(place)[0] == "ok"
    with Lease.acquire(place.registry, drained.region, "the next owner, before its claim"):
        assert writers(place)[0] == "ok"
