"""HostWatch: attacks on the hosts of a network. Reads their syslog files, and opens tickets for what matters in them.

LogWatch with alert rules, correlations and enrichment, as large as the applications of the paper. The region `lines`
has one consistent state a file, and three stages with a channel between each two:

1. **reading**: lines become events: log-ins, connections, sessions and faults;
2. **detection**: attacks by host, rules of so many events in so much time, log-ins from new places, and two
   correlations: the beginning of a session that ends, and the session of root soon after a break-in;
3. **reporting**: findings become tickets, know whose network they come from, and get a severity.

The region `attacks_seen` makes a state a minute of the attacks that the first one found: campaigns against several
hosts. Patterns, attacks and the parameter `year` are those of LogWatch.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import drainmark as dm
from drainmark import F
from drainmark.jobs.apps.log_watch import (
    ATTACK,
    HEADER,
    TAGGED,
    Params,
    Trail,
    found,
    log_in_facts,
    logged_at,
    table_of,
    with_attacks,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

CONNECTION = r"connection from (\S+) \("
"""The line of ftpd on a connection: remote host."""

SESSION = r"session (opened|closed) for user (\S+)"
"""PAM's line at both ends of a session: which end, user."""

FAULT = r"exited abnormally|segfault at|Out of Memory: Killed process"
"""The lines of a program that died."""

FLOOD_CONNECTIONS, FLOOD_SECONDS = 10, 60
CRASHES, CRASH_SECONDS = 3, 600
TAKEOVER_WINDOW = dt.timedelta(hours=1)
"""A session of root that begins so soon after a break-in, on the same host, is a takeover."""

LATENESS = dt.timedelta(days=1)
"""The most by which the log of a host is behind those of the others."""

TICKET_PAUSE = dt.timedelta(hours=1)
"""A finding opens a new ticket if the last one of its kind, host and remote host is longer ago."""

CAMPAIGN_HOSTS = 2
URGENT = 4
SEVERITIES = {
    "takeover": 5,
    "success_after_failures": 4,
    "burst": 3,
    "user_enumeration": 3,
    "connection_flood": 2,
    "crash_loop": 2,
    "new_origin": 1,
}

NETWORK = r"^(\d+\.\d+\.\d+)\.\d+$"
"""The first three numbers of an address name its network."""

NAMES = ("remote_host", "user")
"""The columns of a finding that some rules do not know."""

TICKET = """
    ticket bigint, rule string, host string, remote_host string, user string, opened_at timestamp, last_at timestamp,
    findings bigint, count bigint, is_new boolean
"""
NETWORKS = "network string, owner string, is_trusted boolean"


# --- reading: lines become events ------------------------------------------------------------------------------------


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.log", format="text", recursive=True))
def lines(scanned: DataFrame) -> DataFrame:
    """One row per line: `value`, `source_file`."""
    return scanned


@dm.functor
def entries(lines: DataFrame, params: Params) -> DataFrame:
    """The parts of a line: `logged_at` is null if the header names no moment of that year, all are without a header."""
    return dm.select(
        lines,
        "value",
        logged_at(params.year).alias("logged_at"),
        found(HEADER, 4).alias("host"),
        found(TAGGED, 5).alias("service"),
        found(TAGGED, 6).alias("pid"),
    )


@dm.functor
def events(entries: DataFrame) -> DataFrame:
    """The lines that say something, by `topic`. A line that fits several patterns has the fields of the first of them.

    A log-in is a failure, one with an unknown user, both, or a success.
    """
    text, facts = F.col("value"), log_in_facts()
    is_log_in = facts["is_failure"] | facts["is_unknown"] | facts["is_success"]
    topic = (
        F.when(is_log_in, "log-in")
        .when(text.rlike(CONNECTION), "connection")
        .when(text.rlike(SESSION), "session")
        .when(text.rlike(FAULT), "fault")
    )
    sorted_out = entries.withColumn("topic", topic).where(F.col("topic").isNotNull())
    return dm.select(
        sorted_out,
        *("topic", "logged_at", "host", "service", "pid"),
        F.when(is_log_in, facts["remote_host"]).otherwise(found(CONNECTION, 1)).alias("remote_host"),
        F.when(is_log_in, facts["user"]).otherwise(found(SESSION, 2)).alias("user"),
        found(SESSION, 1).alias("end"),
        *(facts[name].alias(name) for name in ("is_failure", "is_unknown", "is_success")),
    )


# --- detection ----------------------------------------------------------------------------------------------------

by_topic = dm.split(
    dm.buffered(events),
    outputs={
        "log_ins": "topic = 'log-in'",
        "connections": "topic = 'connection'",
        "sessions": "topic = 'session'",
        "faults": "topic = 'fault'",
    },
    name="by_topic",
)


