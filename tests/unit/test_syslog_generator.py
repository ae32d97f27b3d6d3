"""The generated syslog: repeatable, in a real format, and with exactly the attacks that it declares."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from oracles import log_watch

from drainmark.jobs.testing.syslog import HOSTS, generate_syslog, write_syslog

RESERVED = re.compile(r"203\.0\.113\.\d+|198\.51\.100\.\d+|192\.0\.2\.\d+|[a-z0-9-]+\.example\.(?:com|net)")


@pytest.mark.seed("V180")
def test_a_seed_gives_the_same_files_twice_and_another_seed_others() -> None:
    assert list(generate_syslog(seed=3)) == list(generate_syslog(seed=3))
    assert list(generate_syslog(seed=3)) != list(generate_syslog(seed=4))


def test_more_hosts_and_files_leave_the_others_as_they_were() -> None:
    few = {file.name: file for file in generate_syslog(hosts=HOSTS[:1], files_per_host=2)}
    many = {file.name: file for file in generate_syslog(hosts=HOSTS, files_per_host=5)}
    assert few.items() <= many.items()
    assert len(many) == 5 * len(HOSTS)


def test_files_have_the_lines_asked_for_in_the_order_of_time() -> None:
    for file in generate_syslog(files_per_host=3, lines_per_file=250):
        assert len(file.lines) == 250
        stamps = [line[:15] for line in file.lines]
        assert stamps == sorted(stamps)
        assert all(line[16:].startswith(f"{file.host} ") for line in file.lines)


def test_too_few_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="100 or more"):
        next(generate_syslog(lines_per_file=99))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("seed", [1, 2, 3, 2005])
def test_the_oracle_finds_what_was_planted_and_no_more(tmp_path: Path, seed: int, newline: str) -> None:
    files = write_syslog(tmp_path, seed=seed, newline=newline)
    tables = log_watch([tmp_path / file.name for file in files])

    planted: Counter[str] = Counter()
    bursts: Counter[tuple[str, object]] = Counter()
    for file in files:
        planted.update(file.failures)
        bursts.update(file.bursts)
    assert {row["remote_host"]: row["failures"] for row in tables["log_watch_hosts"]} == planted
    alerts = {(row["remote_host"], row["window_start"]): row["failures"] for row in tables["log_watch_alerts"]}
    assert alerts == bursts
    assert len(tables["log_watch_failures"]) == planted.total()


def test_both_kinds_of_failure_with_and_without_user_and_lines_that_only_look_like_one_occur() -> None:
    text = "\n".join(line for file in generate_syslog() for line in file.lines)
    for form in (
        r"\(pam_unix\)\[\d+\]: authentication failure; .* rhost=\S+  user=\S+$",
        r"\(pam_unix\)\[\d+\]: authentication failure; .* rhost=\S+ $",
        r"sshd\[\d+\]: Failed password for invalid user \S+ from \S+ port \d+ ssh2$",
        r"sshd\[\d+\]: Failed password for root from \S+ port \d+ ssh2$",
        r"2 more authentication failures; .* rhost=\S+ $",
        r"login\(pam_unix\)\[\d+\]: authentication failure; .* rhost=  user=root$",
        r" CROND\[",
        r" su\(pam_unix\)\[",
        r" ftpd\[",
        r" kernel: ",
    ):
        assert re.search(form, text, re.MULTILINE), form


def test_no_line_names_an_address_that_somebody_has() -> None:
    for file in generate_syslog():
        for line in file.lines:
            for address in re.findall(r"(?:rhost=|from )(\S+)", line):
                assert address == "user=root" or RESERVED.fullmatch(address), line


def test_a_written_file_leaves_nothing_else_behind(tmp_path: Path) -> None:
    files = write_syslog(tmp_path, files_per_host=1)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == sorted(file.name for file in files)
    first = files[0]
    assert (tmp_path / first.name).read_text("ascii").splitlines() == list(first.lines)
