"""The helpers for child processes of the recovery tests: they never signal another process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from drainmark.orchestration.testing.crash.children import KILLED, Ends, Running


def running(tmp_path: Path, ends: Ends, pid: int) -> Running:
    return Running(pid=pid, end=ends.started(pid), outcome=tmp_path / "events", log=tmp_path / "log")


def test_a_pid_that_is_given_to_another_child_does_not_end_that_one(tmp_path: Path) -> None:
    ends = Ends()
    first = running(tmp_path, ends, 4711)
    ends.ended(4711, KILLED)
    second = running(tmp_path, ends, 4711)
    assert not second.end.has_come.is_set()
    ends.ended(4711, 0)
    assert (first.wait(0).code, second.wait(0).code) == (KILLED, 0)


def test_nobody_else_gets_the_signals_for_a_child_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append(number))
    ends = Ends()
    child = running(tmp_path, ends, 4711)
    child.signal(signal.SIGCONT)
    ends.ended(4711, 0)
    child.signal(signal.SIGKILL)
    assert sent == [signal.SIGCONT]
