"""The expected sinks of the applications, computed in plain Python: no Spark, no Delta, nothing of `jobs`.

An oracle takes the files in the order of their triggers; for a consistent state N, give it the first N files. File n
(from 1) has `_sequence_id` n, as in a run that never failed; `multiset` and `differences` ignore the ids by default.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

Row = dict[str, Any]
Tables = dict[str, list[Row]]
SourceName = Callable[[Path], str]

ALERT_FAILURES = 10
ALERT_WINDOW_SECONDS = 300
BURST = (10, 300)
ENUMERATION = (5, 600)
SUSPICIOUS_FAILURES = 3
FLOOD = (10, 60)
CRASH_LOOP = (3, 600)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
SEVERITIES = {"takeover": 5, "success_after_failures": 4, "burst": 3, "user_enumeration": 3, "connection_flood": 2,
              "crash_loop": 2, "new_origin": 1}  # fmt: skip
URGENT = 4

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Java's dot stops at more line ends than Python's, and its \s and \d are ASCII.
_ANY = "[^\n\r\x85\u2028\u2029]*"
_PAM = re.compile(rf"authentication failure; {_ANY} rhost=(\S+)(?:\s+user=(\S+))?", re.ASCII)
_SSHD = re.compile(r"Failed password for (?:invalid user )?(\S+) from (\S+) port", re.ASCII)
_UNKNOWN = re.compile(r"[Ii](?:nvalid|llegal) user (\S+) from (\S+)", re.ASCII)
_ACCEPTED = re.compile(r"Accepted \S+ for (\S+) from (\S+) port", re.ASCII)
_HEADER = re.compile(
    r"(?P<month>[A-Z][a-z][a-z]) +(?P<day>\d\d?) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) +(?P<host>\S+) ",
    re.ASCII,
)
_TAG = re.compile(r"(?P<service>[^\s\[:]+)(?:\[(?P<pid>[^\]]*)\])?: ?", re.ASCII)
_CONNECTION = re.compile(r"connection from (\S+) \(", re.ASCII)
_SESSION = re.compile(r"session (opened|closed) for user (\S+)", re.ASCII)
_FAULT = re.compile(r"exited abnormally|segfault at|Out of Memory: Killed process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed log-in, as one line tells it."""

    logged_at: dt.datetime | None
    host: str | None
    service: str | None
    remote_host: str
    user: str | None
    message: str


def log_watch(files: Sequence[Path], year: int = 2005, *, source_name: SourceName = str) -> Tables:
    """Return the four tables of `log_watch`: failures in order, hosts and alerts sorted by key, attacks.

    Args:
        files: the files in the order of their triggers.
        year: the parameter `year`.
        source_name: the function that gives the value of `source_file` for a path.
    """
    failures: list[Row] = []
    hosts: dict[str, Row] = {}
    windows: dict[tuple[str, dt.datetime], Row] = {}
    for sequence_id, path in enumerate(files, 1):
        for line in text_lines(path):
            failure = parse_failure(line, year)
            if failure is None:
                continue
            failures.append({"_sequence_id": sequence_id, "source_file": source_name(path), **_fields(failure)})
            _count_host(hosts, failure, sequence_id)
            _count_window(windows, failure, sequence_id)
    return {
        "log_watch_failures": failures,
        "log_watch_hosts": [hosts[key] for key in sorted(hosts)],
        "log_watch_alerts": [windows[key] for key in sorted(windows) if windows[key]["failures"] >= ALERT_FAILURES],
        "log_watch_attacks": log_watch_attacks(files, year),
    }


