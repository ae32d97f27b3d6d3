"""The demo's input and judge: the copied files; plain Python counts the failures that the generator planted."""

from __future__ import annotations

import gzip
import io
import os
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from drainmark.jobs.errors import UsageError
from drainmark.jobs.testing.syslog import START, write_syslog
from drainmark.orchestration.cli.demo.logs import copy_logs, count_in_python
from drainmark.orchestration.cli.demo.show import _attackers

LINE = "Jun 14 15:16:01 combo sshd[1]: Failed password for root from 203.0.113.9 port 22 ssh2\n"


def test_plain_python_counts_what_was_planted(tmp_path: Path) -> None:
    written = write_syslog(tmp_path)
    counted = count_in_python([tmp_path / file.name for file in written], START.year)
    planted: Counter[str] = Counter()
    for file in written:
        planted.update(file.failures)
    assert counted.failures == planted
    starts = {(remote, f"{start:%Y-%m-%d %H:%M:%S}") for file in written for remote, start in file.bursts}
    assert starts <= counted.alerts.keys()


def test_a_time_that_the_year_does_not_have_is_in_no_window(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LINE.replace("Jun 14", "Feb 29") * 12)
    assert count_in_python([path], 2005).alerts == {}
    assert count_in_python([path], 2008).alerts == {("203.0.113.9", "2008-02-29 15:15:00"): 12}


def test_text_files_are_copied_whatever_they_are_called(tmp_path: Path) -> None:
    source, inbox = tmp_path / "var", tmp_path / "inbox"
    (source / "deep er").mkdir(parents=True)
    inbox.mkdir()
    (source / "secure").write_text(LINE)
    (source / "deep er" / "auth.log.1").write_text(LINE * 2)
    (source / "auth.log.2.gz").write_bytes(gzip.compress(LINE.encode() * 3))
    (source / "wtmp").write_bytes(b"\0\1\2")
    (source / "empty.log").touch()
    (source / "broken.gz").write_bytes(b"no gzip")
    (source / "link.log").symlink_to(source / "secure")
    for age, name in enumerate(("secure", "deep er/auth.log.1", "auth.log.2.gz")):
        os.utime(source / name, (1_150_000_000 - age, 1_150_000_000 - age))
    copied = copy_logs(source, inbox)
    names = ["0001-auth.log.2.gz.log", "0002-deep_er_auth.log.1.log", "0003-secure.log"]
    assert sorted(path.name for path in inbox.iterdir()) == names
    assert (copied.files, copied.year) == (3, 2006)
    assert copied.remarks == ("3 left out (binary, empty, unreadable or too much)",)
    assert count_in_python([inbox / name for name in names], 2006).failures == {"203.0.113.9": 6}


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_logs_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(UsageError):
        copy_logs(tmp_path / folder, tmp_path)


def test_a_host_in_a_log_is_no_command_for_a_terminal() -> None:
    shown = Console(file=io.StringIO(), width=200)
    host = {"remote_host": "\x1b]0;title\x07[bold]x[/]", "failures": 1, "first_seen": None, "last_seen": None}
    _attackers(shown, [host], [], [])
    told = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "\\x1b]0;title\\x07[bold]x[/]" in told
    assert all(each.isprintable() or each == "\n" for each in told)
