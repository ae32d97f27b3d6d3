"""LogWatch: who tries to break in? Reads syslog files of many hosts, finds failed log-ins, counts them by remote host.

Three tables at one consistent state a file: every failure, each remote host's total, and bursts of ten or more in
five minutes. Syslog writes no year: it is the parameter `year`, and December is not told from the next January.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PAM_FAILURE = r"authentication failure; .* rhost=(\S+)(?:\s+user=(\S+))?"
"""PAM's line: remote host, and the user if PAM knows one. An empty `rhost=` (a console) is no match."""

SSHD_FAILURE = r"Failed password for (?:invalid user )?(\S+) from (\S+) port"
"""The line of sshd itself: user, remote host."""

HEADER = r"^([A-Z][a-z]{2}) +(\d{1,2}) (\d{2}:\d{2}:\d{2}) +(\S+) "
"""Month, day, time, host."""

TAGGED = HEADER + r"([^\s\[:]+)(?:\[[^\]]*\])?: ?"
"""The header and the program with or without its process id; what follows is the message."""

ALERT_FAILURES = 10


class Params(dm.Params):
    """Parameters of the application: `--set year=2006`."""

    year: int = Field(default=2005, ge=1, le=9999)


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.log", format="text", recursive=True))
def lines(scanned: DataFrame) -> DataFrame:
    """One row a line: `value`, `source_file`."""
    return scanned


@dm.functor
def failures(lines: DataFrame, params: Params) -> DataFrame:
    """One row a failed log-in; a line that fits both patterns counts once, as PAM's.

    `logged_at` is null where the header names no moment of that year, `user` where none is known, `host` and `service`
    where there is no syslog header.
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
    """Return what a group of the pattern matched in the line, null if it matched nothing."""
    return F.nullif(F.regexp_extract("value", pattern, group), F.lit(""))


def logged_at(year: int) -> Column:
    """Return the moment in the line's header, UTC; null for what the calendar of that year does not have."""
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


dm.sink(failures, dm.DeltaAppend("log_watch_failures"))
dm.sink(hosts, dm.DeltaUpsert("log_watch_hosts", keys=["remote_host"]))
dm.sink(alerts, dm.DeltaUpsert("log_watch_alerts", keys=["remote_host", "window_start"]))