def log_watch_attacks(files: Sequence[Path], year: int = 2005) -> list[Row]:
    """Return the attacks of each pair of host and remote host; each has the id of the line that completes it."""
    pairs: dict[tuple[str | None, str], list[tuple[int, LogIn]]] = {}
    for sequence_id, path in enumerate(files, 1):
        for line in text_lines(path):
            found = parse_log_in(line, year)
            if found is not None:
                pairs.setdefault((found.host, found.remote_host), []).append((sequence_id, found))
    return [
        {"_sequence_id": number, "host": host, "remote_host": remote, **attack}
        for (host, remote), events in pairs.items()
        for number, attack in _attacks_of(events)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIn:
    """A line about a remote log-in."""

    at: dt.datetime | None
    host: str | None
    remote_host: str
    user: str | None
    failed: bool
    unknown: bool
    accepted: bool


def parse_log_in(line: str, year: int) -> LogIn | None:
    """Return the remote log-in of a line: failed, with an unknown user, or accepted; None if it has none."""
    pam, sshd, unknown, accepted = (pattern.search(line) for pattern in (_PAM, _SSHD, _UNKNOWN, _ACCEPTED))
    found = pam or sshd or unknown or accepted
    if found is None:
        return None
    user, remote_host = (found.group(2), found.group(1)) if pam else found.groups()
    header = _HEADER.match(line)
    return LogIn(
        at=_moment(header, year) if header else None,
        host=header["host"] if header else None,
        remote_host=remote_host,
        user=user,
        failed=bool(pam or sshd),
        unknown=bool(unknown) and not pam,
        accepted=not (pam or sshd or unknown),
    )


def _attacks_of(events: Sequence[tuple[int, LogIn]]) -> Iterator[tuple[int, Row]]:
    """Yield the attacks in the log-ins from one remote host on one host: (sequence id, the other columns)."""
    burst: list[dt.datetime] = []
    names: list[tuple[dt.datetime, str | None]] = []
    failures: list[dt.datetime | None] = []
    for number, event in events:
        at = event.at
        if event.failed:
            failures.append(at)
        if event.failed and at is not None:
            burst = [past for past in burst if 0 <= (at - past).total_seconds() <= BURST[1]] + [at]
            if len(burst) == BURST[0]:
                yield number, _attack("burst", None, burst[0], at, BURST[0])
                burst = []
        if event.unknown and at is not None:
            names = [(past, name) for past, name in names
                     if name != event.user and 0 <= (at - past).total_seconds() <= ENUMERATION[1]]  # fmt: skip
            names.append((at, event.user))
            if len(names) == ENUMERATION[0]:
                yield number, _attack("user_enumeration", None, min(names)[0], at, ENUMERATION[0])
                names = []
        if event.accepted:
            if len(failures) >= SUSPICIOUS_FAILURES:
                first = next((moment for moment in failures if moment is not None), None)
                yield number, _attack("success_after_failures", event.user, first, at, len(failures))
            failures = []


def _attack(kind: str, user: str | None, first: dt.datetime | None, last: dt.datetime | None, count: int) -> Row:
    return {"kind": kind, "user": user, "first_seen": first, "last_seen": last, "count": count}


def host_watch(files: Sequence[Path], networks: Mapping[str, tuple[str, bool]] = MappingProxyType({})) -> Tables:
    """Return the tables of the region `lines` of `host_watch`, of 2005.

    Args:
        files: the files in the order of their triggers.
        networks: owner of each network, and whether it is trusted.
    """
    attacks, events = log_watch_attacks(files), list(_events(files, 2005))
    tickets, pages = _tickets(_findings(events, attacks), networks)
    sessions = [
        {"_sequence_id": number, **begun, "closed_at": ended["closed_at"]}
        for number, begun, ended in _ended_sessions(events)
    ]
    return {
        "host_watch_attacks": attacks,
        "host_watch_sessions": sessions,
        "host_watch_tickets": tickets,
        "host_watch_pages": pages,
    }


def host_watch_campaigns(files: Sequence[Path], year: int = 2005) -> list[Row]:
    """Return the rows of the region `attacks_seen`, without ids."""
    attacks: dict[str, list[Row]] = {}
    for attack in log_watch_attacks(files, year):
        attacks.setdefault(attack["remote_host"], []).append(attack)
    return [
        {"remote_host": remote, "attacks": len(found), "hosts": len(hosts),
         "first_seen": min((row["first_seen"] for row in found if row["first_seen"]), default=None),
         "last_seen": max((row["last_seen"] for row in found if row["last_seen"]), default=None)}
        for remote, found in attacks.items()
        if len(hosts := {row["host"] for row in found} - {None}) >= 2
    ]  # fmt: skip


def _events(files: Sequence[Path], year: int) -> Iterator[tuple[int, str, Row]]:
    """Yield (sequence id, topic, fields) of the lines that say something, in order."""
    for number, path in enumerate(files, 1):
        for line in text_lines(path):
            header = _HEADER.match(line)
            tag = _TAG.match(line, header.end()) if header else None
            base = {"host": header["host"] if header else None, "service": tag["service"] if tag else None}
            at = _moment(header, year) if header else None
            log_in = parse_log_in(line, year)
            if log_in is not None:
                if log_in.accepted:
                    yield number, "success", {**base, "at": at, "remote_host": log_in.remote_host, "user": log_in.user}
            elif found := _CONNECTION.search(line):
                yield number, "connection", {**base, "at": at, "remote_host": found[1]}
            elif found := _SESSION.search(line):
                pid = (tag["pid"] or None) if tag else None
                yield number, found[1], {**base, "at": at, "pid": pid, "user": found[2]}
            elif _FAULT.search(line):
                yield number, "fault", {**base, "at": at}


def _ended_sessions(events: Sequence[tuple[int, str, Row]]) -> Iterator[tuple[int, Row, Row]]:
    """Yield (sequence id of the end, beginning, end) of each end whose beginning was read before."""
    begun: dict[tuple[Any, ...], Row] = {}
    for number, topic, event in events:
        if topic in ("opened", "closed"):
            names = {name: event[name] for name in ("host", "service", "pid")}
            key = tuple(names.values())
            if topic == "opened":
                begun[key] = {**names, "user": event["user"], "opened_at": event["at"]}
            elif key in begun and None not in key:
                yield number, begun[key], {**names, "closed_at": event["at"]}


def _soon_after(attacks: Sequence[tuple[int, Row]], roots: Sequence[tuple[int, Row]]) -> Iterator[tuple[int, Row, Row]]:
    """Yield (sequence id, attack, session) of the sessions of a host that begin up to an hour after an attack."""
    sessions = list(_punctual(roots, "at"))
    for number, attack in _punctual(attacks, "last_seen"):
        for other, root in sessions:
            is_there = attack["host"] is not None and attack["host"] == root["host"]
            if is_there and dt.timedelta(0) <= root["at"] - attack["last_seen"] <= HOUR:
                yield max(number, other), attack, root


def _punctual(rows: Sequence[tuple[int, Row]], time: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows with a time that is not more than a day before the newest one of earlier files."""
    newest: dict[int, dt.datetime] = {}
    for number, row in rows:
        at = row[time]
        if at is not None:
            if all(at >= past - DAY for file, past in newest.items() if file < number):
                yield number, row
            newest[number] = max(newest.get(number, at), at)


def _findings(events: Sequence[tuple[int, str, Row]], attacks: Sequence[Row]) -> dict[int, list[Row]]:
    """Return the findings of each file, unsorted."""
    found: dict[int, list[Row]] = {}

    def note(number: int, rule: str, row: Row, **facts: Any) -> None:
        columns = {"at": row.get("at"), "rule": rule, "host": row["host"], "remote_host": row.get("remote_host")}
        found.setdefault(number, []).append({**columns, "user": row.get("user"), "count": 1, **facts})

    for attack in attacks:
        note(attack["_sequence_id"], attack["kind"], attack, at=attack["last_seen"], count=attack["count"])
    broken = [(row["_sequence_id"], row) for row in attacks if row["kind"] == "success_after_failures"]
    roots = [
        (number, row)
        for number, topic, row in events
        if topic == "opened" and row["user"] == "root" and row["service"] and not row["service"].startswith("cron")
    ]
    for number, attack, root in _soon_after(broken, roots):
        note(number, "takeover", attack, at=root["at"], user="root", count=1)
    seen = set[tuple[Any, ...]]()
    for number, topic, event in events:
        key = (event["host"], event.get("user"), event.get("remote_host"))
        if topic == "success" and key not in seen:
            seen.add(key)
            note(number, "new_origin", event)
    for number, event, count in _rates(events, "connection", "remote_host", FLOOD[1]):
        if count >= FLOOD[0]:
            note(number, "connection_flood", event, count=count)
    for number, event, count in _rates(events, "fault", "service", CRASH_LOOP[1]):
        if count >= CRASH_LOOP[0]:
            note(number, "crash_loop", event, user=event["service"], count=count)
    return found


def _rates(events: Sequence[tuple[int, str, Row]], topic: str, by: str, seconds: int) -> Iterator[tuple[int, Row, int]]:
    """Yield (sequence id, event, number of events of its host and `by` in the seconds that end with it).

    An event without a time, or with an earlier one than another before it, counts at the newest time so far.
    """
    tops: dict[tuple[Any, ...], list[dt.datetime | None]] = {}
    for number, kind, event in events:
        if kind == topic:
            passed = tops.setdefault((event["host"], event[by]), [])
            known = [at for at in (*passed[-1:], event["at"]) if at is not None]
            top = max(known, default=None)
            passed.append(top)
            yield (
                number,
                event,
                sum(top is None or (at is not None and (top - at).total_seconds() < seconds) for at in passed),
            )


def _tickets(
    findings: Mapping[int, list[Row]], networks: Mapping[str, tuple[str, bool]]
) -> tuple[list[Row], list[Row]]:
    """Return the tickets, and the pages: the urgent ones when they are opened."""
    tickets: list[Row] = []
    pages: list[Row] = []
    newest: dict[tuple[Any, ...], Row] = {}
    order = ("at", "rule", "host", "remote_host", "user")
    for number in sorted(findings):
        opened = list[Row]()
        for row in sorted(
            findings[number], key=lambda row: [(row[name] is not None, str(row[name])) for name in order]
        ):
            about = (row["rule"], row["host"], row["remote_host"])
            ticket = newest.get(about)
            if ticket is None or (row["at"] and ticket["last_at"] and abs(row["at"] - ticket["last_at"]) > HOUR):
                owner, is_trusted = networks.get((row["remote_host"] or "").rpartition(".")[0], (None, False))
                ticket = newest[about] = {
                    "ticket": len(tickets) + 1, **dict(zip(("rule", "host", "remote_host"), about, strict=True)),
                    "user": row["user"], "opened_at": row["at"], "last_at": row["at"], "findings": 0, "count": 0,
                    "owner": owner, "severity": SEVERITIES[row["rule"]] - is_trusted,
                }  # fmt: skip
                tickets.append(ticket)
                opened.append(ticket)
            moments = [at for at in (ticket["last_at"], row["at"]) if at is not None]
            ticket |= {"last_at": max(moments, default=None), "findings": ticket["findings"] + 1,
                       "count": max(ticket["count"], row["count"]), "_sequence_id": number,
                       "is_new": ticket in opened}  # fmt: skip
        pages += [dict(ticket) for ticket in opened if ticket["severity"] >= URGENT]
    return tickets, pages


def enron_ds(files: Sequence[Path], *, source_name: SourceName = str) -> Tables:
    """Return the two tables of `enron_ds`: words sorted, messages in order; an empty file has no message."""
    words: dict[str, Row] = {}
    messages: list[Row] = []
    for sequence_id, path in enumerate(files, 1):
        content = path.read_bytes()
        # In UTF-8, a byte that looks like an ASCII letter always is one.
        counts = Counter(word.decode("ascii").lower() for word in re.findall(rb"[A-Za-z]+", content))
        for word, count in counts.items():
            row = words.setdefault(word, {"word": word, "count": 0, "_sequence_id": 0})
            row["count"] += count
            row["_sequence_id"] = sequence_id
        if content:
            messages.append(
                {"_sequence_id": sequence_id, "source_file": source_name(path), "words": sum(counts.values())}
            )
    return {"enron_words": [words[word] for word in sorted(words)], "enron_messages": messages}


def bank_alerts(turns: Sequence[tuple[str, str]]) -> Tables:
    """Return the two tables of `bank_alerts`.

    Args:
        turns: the text of each payments file, in order, with the text of the warnings that were read together with it;
            payments are judged by the warnings of earlier turns.
    """
    last: dict[str, dict[str, Any]] = {}
    accounts: dict[str, Row] = {}
    alerts: list[Row] = []
    for sequence_id, (payments, posts) in enumerate(turns, 1):
        for line in payments.splitlines():
            number, account, merchant, place, text, moment = line.split(",")
            amount, at = Decimal(text), dt.datetime.fromisoformat(moment)
            row = accounts.setdefault(account, {"account": account, "payments": 0, "amount": Decimal(0), "last_at": at})
            row |= {"payments": row["payments"] + 1, "amount": row["amount"] + amount,
                    "last_at": max(row["last_at"], at), "_sequence_id": sequence_id}  # fmt: skip
            warned = last.get(place, {"level": 0})
            if warned["level"] >= 2:
                alerts.append({"_sequence_id": sequence_id, "transaction_id": int(number), "account": account,
                               "merchant": merchant, "place": place, "amount": amount, "at": at,
                               "level": warned["level"], "text": warned["text"]})  # fmt: skip
        last |= {post["place"]: post for post in map(json.loads, posts.splitlines())}
    return {"bank_alerts": alerts, "bank_accounts": [accounts[key] for key in sorted(accounts)]}


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file as Spark's text reader does: LF, CRLF and CR end a line; no byte order mark."""
    content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\r|\n", content)
    if lines[-1] == b"":
        lines.pop()
    for line in lines:
        yield line.decode("utf-8", errors="replace")


def parse_failure(line: str, year: int) -> Failure | None:
    """Return the failed log-in that a syslog line tells; None if it tells none."""
    if match := _PAM.search(line):
        remote_host, user = match.group(1), match.group(2)
    elif match := _SSHD.search(line):
        user, remote_host = match.group(1), match.group(2)
    else:
        return None
    header = _HEADER.match(line)
    tag = _TAG.match(line, header.end()) if header else None
    return Failure(
        logged_at=_moment(header, year) if header else None,
        host=header["host"] if header else None,
        service=tag["service"] if tag else None,
        remote_host=remote_host,
        user=user,
        message=line[tag.end() :] if tag else line,
    )


def multiset(rows: Sequence[Mapping[str, Any]], *, ids: bool = False) -> Counter[tuple[tuple[str, Any], ...]]:
    """Return rows as a comparable multiset, without `_sequence_id` unless `ids`."""
    return Counter(
        tuple(sorted((name, value) for name, value in row.items() if ids or name != "_sequence_id")) for row in rows
    )


def differences(
    expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]], *, ids: bool = False, limit: int = 5
) -> list[str]:
    """Return the lines that tell how a sink differs: none if equal, otherwise at most `limit` rows for each side."""
    wanted, found = multiset(expected, ids=ids), multiset(actual, ids=ids)
    missing, surplus = wanted - found, found - wanted
    if not missing and not surplus:
        return []
    lines = [f"{missing.total()} missing and {surplus.total()} surplus, of {wanted.total()} expected rows"]
    for sign, rows in (("-", missing), ("+", surplus)):
        shown = sorted(rows.items(), key=repr)[:limit]
        lines += [f"{sign} {count} x {dict(row)}" for row, count in shown]
    return lines


