"""LogWatch: attacks on SSH. Reads syslog files of many hosts, finds failed log-ins, counts them by remote host.

Four tables, with one consistent state per file: every failure, each remote host's total, five minutes with ten failures
or more, and attacks on a host, recognised in the order of its log: bursts, user enumeration, success after failures.
Syslog writes no year: the parameter `year` gives it, to December and the following January alike.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

PAM_FAILURE = r"authentication failure; .* rhost=(\S+)(?:\s+user=(\S+))?"
"""PAM's line: remote host, and the user if PAM knows one. An empty `rhost=` (a console) does not match."""

SSHD_FAILURE = r"Failed password for (?:invalid user )?(\S+) from (\S+) port"
"""The line of sshd itself: user, remote host."""

HEADER = r"^([A-Z][a-z]{2}) +(\d{1,2}) (\d{2}:\d{2}:\d{2}) +(\S+) "
"""Month, day, time, host."""

TAGGED = HEADER + r"([^\s\[:]+)(?:\[([^\]]*)\])?: ?"
"""The header, and the program with or without its process id; the rest of the line is the message."""

UNKNOWN_USER = r"[Ii](?:nvalid|llegal) user (\S+) from (\S+)"
"""The line of sshd on a user name that the host does not have: user, remote host."""

ACCEPTED = r"Accepted \S+ for (\S+) from (\S+) port"
"""The line of sshd on a log-in that succeeded: user, remote host."""

ALERT_FAILURES = 10

BURST_FAILURES, BURST_WINDOW = 10, dt.timedelta(minutes=5)
"""A burst: this number of failures within this time."""

ENUMERATED_USERS, ENUMERATION_WINDOW = 5, dt.timedelta(minutes=10)
"""User enumeration: this number of different unknown users within this time."""

SUSPICIOUS_FAILURES = 3
"""A log-in is suspicious if it succeeds after this number of failures, or more, since the last success."""

ATTACK = """
    kind string, host string, remote_host string, user string, first_seen timestamp, last_seen timestamp, count bigint
"""


class Params(dm.Params):
    """Parameters of the application: `--set year=2006`."""

    year: int = Field(default=2005, ge=1, le=9999)


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.log", format="text", recursive=True))
def lines(scanned: DataFrame) -> DataFrame:
    """One row per line: `value`, `source_file`."""
    return scanned


@dm.functor
def failures(lines: DataFrame, params: Params) -> DataFrame:
    """One row per failed log-in; a line that fits both patterns counts once, as PAM's.

    `logged_at` is null if the header names no moment of that year, `user` if none is known, `host` and `service` if
    there is no syslog header.
    """
    by_pam = F.col("value").rlike(PAM_FAILURE)
    failed = lines.where(by_pam | F.col("value").rlike(SSHD_FAILURE))
    return dm.select(
        failed,
        "source_file",
        logged_at(params.year).alias("logged_at"),
        found(HEADER, 4).alias("host"),
        found(TAGGED, 5).alias("service"),
        F.when(by_pam, found(PAM_FAILURE, 1)).otherwise(found(SSHD_FAILURE, 2)).alias("remote_host"),
        F.when(by_pam, found(PAM_FAILURE, 2)).otherwise(found(SSHD_FAILURE, 1)).alias("user"),
        F.regexp_replace("value", TAGGED, "").alias("message"),
    )


def found(pattern: str, group: int) -> Column:
    """Return the text that a group of the pattern matched in the line, null if it matched none."""
    return F.nullif(F.regexp_extract("value", pattern, group), F.lit(""))


def logged_at(year: int) -> Column:
    """Return the moment in the line's header, UTC; null if the calendar of that year does not have it."""
    parts = [F.regexp_extract("value", HEADER, group) for group in (1, 2, 3)]
    return F.try_to_timestamp(F.concat_ws(" ", F.lit(f"{year:04d}"), *parts), F.lit("yyyy MMM d HH:mm:ss"))


hosts = dm.aggregate(
    failures,
    keys=["remote_host"],
    values={"failures": dm.count(), "first_seen": dm.min("logged_at"), "last_seen": dm.max("logged_at")},
    name="hosts",
)

windows = dm.aggregate(
    failures,
    keys=["remote_host"],
    window=dm.tumbling("logged_at", minutes=5),
    values={"failures": dm.count()},
    name="windows",
)


@dm.filter
def alerts(windows: DataFrame) -> Column:
    """Keep the windows with ten failures or more."""
    return F.col("failures") >= ALERT_FAILURES


@dm.functor
def log_ins(lines: DataFrame, params: Params) -> DataFrame:
    """One row per line on a remote log-in: a failure, as in `failures`, an unknown user, both, or a success."""
    facts = log_in_facts()
    about = lines.where(facts["is_failure"] | facts["is_unknown"] | facts["is_success"])
    columns = {"host": found(HEADER, 4), "logged_at": logged_at(params.year), **facts}
    return dm.select(about, *(column.alias(name) for name, column in columns.items()))


