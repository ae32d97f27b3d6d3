"""Syslog files of several hosts under attack, for the demo and for tests: real formats, made-up facts, one seed.

A file depends only on (seed, host, number), so that a call for more hosts or files changes none of the others.
All addresses are those reserved for documentation (RFC 5737, RFC 2606): no line speaks of a real host.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTS = ("combo", "mail1", "web1", "web2")
"""Names of the hosts that log, in the order in which they are generated."""

START = dt.datetime(2005, 6, 14, tzinfo=dt.UTC)
FILE_SPAN = dt.timedelta(hours=1)
ATTACKER_COUNT = 6
BURST_FAILURES = (12, 28)
BURST_GAP_SECONDS = (2, 6)
"""28 failures 6 s apart last 162 s: a burst that starts on a multiple of 5 minutes stays in that window."""

BREAK_INS = 0.25
"""Share of the attacks after which the attacker gets in."""

FLOODS, FLOOD_CONNECTIONS = 0.3, (12, 16)
"""Share of the files with a flood of connections, two seconds apart, and its size."""

CRASH_LOOPS, CRASHES = 0.3, (3, 5)
"""Share of the files in which a program dies again and again, a minute apart, and how often."""

SESSIONS = (1, 3)
"""Sessions of staff in a file that begin and end in it."""

TAKEOVERS = 0.5
"""Share of the break-ins after which the attacker becomes root."""

_WINDOW = dt.timedelta(minutes=5)
_USERS = ("admin", "guest", "mysql", "nagios", "oracle", "postgres", "test", "webmaster")
_STAFF = ("alice", "bob", "carol", "dave")
_OFFICE = ("desk1.example.com", "desk2.example.com", "192.0.2.17")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_Line = tuple[dt.datetime, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyslogFile:
    """One generated file and the facts planted in it.

    Attributes:
        name: path below the folder, `<host>/auth-<number:04d>.log`.
        host: the host that logs.
        lines: the lines in the order of the file, without line ends.
        failures: remote host to its failed log-ins in this file.
        bursts: (remote host, start of the five-minute window, UTC) to the failures of the attack planted there; the
            file has no others of that pair. Other hosts may be under the same attack in the same window.
        break_ins: remote host to the user name with which it got in after one of these attacks.
        takeovers: the remote hosts among them that became root.
        floods: remote host to the connections of its flood.
        crashes: program to the number of its deaths.
    """

    name: str
    host: str
    lines: tuple[str, ...]
    failures: Mapping[str, int]
    bursts: Mapping[tuple[str, dt.datetime], int]
    break_ins: Mapping[str, str]
    takeovers: tuple[str, ...]
    floods: Mapping[str, int]
    crashes: Mapping[str, int]

    def write(self, folder: Path, *, newline: str = "\n") -> Path:
        """Write the file below `folder` under another name, then rename it: a scan sees all of it or nothing."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_bytes("".join(f"{line}{newline}" for line in self.lines).encode("ascii"))
        os.replace(unfinished, path)
        return path


def generate_syslog(
    *,
    seed: int = 1,
    hosts: Sequence[str] = HOSTS,
    files_per_host: int = 6,
    lines_per_file: int = 400,
    start: dt.datetime = START,
) -> Iterator[SyslogFile]:
    """Yield the files of all hosts, hour by hour; lines of a file are in the order of time, and write no year.

    Args:
        seed: of all random values.
        hosts: names of the hosts that log.
        files_per_host: file n of a host covers the n-th hour after `start`.
        lines_per_file: lines of each file; at least 100, so that an attack and its noise have room.
        start: UTC, on a full hour.
    """
    if lines_per_file < 100:
        msg = f"lines_per_file={lines_per_file} is too few for an attack and its noise; give 100 or more"
        raise ValueError(msg)
    for number in range(files_per_host):
        for host in hosts:
            yield _file(seed, host, number, lines_per_file, start + number * FILE_SPAN)


def write_syslog(
    folder: Path,
    *,
    seed: int = 1,
    hosts: Sequence[str] = HOSTS,
    files_per_host: int = 6,
    lines_per_file: int = 400,
    start: dt.datetime = START,
    newline: str = "\n",
) -> tuple[SyslogFile, ...]:
    """Write the files of `generate_syslog` below `folder` and return them, in the order written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_syslog(Path(folder), hosts=["web1"], files_per_host=2)
    >>> [file.name for file in written]
    ['web1/auth-0000.log', 'web1/auth-0001.log']
    """
    files = tuple(
        generate_syslog(
            seed=seed, hosts=hosts, files_per_host=files_per_host, lines_per_file=lines_per_file, start=start
        )
    )
    for file in files:
        file.write(folder, newline=newline)
    return files


