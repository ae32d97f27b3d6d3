"""What other users of the machine learn of the Spark that a process starts for itself, and what they can do with it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import strangers

from drainmark.orchestration.testing.crash.killing import ChildServer
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark]


def processes(engine: SparkEngine) -> Iterator[psutil.Process]:
    """Yield the JVM of this process, and what it has started and has not ended, and this process."""
    assert engine.session.range(3).mapInArrow(lambda batches: batches, "id long").count() == 3
    yield psutil.Process()
    for each in psutil.Process().children(recursive=True):
        if not has_ended(each):
            yield each


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_line(process: psutil.Process) -> str:
    """Return what `ps` shows of a process; nothing, if it has ended since."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def test_no_port_of_it_reads_what_a_stranger_sends(engine: SparkEngine) -> None:
    found = {each.pid: strangers.conversations(each) for each in processes(engine)}
    assert len(found) > 1, "no JVM was asked"
    assert not any(found.values()), found


def test_its_secret_is_in_no_setting(engine: SparkEngine) -> None:
    settings = engine.session.sparkContext.getConf()
    assert settings.get("spark.authenticate") == "true"
    assert settings.get("spark.authenticate.secret") is None


def test_no_setting_is_on_a_command_line(engine: SparkEngine) -> None:
    """`ps` shows it to everyone, and a setting may be a password."""
    shown = [command_line(each) for each in processes(engine)]
    assert any("SparkSubmit" in line for line in shown)
    assert not any("--conf" in line for line in shown)


def test_the_server_of_the_test_kit_asks_for_a_token_that_only_its_user_can_read(tmp_path: Path) -> None:
    server = ChildServer(tmp_path)
    configuration = server._write_configuration()
    assert server.master.endswith(f"/;token={server.token}")
    assert f"spark.connect.authenticate.token={server.token}" in configuration.read_text().replace(" ", "=")
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
