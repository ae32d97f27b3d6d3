"""The oracles themselves, checked by hand on small texts and against the published facts of the real data."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from oracles import differences, enron_ds, log_watch, multiset, parse_failure, text_lines

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
LOGWATCH = DATA / "logwatch"
ENRON = DATA / "enron" / "messages"
PAM = "authentication failure; logname= uid=0 euid=0 tty=NODEVssh ruser= rhost="

needs_logwatch = pytest.mark.skipif(not LOGWATCH.is_dir(), reason="the LogWatch data is not here")
needs_enron = pytest.mark.skipif(not ENRON.is_dir(), reason="the Enron data is not here")

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(name: str, *lines: str, end: str = "\n") -> Path:
        path = tmp_path / name
        path.write_bytes("".join(f"{line}{end}" for line in lines).encode())
        return path

    return _write


@pytest.mark.parametrize(
    ("text", "remote_host", "user"),
    [
        (f"{PAM}1.2.3.4  user=root", "1.2.3.4", "root"),
        (f"{PAM}1.2.3.4 ", "1.2.3.4", None),
        (f"{PAM}1.2.3.4 extra user=root", "1.2.3.4", None),
        (f"{PAM}first rhost=second user=x", "second", "x"),
        ("Failed password for root from 1.2.3.4 port 22 ssh2", "1.2.3.4", "root"),
        ("Failed password for invalid user bob from fe80::1 port 22 ssh2", "fe80::1", "bob"),
        ("Failed password for p from 1.1.1.1 port authentication failure; x rhost=2.2.2.2", "2.2.2.2", None),
    ],
)
def test_a_failure_names_remote_host_and_user_and_pam_comes_first(
    text: str, remote_host: str, user: str | None
) -> None:
    failure = parse_failure(f"Jun  9 06:06:20 combo sshd(pam_unix)[12]: {text}", 2005)
    assert failure is not None
    assert (failure.remote_host, failure.user) == (remote_host, user)
    assert failure.logged_at == dt.datetime(2005, 6, 9, 6, 6, 20, tzinfo=dt.UTC)
    assert (failure.host, failure.service, failure.message) == ("combo", "sshd(pam_unix)", text)


@pytest.mark.parametrize(
    "text",
    [
        "authentication failure; rhost=1.2.3.4",
        f"{PAM} ",
        f"{PAM}  user=root",
        "2 more authentication failures; logname= uid=0 rhost=1.2.3.4",
        "authentication failure; \u2028 rhost=1.2.3.4",
        "Failed password for invalid user from 1.2.3.4 port 22",
        "Failed password for invalid user  from 1.2.3.4 port 22",
        "Failed none for root from 1.2.3.4 port 22",
        "Accepted password for root from 1.2.3.4 port 22",
    ],
)
def test_what_only_looks_like_a_failure_is_none(text: str) -> None:
    assert parse_failure(f"Jun  9 06:06:20 combo sshd[12]: {text}", 2005) is None


@pytest.mark.parametrize("stamp", ["Jun 31 06:06:20", "Feb 29 06:06:20", "Jun 00 06:06:20", "Jux  9 06:06:20"])
def test_a_moment_that_the_calendar_does_not_have_is_null_and_the_rest_stays(stamp: str) -> None:
    failure = parse_failure(f"{stamp} combo sshd[1]: {PAM}1.2.3.4", 2005)
    assert failure is not None
    assert (failure.logged_at, failure.host, failure.service) == (None, "combo", "sshd")


def test_the_year_is_the_parameter_alone() -> None:
    failure = parse_failure(f"Feb 29 23:59:59 combo sshd[1]: {PAM}1.2.3.4", 2008)
    assert failure is not None
    assert failure.logged_at == dt.datetime(2008, 2, 29, 23, 59, 59, tzinfo=dt.UTC)


def test_a_line_without_header_has_no_host_and_is_its_own_message() -> None:
    line = f"2025-01-02T03:04:05+00:00 web1 sshd[1]: {PAM}1.2.3.4"
    failure = parse_failure(line, 2005)
    assert failure is not None
    assert (failure.logged_at, failure.host, failure.service, failure.message) == (None, None, None, line)


def test_lines_end_with_any_of_three_ends_and_a_byte_order_mark_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n\nd\xff")
    assert list(text_lines(path)) == ["a", "b", "c", "", "d\ufffd"]


def test_hosts_and_alerts_grow_file_by_file(write: Write) -> None:
    burst = [f"Jun  9 06:0{n // 6}:{n % 6}0 h sshd[1]: {PAM}a.example.com" for n in range(9)]
    files = [
        write("1.log", *burst, f"Jun  9 07:00:00 h sshd[1]: {PAM}b.example.com"),
        write("2.log", f"Jun  9 06:04:59 h sshd[1]: {PAM}a.example.com"),
        write(
            "3.log", f"Jun  9 06:05:00 h sshd[1]: {PAM}a.example.com", f"Jun 31 06:00:00 h sshd[1]: {PAM}a.example.com"
        ),
    ]
    first = dt.datetime(2005, 6, 9, 6, 0, tzinfo=dt.UTC)
    assert log_watch(files[:1])["log_watch_alerts"] == []
    alert = {"remote_host": "a.example.com", "window_start": first, "failures": 10, "_sequence_id": 2}
    assert log_watch(files[:2])["log_watch_alerts"] == [alert]
    tables = log_watch(files)
    assert tables["log_watch_alerts"] == [alert]
    assert tables["log_watch_hosts"][0] == {
        "remote_host": "a.example.com",
        "failures": 12,
        "first_seen": first,
        "last_seen": dt.datetime(2005, 6, 9, 6, 5, tzinfo=dt.UTC),
        "_sequence_id": 3,
    }
    assert [row["_sequence_id"] for row in tables["log_watch_failures"]] == [1] * 10 + [2] + [3] * 2


def test_words_are_runs_of_ascii_letters_and_an_empty_file_has_no_row(write: Write) -> None:
    files = [
        write("1.txt", "Don't PANIC, don", "x1y \u212aelvin", end="\r\n"),
        write("2.txt"),
        write("3.txt", "", "panic"),
    ]
    tables = enron_ds(files, source_name=lambda path: path.name)
    counts = {row["word"]: (row["count"], row["_sequence_id"]) for row in tables["enron_words"]}
    assert counts == {"don": (2, 1), "t": (1, 1), "panic": (2, 3), "x": (1, 1), "y": (1, 1), "elvin": (1, 1)}
    assert tables["enron_messages"] == [
        {"_sequence_id": 1, "source_file": "1.txt", "words": 7},
        {"_sequence_id": 3, "source_file": "3.txt", "words": 1},
    ]


@pytest.mark.seed("T2")
def test_differences_count_rows_and_leave_ids_aside_unless_asked() -> None:
    one, two = {"a": 1, "_sequence_id": 1}, {"a": 1, "_sequence_id": 2}
    assert differences([one, one], [one, two]) == []
    assert differences([one, one], [one, two], ids=True)[0].startswith("1 missing and 1 surplus")
    assert differences([one], [one, one])[0].startswith("0 missing and 1 surplus")
    assert multiset([one, two]).total() == 2


@needs_logwatch
def test_real_log_has_the_published_facts() -> None:
    path = LOGWATCH / "Linux.log"
    assert hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() == "49ed8bccb4598108f41f37ec0c13ce2a"
    lines = list(text_lines(path))
    assert len(lines) == 25_567
    assert sum("authentication failure" in line for line in lines) == 3_940
    assert lines[-1].endswith("(uid=0")


@needs_logwatch
def test_busiest_remote_hosts_of_the_real_log_are_the_published_ones() -> None:
    tables = log_watch([LOGWATCH / "Linux.log"])
    totals = Counter({row["remote_host"]: row["failures"] for row in tables["log_watch_hosts"]})
    assert totals.most_common(3) == [("219.150.28.34", 85), ("219.72.254.36", 83), ("65.168.94.4", 81)]
    # Of the 3,940 lines, console lines name no remote host, and "n more authentication failures" is another text.
    assert len(tables["log_watch_failures"]) == totals.total() == 3_923
    assert all(row["logged_at"] is not None for row in tables["log_watch_failures"])


@needs_logwatch
def test_real_log_cut_into_files_gives_the_same_totals(tmp_path: Path) -> None:
    lines = (LOGWATCH / "Linux.log").read_bytes().splitlines(keepends=True)
    parts = []
    for number in range(0, len(lines), 3_000):
        parts.append(tmp_path / f"{number:06d}.log")
        parts[-1].write_bytes(b"".join(lines[number : number + 3_000]))
    whole, cut = log_watch([LOGWATCH / "Linux.log"]), log_watch(parts)
    for table in ("log_watch_hosts", "log_watch_alerts"):
        assert differences(whole[table], cut[table]) == []
    assert len(log_watch(parts[:4])["log_watch_failures"]) < len(cut["log_watch_failures"])


@needs_enron
@pytest.mark.parametrize(("folder", "count"), [("1", 810), ("4", 439), ("5", 65), ("6", 138), ("7", 21), ("8", 18)])
def test_real_mail_has_the_published_number_of_files(folder: str, count: int) -> None:
    if not (ENRON / folder).is_dir():
        pytest.skip(f"folder {folder} of the Enron messages is not here; SOURCE.md counts {count} files in it")
    files = sorted((ENRON / folder).glob("*.txt"))
    assert len(files) == count
    tables = enron_ds(files)
    assert len(tables["enron_messages"]) == count
    assert sum(row["words"] for row in tables["enron_messages"]) == sum(row["count"] for row in tables["enron_words"])


@needs_enron
def test_largest_real_mail_is_the_published_one() -> None:
    largest = max(ENRON.rglob("*.txt"), key=lambda path: path.stat().st_size)
    assert (largest.relative_to(ENRON).as_posix(), largest.stat().st_size) == ("1/63097.txt", 229_739)