def attackers(seed: int) -> tuple[str, ...]:
    """Return the remote hosts that attack every host of this seed, the busiest first."""
    chosen = random.Random(f"{seed}/attackers")
    numbers = chosen.sample(range(1, 255), ATTACKER_COUNT)
    networks = ("203.0.113.{}", "198.51.100.{}", "dialup-{}.example.net")
    return tuple(networks[index % len(networks)].format(number) for index, number in enumerate(numbers))


def _file(seed: int, host: str, number: int, line_count: int, start: dt.datetime) -> SyslogFile:
    chance, success = random.Random(f"{seed}/{host}/{number}"), random.Random(f"{seed}/{host}/{number}/success")
    failures: Counter[str] = Counter()
    break_ins: dict[str, str] = {}
    takeovers: list[str] = []
    bursts: dict[tuple[str, dt.datetime], int] = {}
    lines: list[_Line] = []
    windows = chance.sample(range(FILE_SPAN // _WINDOW), 2)
    for window in windows[: 1 if line_count < 200 else chance.choice((1, 1, 2))]:
        remote = chance.choices(attackers(seed), weights=range(ATTACKER_COUNT, 0, -1))[0]
        attempts = chance.randint(*BURST_FAILURES)
        lines += _burst(chance, host, remote, start + window * _WINDOW, attempts)
        failures[remote] += attempts
        bursts[remote, start + window * _WINDOW] = attempts
        if success.random() < BREAK_INS:
            user = break_ins[remote] = success.choice(_USERS)
            lines.append(_success(success, host, remote, lines[-1][0] + dt.timedelta(seconds=9), user))
            if success.random() < TAKEOVERS:
                takeovers.append(remote)
                lines += _session(success, host, "su", "root", lines[-1][0] + dt.timedelta(seconds=30))
    for _ in range(chance.randint(0, 3)):
        remote = chance.choice(_OFFICE)
        lines.append(_failure(chance, host, remote, _moment(chance, start), chance.choice(_STAFF)))
        failures[remote] += 1
    beside = random.Random(f"{seed}/{host}/{number}/beside")
    floods, crashes = _floods(beside, host, start, seed), _crashes(beside, host, start)
    lines += [line for found in (*floods.values(), *crashes.values()) for line in found]
    for _ in range(beside.randint(*SESSIONS)):
        lines += _session(beside, host, "sshd", beside.choice(_STAFF), _moment(beside, start))
    while len(lines) < line_count:
        moment = _moment(chance, start)
        lines.append((moment, f"{_stamp(moment)} {host} {_noise(chance, seed)}"))
    lines.sort(key=lambda line: line[0])
    return SyslogFile(
        name=f"{host}/auth-{number:04d}.log",
        host=host,
        lines=tuple(text for _, text in lines),
        failures=dict(failures),
        bursts=bursts,
        break_ins=break_ins,
        takeovers=tuple(takeovers),
        floods={remote: len(found) for remote, found in floods.items()},
        crashes={program: len(found) for program, found in crashes.items()},
    )


def _floods(chance: random.Random, host: str, start: dt.datetime, seed: int) -> dict[str, list[_Line]]:
    """Return the connections of a flood by their remote host; none in most files."""
    if chance.random() >= FLOODS:
        return {}
    remote, begin, pid = chance.choice(attackers(seed)), _moment(chance, start), chance.randint(2_000, 32_000)
    moments = [begin + dt.timedelta(seconds=2 * place) for place in range(chance.randint(*FLOOD_CONNECTIONS))]
    text = f"{host} ftpd[{pid}]: connection from {remote} () at"
    return {
        remote: [(moment, f"{_stamp(moment)} {text} {moment:%a} {_stamp(moment)} {moment:%Y}") for moment in moments]
    }


def _crashes(chance: random.Random, host: str, start: dt.datetime) -> dict[str, list[_Line]]:
    """Return the deaths of a program; none in most files."""
    if chance.random() >= CRASH_LOOPS:
        return {}
    program, begin = chance.choice(("logrotate", "crond")), _moment(chance, start)
    moments = [begin + dt.timedelta(minutes=place) for place in range(chance.randint(*CRASHES))]
    return {program: [(moment, f"{_stamp(moment)} {host} {program}: ALERT exited abnormally with [1]")
                      for moment in moments]}  # fmt: skip


def _session(chance: random.Random, host: str, program: str, user: str, begin: dt.datetime) -> list[_Line]:
    """Return both ends of a session, as PAM writes them."""
    pid, end = chance.randint(2_000, 32_000), begin + dt.timedelta(seconds=chance.randint(20, 300))
    said = f"{host} {program}(pam_unix)[{pid}]: session"
    return [(begin, f"{_stamp(begin)} {said} opened for user {user} by (uid=0)"),
            (end, f"{_stamp(end)} {said} closed for user {user}")]  # fmt: skip


def _success(chance: random.Random, host: str, remote: str, moment: dt.datetime, user: str) -> _Line:
    """Return a log-in that succeeds, as sshd writes it."""
    pid, port = chance.randint(2_000, 32_000), chance.randint(1_024, 65_000)
    return moment, f"{_stamp(moment)} {host} sshd[{pid}]: Accepted password for {user} from {remote} port {port} ssh2"


def _burst(chance: random.Random, host: str, remote: str, start: dt.datetime, attempts: int) -> list[_Line]:
    """Return an attack: failures only, so that their number is the number of lines."""
    moment, lines = start, []
    for _ in range(attempts):
        lines.append(_failure(chance, host, remote, moment, chance.choice((*_USERS, "root", "root", ""))))
        moment += dt.timedelta(seconds=chance.randint(*BURST_GAP_SECONDS))
    return lines


def _failure(chance: random.Random, host: str, remote: str, moment: dt.datetime, user: str) -> _Line:
    """Return a failed log-in as PAM or as sshd writes it; without a user, as PAM does."""
    pid, port = chance.randint(2_000, 32_000), chance.randint(1_024, 65_000)
    if not user or chance.random() < 0.5:
        known = f" user={user}" if user else ""
        text = (
            f"sshd(pam_unix)[{pid}]: authentication failure; logname= uid=0 euid=0 tty=NODEVssh ruser= "
            f"rhost={remote} {known}"
        )
    else:
        invalid = "invalid user " if user in _USERS else ""
        text = f"sshd[{pid}]: Failed password for {invalid}{user} from {remote} port {port} ssh2"
    return moment, f"{_stamp(moment)} {host} {text}"


def _noise(chance: random.Random, seed: int) -> str:
    """Return program and message of a line that is no failed remote log-in, though some look like one."""
    pid = chance.randint(2_000, 32_000)
    staff, remote = chance.choice(_STAFF), chance.choice(attackers(seed))
    ordinary = (
        f"CROND[{pid}]: (root) CMD (run-parts /etc/cron.hourly)",
        f"crond(pam_unix)[{pid}]: session opened for user root by (uid=0)",
        f"su(pam_unix)[{pid}]: session opened for user cyrus by (uid=0)",
        f"su(pam_unix)[{pid}]: session closed for user cyrus",
        f"ftpd[{pid}]: connection from {remote} () at {chance.choice(_MONTHS)} 14 12:00:00",
        f"sshd[{pid}]: Accepted publickey for {staff} from {chance.choice(_OFFICE)} port {pid} ssh2",
        f"sshd(pam_unix)[{pid}]: session opened for user {staff} by (uid=0)",
        f"kernel: klogd 1.4.1, log source = /proc/kmsg started. [{pid}]",
        f"kernel: eth0: transmit queue {pid} timed out",
        f"named[{pid}]: notify question section contains no SOA",
    )
    misleading = (
        f"sshd(pam_unix)[{pid}]: check pass; user unknown",
        f"sshd(pam_unix)[{pid}]: 2 more authentication failures; logname= uid=0 tty=NODEVssh ruser= rhost={remote} ",
        f"login(pam_unix)[{pid}]: authentication failure; logname=LOGIN uid=0 euid=0 tty=tty2 ruser= rhost=  user=root",
        f"sshd[{pid}]: Failed none for invalid user {staff} from {remote} port {pid} ssh2",
    )
    return chance.choice(ordinary if chance.random() < 0.9 else misleading)


def _moment(chance: random.Random, start: dt.datetime) -> dt.datetime:
    return start + dt.timedelta(seconds=chance.randrange(int(FILE_SPAN.total_seconds())))


def _stamp(moment: dt.datetime) -> str:
    """Return syslog's time: `Jun  9 06:06:20`."""
    return f"{_MONTHS[moment.month - 1]} {moment.day:2d} {moment:%H:%M:%S}"