def log_in_facts() -> dict[str, Column]:
    """Return what a line says of a log-in; one that fits several patterns has the names of the first of them."""
    text = F.col("value")
    by_pam, by_sshd, unknown = text.rlike(PAM_FAILURE), text.rlike(SSHD_FAILURE), text.rlike(UNKNOWN_USER)

    def named(pam: int, sshd: int) -> Column:
        """Return user or remote host by the pattern that fits."""
        others = F.when(by_sshd, found(SSHD_FAILURE, sshd)).when(unknown, found(UNKNOWN_USER, sshd))
        return F.when(by_pam, found(PAM_FAILURE, pam)).otherwise(others.otherwise(found(ACCEPTED, sshd)))

    return {
        "remote_host": named(1, 2),
        "user": named(2, 1),
        "is_failure": by_pam | by_sshd,
        "is_unknown": unknown & ~by_pam,
        "is_success": text.rlike(ACCEPTED) & ~(by_pam | by_sshd | unknown),
    }


@dataclass
class Trail:
    """The traces of a remote host on a host: never more than one threshold's worth, also in a long attack.

    Attributes:
        moments: of the failures that may become a burst, in their order.
        tried: the unknown users that may become an enumeration, with the moments at which they were tried last.
        failures, first_failure: since the last success.
    """

    moments: list[dt.datetime] = field(default_factory=list)
    tried: dict[str, dt.datetime] = field(default_factory=dict)
    failures: int = 0
    first_failure: dt.datetime | None = None


@dm.custom(keys=["host", "remote_host"], state=Trail, output=ATTACK, batch="arrow")
def attacks(state: Trail | None, log_ins: pa.Table) -> tuple[Trail | None, pa.Table | None]:
    """Recognise attacks of a remote host on a host, each at the line that completes it.

    The lines of a burst or an enumeration are then forgotten: a longer one has a row per further threshold's worth.
    `count` is failures or users; `user` is the one that got in. Lines without a moment are in no window.
    """
    return with_attacks(state, log_ins)


def with_attacks(state: Trail | None, log_ins: pa.Table) -> tuple[Trail | None, pa.Table | None]:
    """Return the trail after log-ins of a remote host on a host, and the attacks that they complete."""
    trail, rows = state or Trail(), []
    for line in log_ins.to_pylist():
        for kind, user, first, count in recognised(trail, line):
            rows.append((kind, line["host"], line["remote_host"], user, first, line["logged_at"], count))
    return trail if trail != Trail() else None, table_of(rows, ATTACK)


def table_of(rows: Sequence[Sequence[Any]], columns: str) -> pa.Table | None:
    """Return rows as a table with the columns of a DDL, None if there are none."""
    import pyarrow as pa

    if not rows:
        return None
    types = {"string": pa.string(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC"), "boolean": pa.bool_()}
    names, kinds = zip(*(column.split() for column in columns.split(",")), strict=True)
    values = zip(zip(*rows, strict=True), kinds, strict=True)
    return pa.table([pa.array(column, types[kind]) for column, kind in values], names=list(names))


def recognised(trail: Trail, line: dict[str, Any]) -> Iterator[tuple[str, str | None, dt.datetime | None, int]]:
    """Take a line into the trail; yield (kind, user, first seen, count) of each attack that it completes."""
    moment = line["logged_at"]
    if line["is_failure"]:
        trail.failures += 1
        trail.first_failure = trail.first_failure or moment
        if moment is not None:
            trail.moments = [*recent(trail.moments, moment, BURST_WINDOW), moment]
            if len(trail.moments) >= BURST_FAILURES:
                yield "burst", None, trail.moments[0], len(trail.moments)
                trail.moments = []
    if line["is_unknown"] and moment is not None:
        kept = set(recent(trail.tried.values(), moment, ENUMERATION_WINDOW))
        trail.tried = {user: at for user, at in trail.tried.items() if at in kept} | {line["user"]: moment}
        if len(trail.tried) >= ENUMERATED_USERS:
            yield "user_enumeration", None, min(trail.tried.values()), len(trail.tried)
            trail.tried = {}
    if line["is_success"]:
        if trail.failures >= SUSPICIOUS_FAILURES:
            yield "success_after_failures", line["user"], trail.first_failure, trail.failures
        trail.failures, trail.first_failure = 0, None


def recent(moments: Iterable[dt.datetime], now: dt.datetime, window: dt.timedelta) -> Iterator[dt.datetime]:
    """Yield the moments within the window that ends now; a clock that went back begins a new one."""
    return (moment for moment in moments if dt.timedelta(0) <= now - moment <= window)


dm.sink(failures, dm.DeltaAppend("log_watch_failures"))
dm.sink(hosts, dm.DeltaUpsert("log_watch_hosts", keys=["remote_host"]))
dm.sink(alerts, dm.DeltaUpsert("log_watch_alerts", keys=["remote_host", "window_start"]))
dm.sink(attacks, dm.DeltaAppend("log_watch_attacks"))