def _fields(failure: Failure) -> Row:
    return {name: getattr(failure, name) for name in Failure.__slots__}


def _moment(header: re.Match[str], year: int) -> dt.datetime | None:
    day, hour, minute, second = (int(header[part]) for part in ("day", "hour", "minute", "second"))
    try:
        month = _MONTHS.index(header["month"]) + 1
        return dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC)
    except ValueError:
        return None


def _count_host(hosts: dict[str, Row], failure: Failure, sequence_id: int) -> None:
    row = hosts.setdefault(
        failure.remote_host,
        {"remote_host": failure.remote_host, "failures": 0, "first_seen": None, "last_seen": None},
    )
    row["failures"] += 1
    row["_sequence_id"] = sequence_id
    if failure.logged_at is not None:
        row["first_seen"] = min(row["first_seen"] or failure.logged_at, failure.logged_at)
        row["last_seen"] = max(row["last_seen"] or failure.logged_at, failure.logged_at)


def _count_window(windows: dict[tuple[str, dt.datetime], Row], failure: Failure, sequence_id: int) -> None:
    """Count a failure in its window; a failure without a time is in none."""
    if failure.logged_at is None:
        return
    seconds = int(failure.logged_at.timestamp())
    start = dt.datetime.fromtimestamp(seconds - seconds % ALERT_WINDOW_SECONDS, tz=dt.UTC)
    row = windows.setdefault(
        (failure.remote_host, start), {"remote_host": failure.remote_host, "window_start": start, "failures": 0}
    )
    row["failures"] += 1
    row["_sequence_id"] = sequence_id