@dm.custom(keys=["host", "remote_host"], state=Trail, output=ATTACK, batch="arrow", inputs=[by_topic["log_ins"]])
def attacks(state: Trail | None, log_ins: pa.Table) -> tuple[Trail | None, pa.Table | None]:
    """Recognise attacks of a remote host on a host, each at the line that completes it."""
    return with_attacks(state, log_ins)


@dm.functor(inputs=[by_topic["log_ins"]])
def successes(log_ins: DataFrame) -> DataFrame:
    """The log-ins that succeeded."""
    return dm.select(log_ins.where("is_success"), "host", "remote_host", "user", "logged_at")


origins = dm.deduplicate(successes, keys=["host", "user", "remote_host"], name="origins")


@dm.composite
def too_many(happened: dm.Stream, rule: str, *, key: str, known_as: str, least: int, seconds: int) -> dm.Stream:
    """A rule: so many events of a host, or more, in so many seconds. Every further event is a finding, too.

    Args:
        key: only events that are equal in this column count together.
        known_as: the column of the finding that gets the value of `key`.
    """
    counted = dm.aggregate(
        happened,
        keys=["host", key],
        window=dm.sliding("logged_at", seconds=seconds),
        values={"count": dm.count()},
        emit="row",
        columns=["logged_at"],
        name="counted",
    )

    @dm.functor(inputs=[counted])
    def found(counted: DataFrame) -> DataFrame:
        return finding(counted.where(F.col("count") >= least), F.lit(rule), "logged_at", **{known_as: key})

    return found


def finding(rows: DataFrame, rule: Column, at: str, **known: str) -> DataFrame:
    """Return rows with the columns of a finding; those of `NAMES` are null without a column for them."""
    names = {name: F.col(known[name]) if name in known else F.lit(None).cast("string") for name in NAMES}
    count = F.col("count") if "count" in rows.columns else F.lit(1).cast("bigint")
    columns = {"rule": rule, "host": F.col("host"), **names, "at": F.col(at), "count": count}
    return dm.select(rows, *(column.alias(name) for name, column in columns.items()))


floods = too_many(
    by_topic["connections"],
    "connection_flood",
    key="remote_host",
    known_as="remote_host",
    least=FLOOD_CONNECTIONS,
    seconds=FLOOD_SECONDS,
    name="floods",
)
crashes = too_many(
    by_topic["faults"],
    "crash_loop",
    key="service",
    known_as="user",
    least=CRASHES,
    seconds=CRASH_SECONDS,
    name="crashes",
)


@dm.functor(inputs=[by_topic["sessions"]])
def opened(sessions: DataFrame) -> DataFrame:
    """The beginnings of sessions."""
    begun = sessions.where("end = 'opened'")
    return dm.select(begun, "host", "service", "pid", "user", F.col("logged_at").alias("opened_at"))


@dm.functor(inputs=[by_topic["sessions"]])
def closed(sessions: DataFrame) -> DataFrame:
    """The ends of sessions; without a process id nobody knows of which."""
    over = sessions.where("end = 'closed' and pid is not null")
    return dm.select(over, "host", "service", "pid", F.col("logged_at").alias("closed_at"))


# By order of arrival: the lines of a host are in order, and a process id is used again.
ended_sessions = dm.join(closed, opened, on=["host", "service", "pid"], right_window=1, name="ended_sessions")


@dm.functor
def break_ins(attacks: DataFrame) -> DataFrame:
    """The attacks after which somebody got in."""
    got_in = attacks.where("kind = 'success_after_failures'")
    return dm.select(got_in, "host", "remote_host", F.col("last_seen").alias("broke_in_at"))


@dm.functor
def root_sessions(opened: DataFrame) -> DataFrame:
    """The sessions of root, but for those of cron, which has one whenever it does something."""
    return dm.select(opened.where("user = 'root' and service not like 'cron%'"), "host", "user", "opened_at")


# By time: the two ends are of different programs, and a host's log may be read before that of an attack elsewhere.
takeovers = dm.join(
    break_ins,
    root_sessions,
    on=["host"],
    within=(dt.timedelta(0), TAKEOVER_WINDOW),
    left_time="broke_in_at",
    right_time="opened_at",
    lateness=LATENESS,
    name="takeovers",
)


@dm.functor
def attack_findings(attacks: DataFrame) -> DataFrame:
    """Each attack as a finding; its kind is the rule."""
    return finding(attacks, F.col("kind"), "last_seen", remote_host="remote_host", user="user")


@dm.functor
def takeover_findings(takeovers: DataFrame) -> DataFrame:
    """Each takeover as a finding."""
    return finding(takeovers, F.lit("takeover"), "opened_at", remote_host="remote_host", user="user")


@dm.functor
def origin_findings(origins: DataFrame) -> DataFrame:
    """The first log-in of a user from a remote host."""
    return finding(origins, F.lit("new_origin"), "logged_at", remote_host="remote_host", user="user")


findings = dm.union(attack_findings, takeover_findings, origin_findings, floods, crashes, name="findings")

# --- reporting ----------------------------------------------------------------------------------------------------

in_order = dm.sort(dm.buffered(findings), by=["at", "rule", "host", "remote_host", "user"], name="in_order")
"""Tickets are numbered in the order of time; rows that are the same in every column need no order."""


@dm.operator(output=TICKET, inputs=[in_order])
@dataclass
class Tickets(dm.StateHandler):
    """Tickets of all hosts, numbered from 1. A finding soon after the last one of its kind belongs to its ticket.

    A row per ticket that a file opened or changed. The open tickets are frozen at once, and saved while lines flow.
    """

    non_blocking = True
    opened: int = 0
    open: dm.CowDict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dm.CowDict)

    def process(self, in_order: pa.Table, context: Any) -> pa.Table | None:
        changed: dict[int, tuple[Any, ...]] = {}
        for row in in_order.to_pylist():
            about = row["rule"], row["host"], row["remote_host"]
            number, user, first, last, findings, most = self.open.get(about) or (0, None, None, None, 0, 0)
            if not number or is_later(last, row["at"]):
                self.opened += 1
                number, user, first, last, findings, most = self.opened, row["user"], row["at"], row["at"], 0, 0
            is_new = findings == 0 or (number in changed and changed[number][-1])
            last = max(last, row["at"]) if last and row["at"] else last or row["at"]
            ticket = number, user, first, last, findings + 1, max(most, row["count"])
            self.open[about] = ticket
            changed[number] = (number, *about, *ticket[1:], is_new)
        return table_of([changed[number] for number in sorted(changed)], TICKET)


def is_later(last: dt.datetime | None, now: dt.datetime | None) -> bool:
    """Say whether a finding is too far from the last one to belong to its ticket; without a moment it belongs."""
    return last is not None and now is not None and abs(now - last) > TICKET_PAUSE


networks = dm.lookup("host_watch_networks", schema=NETWORKS, name="networks")


@dm.functor(vectorised=True)
def assessed(tickets: DataFrame, networks: DataFrame) -> DataFrame:
    """Each ticket with the owner of the remote host's network, and its severity: less if the network is trusted."""
    named = tickets.withColumn("network", F.nullif(F.regexp_extract("remote_host", NETWORK, 1), F.lit("")))
    severities = F.create_map(*(F.lit(part) for rule in SEVERITIES.items() for part in rule))
    trusted = F.coalesce(F.col("is_trusted"), F.lit(False)).cast("int")
    ticket = [column.split()[0] for column in TICKET.split(",")]
    return dm.select(
        named.join(networks, "network", "left"),
        *ticket,
        "owner",
        (severities[F.col("rule")] - trusted).alias("severity"),
    )


@dm.filter
def urgent(assessed: DataFrame) -> Column:
    """Keep the new tickets that cannot wait."""
    return F.col("is_new") & (F.col("severity") >= URGENT)


dm.sink(attacks, dm.DeltaAppend("host_watch_attacks"))
dm.sink(ended_sessions, dm.DeltaAppend("host_watch_sessions"))
dm.sink(assessed, dm.DeltaUpsert("host_watch_tickets", keys=["ticket"]))
dm.sink(urgent, dm.DeltaAppend("host_watch_pages"))


# --- the second region: campaigns -----------------------------------------------------------------------------------


@dm.consistent(trigger="periodic", period=60)
@dm.source(dm.TableSource("host_watch_attacks"))
def attacks_seen(scanned: DataFrame) -> DataFrame:
    """The attacks that the region `lines` has committed."""
    return scanned


remote_hosts = dm.aggregate(
    attacks_seen,
    keys=["remote_host"],
    values={
        "attacks": dm.count(),
        "hosts": dm.count_distinct("host"),
        "first_seen": dm.min("first_seen"),
        "last_seen": dm.max("last_seen"),
    },
    name="remote_hosts",
)


@dm.filter
def campaigns(remote_hosts: DataFrame) -> Column:
    """Keep the remote hosts that attack several hosts."""
    return F.col("hosts") >= CAMPAIGN_HOSTS


dm.sink(campaigns, dm.DeltaUpsert("host_watch_campaigns", keys=["remote_host"]))
