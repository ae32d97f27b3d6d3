"""The page about a region, as values: its newest states and their costs, failures, tables, graph.

A pure function of bounded facts: the newest states and the rows between them, however long the history is.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from drainmark.jobs.protocol.claimed_code import Claim, Deploy
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, Outcome, PublishNote, RowKind
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.records.triggers import RETRACTS
from drainmark.orchestration.inspection import SHOWN_STATES
from drainmark.orchestration.inspection.region_view import facts_of
from drainmark.orchestration.inspection.status import iso
from drainmark.resources.checkpoints.newest_rows import GroupSums, NewestRows

_STEPS = ("process", "drain", "checkpoint", "publish")
_WITH_BARS = frozenset({RowKind.STATE, RowKind.SKIP, RowKind.PROGRESS})
_ENDINGS = {Outcome.FAILED: "failed", Outcome.INTERRUPTED: "interrupted"}


def rows_wanted(last: int) -> int:
    """Return how many checkpoint rows to read to show so many states: for each its group, a note, and a claim."""
    return 3 * last + 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFacts:
    """The facts from which a report is made.

    Attributes:
        status: of the region, an entry of `status --json`.
        newest: at least `rows_wanted(last)` rows, if there are so many.
        graph: of the region in the code, an entry of `regions` of `graph --json`; None if it is unknown.
        folder: of the source; file names are shown relative to it. None if it is unknown.
        now: time at which the facts were read.
        last: number of states and of groups that are shown.
    """

    status: Mapping[str, Any]
    history: RegionHistory
    newest: NewestRows
    graph: Mapping[str, Any] | None
    folder: str | None
    now: dt.datetime
    last: int = SHOWN_STATES


def region_report(facts: RegionFacts) -> dict[str, Any]:
    """Return the report as JSON; every key is always there, times are ISO-8601 UTC.

    - `region`, `as_of`, `status` (see `RegionFacts`), `folder`
    - `totals` of the whole history: `states` in force, `groups`, `rows_in`, `rows_quarantined`, `bytes_in`, `rewinds`,
      `halts`, `skipped`
    - `groups`: the newest, oldest first, each with `kind` (`state`, `skip`, `progress`), `first_id`, `last_id`,
      `states`, `withdrawn` (how many of them a rewind withdrew), `epoch`, `run_id`, `committed_at`, `file` (the last
      one), `rows_in`, `rows_quarantined` (in the rows that were read), `bytes_in`, `process_seconds`, `drain_seconds`,
      `checkpoint_seconds`, `publish_seconds` (null if it was not recorded), `rows_per_second` (null without time),
      `waited_seconds` (from the last change of the file to the commit; null if the source gives no time), and
      `written_bytes`: by `sinks`, `states`, `images`
    - `states`: the newest, oldest first, each with `sequence_id`, `file`, `group`, `rows_in`, `rows_quarantined`,
      `bytes_in`, `committed_at`, `is_withdrawn`, `replaced_by`, `retracted_by`, `retracts`, `reason`, `kind`
    - `events`: in commit order, each with `kind` (`failed`, `crashed`, `interrupted`, `halt`, `resume`, `rewind`,
      `skip`, `refused`, `deploy`: the first claim of other code), `at`, `after_id` (the last id of the group before
      it, null before the first shown group), `to` (of a rewind), `file`, `operator`, `location`, `message`, `run_id`
    - `quarantine`: of the rows that were read, the files that were unreadable or had bad rows: `sequence_id`, `file`,
      `rows_in`, `rows_quarantined`, `reason` (null if only some rows are bad), `is_withdrawn`
    - `unmet`: by name of an expectation, rows that do not meet it, in the states in force that were read
    - `summary` of the shown groups in force: for each measure (`process_seconds` and so on, `waited_seconds`,
      `rows_in`, `bytes_in`) `count`, `min`, `median`, `p95`, `max`; and `throughput`: `rows_per_second` and
      `bytes_per_second` of work, `states_per_hour` between the first and the last (null if it cannot be computed)
    - `tables`: each with `table`, `role`, `operator`, `rows` and `bytes` that the shown groups in force wrote (for a
      table that is updated from a history: to the history), `version` (null if it has none), `shown_id`
    - `graph`: see `RegionFacts`; `operator_rows`: by name of an operator, the rows of the shown groups that it read
      from outside or wrote
    """
    history, newest = facts.history, facts.newest
    groups = _groups(facts)
    in_force = [group for group in groups if group["kind"] == "state" and not group["withdrawn"]]
    counted = {group["last_id"] for group in groups if not group["withdrawn"]}
    ends = [row for row in newest.rows if _is_end(row, counted)]
    tables = [_table(table, history, ends) for table in history.tables]
    return {
        "region": facts.status["region"],
        "as_of": iso(facts.now),
        "status": dict(facts.status),
        "folder": facts.folder,
        "totals": _totals(history),
        "groups": groups,
        "states": _states(facts),
        "events": _events(facts, groups),
        "quarantine": list(_quarantine(newest.rows, history)),
        "unmet": _unmet(newest.rows, history),
        "summary": {
            **{name: _spread([group[name] for group in in_force]) for name in _measures()},
            "throughput": _throughput(in_force),
        },
        "tables": tables,
        "graph": dict(facts.graph) if facts.graph is not None else None,
        "operator_rows": _operator_rows(facts.graph, tables, in_force),
    }


def _measures() -> tuple[str, ...]:
    return (*(f"{step}_seconds" for step in _STEPS), "rows_in", "bytes_in", "waited_seconds")


def _totals(history: RegionHistory) -> dict[str, Any]:
    counts = history.totals.counts
    names = {"rewinds": "rewind", "halts": "halt", "skipped": "skip"}
    plain = {name: name for name in ("groups", "rows_in", "rows_quarantined", "bytes_in")}
    return {"states": len(history.states), **{name: counts.get(key, 0) for name, key in (plain | names).items()}}


# --- groups and states -------------------------------------------------------------------------------------------


def _groups(facts: RegionFacts) -> list[dict[str, Any]]:
    """Return the newest groups that have all their states among the rows read."""
    rows, sums = facts.newest.rows, facts.newest.sums
    seconds = {kind: _noted(rows, f"{kind}_seconds") for kind in ("commit", "publish")}
    quarantined: dict[str, int] = {}
    for row in rows:
        if row.kind is RowKind.STATE:
            told = facts.history.states.rows.told(row)
            quarantined[row.attempt] = quarantined.get(row.attempt, 0) + (told.detail.get("rows_quarantined") or 0)
    found = []
    for row in rows:
        whole = sums.get(row.attempt)
        if row.kind not in _WITH_BARS or (row.kind is RowKind.STATE and row.sequence_id != row.group_last):
            continue
        if row.kind is RowKind.STATE and (whole is None or whole.states < row.sequence_id - (row.group_first or 0) + 1):
            continue
        group = _group(row, whole if row.kind is RowKind.STATE else None, facts.history)
        last = row.sequence_id
        group["checkpoint_seconds"] = seconds["commit"].get(last)
        group["publish_seconds"] = seconds["publish"].get(last)
        group["rows_quarantined"] = quarantined.get(row.attempt, 0)
        found.append(group)
    return found[-facts.last :]


def _noted(rows: Sequence[CheckpointRow], name: str) -> dict[int, float]:
    """Return the durations of groups that later rows recorded, by last id of the group."""
    return {int(last): each for row in rows for last, each in (row.detail.get(name) or {}).items()}


def _group(row: CheckpointRow, sums: GroupSums | None, history: RegionHistory) -> dict[str, Any]:
    first = sums.first_id if sums is not None else row.sequence_id
    is_state = row.kind is not RowKind.PROGRESS
    in_force = len(history.states.ids.above(first - 1).up_to(row.sequence_id)) if is_state else 0
    states = row.sequence_id - first + 1 if is_state else 0
    process, drain = row.detail.get("process_seconds"), row.drain_seconds
    work = (process or 0.0) + (drain or 0.0)
    rows_in = sums.rows_in if sums is not None else 0
    return {
        "kind": row.kind.value,
        "first_id": first,
        "last_id": row.sequence_id,
        "states": states,
        "withdrawn": states - in_force,
        "epoch": row.epoch,
        "run_id": row.run_id,
        "committed_at": iso(row.recorded_at),
        "file": row.trigger_uri,
        "rows_in": rows_in,
        "rows_quarantined": 0,
        "bytes_in": sums.bytes_in if sums is not None else 0,
        "process_seconds": process,
        "drain_seconds": drain,
        "checkpoint_seconds": None,
        "publish_seconds": None,
        "rows_per_second": rows_in / work if work > 0 else None,
        "waited_seconds": _waited(row),
        "written_bytes": _written(row),
    }


def _waited(row: CheckpointRow) -> float | None:
    """Return the age of a file at its commit, 0 for a time in the future; None if its source gives no time."""
    changed = (row.trigger_identity or {}).get("mtime_ns")
    if not isinstance(changed, int):
        return None
    return max(0.0, row.recorded_at.timestamp() - changed / 1e9)


def _written(row: CheckpointRow) -> dict[str, int]:
    manifest = row.detail.get("manifest") or {}
    found = {"sinks": 0, "states": 0, "images": 0}
    for table, files in (manifest.get("files") or {}).items():
        found["states" if table.startswith("state/") else "sinks"] += sum(file["size"] for file in files)
    for image in manifest.get("images") or ():
        found["images"] += sum(file["size"] for file in image["files"])
    return found


def _states(facts: RegionFacts) -> list[dict[str, Any]]:
    history = facts.history
    rows = [row for row in facts.newest.rows if row.kind in (RowKind.STATE, RowKind.SKIP)][-facts.last :]
    return [
        {
            **facts_of(row, history),
            "kind": row.kind.value,
            "file": row.trigger_uri,
            "committed_at": iso(row.recorded_at),
            "is_withdrawn": row.sequence_id not in history.states,
            "retracts": (row.trigger_identity or {}).get(RETRACTS),
        }
        for row in map(history.states.rows.told, rows)
    ]


# --- events ------------------------------------------------------------------------------------------------------


def _events(facts: RegionFacts, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the events between the groups that are shown, and those before them if there are no older groups."""
    rows, shown = facts.newest.rows, {group["last_id"] for group in groups}
    if len(groups) == facts.last:
        rows = rows[next(place for place, row in enumerate(rows) if _is_end(row, shown)) :]
    deploys = {deploy.epoch: deploy for deploy in facts.history.deploys[1:]}
    found: list[dict[str, Any]] = []
    after: int | None = None
    for row in rows:
        if _is_end(row, shown):
            after = row.sequence_id
        if row.kind is RowKind.CLAIM and row.epoch in deploys:
            found.append(_deploy_event(row, deploys[row.epoch], after))
        if (kind := _event_kind(row)) is not None:
            found.append(_event(row, kind, after))
    return found[-facts.last :]


def _is_end(row: CheckpointRow, shown: Collection[int]) -> bool:
    return row.kind in _WITH_BARS and row.sequence_id in shown


def _event_kind(row: CheckpointRow) -> str | None:
    if row.kind in (RowKind.HALT, RowKind.RESUME, RowKind.REWIND, RowKind.SKIP, RowKind.REFUSED):
        return row.kind.value
    if row.kind is RowKind.CLAIM and Claim.from_row(row).previous is Outcome.CRASHED:
        return "crashed"
    ending = PublishNote.from_row(row).outcome if row.kind is RowKind.PUBLISHED else None
    return _ENDINGS.get(ending) if ending else None


def _deploy_event(row: CheckpointRow, deploy: Deploy, after: int | None) -> dict[str, Any]:
    changed = f": {', '.join(deploy.operators)}" if deploy.operators else ""
    return {**_event(row, "deploy", after), "message": f"code {deploy.label}{changed}"}


def _event(row: CheckpointRow, kind: str, after: int | None) -> dict[str, Any]:
    error = row.detail.get("error") or {}
    reason = row.detail.get("reason")
    message = error.get("message")
    return {
        "kind": kind,
        "at": iso(row.recorded_at),
        "after_id": after,
        "to": row.detail.get("to"),
        "file": row.trigger_uri or row.detail.get("trigger") or error.get("trigger"),
        "operator": row.detail.get("operator") or error.get("operator"),
        "location": error.get("location"),
        "message": "; ".join(dict.fromkeys(text for text in (reason, message) if text)) or None,
        "run_id": row.run_id,
    }


def _quarantine(rows: Sequence[CheckpointRow], history: RegionHistory) -> Iterator[dict[str, Any]]:
    for row in rows:
        told = history.states.rows.told(row)
        if row.kind is RowKind.STATE and told.detail.get("rows_quarantined"):
            yield {
                "sequence_id": row.sequence_id,
                "file": row.trigger_uri,
                "rows_in": row.rows_in,
                "rows_quarantined": told.detail["rows_quarantined"],
                "reason": told.detail.get("reason"),
                "is_withdrawn": row.sequence_id not in history.states,
            }


def _unmet(rows: Sequence[CheckpointRow], history: RegionHistory) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        if row.kind is RowKind.STATE and row.sequence_id in history.states:
            for name, count in (history.states.rows.told(row).detail.get("unmet") or {}).items():
                found[name] = found.get(name, 0) + count
    return found


# --- sums --------------------------------------------------------------------------------------------------------


def _spread(values: Iterable[float | None]) -> dict[str, float | int | None]:
    known = sorted(value for value in values if value is not None)
    if not known:
        return {"count": 0, "min": None, "median": None, "p95": None, "max": None}
    p95 = known[math.ceil(0.95 * len(known)) - 1]
    return {"count": len(known), "min": known[0], "median": median(known), "p95": p95, "max": known[-1]}


def _throughput(groups: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    work = sum((group["process_seconds"] or 0.0) + (group["drain_seconds"] or 0.0) for group in groups)
    times = [dt.datetime.fromisoformat(group["committed_at"]) for group in (*groups[:1], *groups[-1:])]
    hours = (times[-1] - times[0]).total_seconds() / 3600 if times else 0.0
    later = sum(group["states"] for group in groups[1:])
    return {
        "rows_per_second": sum(group["rows_in"] for group in groups) / work if work else None,
        "bytes_per_second": sum(group["bytes_in"] for group in groups) / work if work else None,
        "states_per_hour": later / hours if hours > 0 else None,
    }


def _table(table: RegionTable, history: RegionHistory, ends: Sequence[CheckpointRow]) -> dict[str, Any]:
    """Return the rows and bytes written to a table; for a table that is updated from a history, to the history."""
    name = table.history or table.name
    files = [file for row in ends for file in ((row.detail.get("manifest") or {}).get("files") or {}).get(name, ())]
    return {
        "table": table.name,
        "role": table.role.value,
        "operator": table.operator,
        "rows": sum(file["rows"] for file in files),
        "bytes": sum(file["size"] for file in files),
        "version": history.versions.get(table.name),
        "shown_id": history.lags.get(table.name, history.published_id),
    }


def _operator_rows(
    graph: Mapping[str, Any] | None, tables: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Return rows by operator: a sink's visible table, a state's changes; all input rows for a start, if only one."""
    found: dict[str, int] = {}
    starts: Sequence[str] = graph["starts"] if graph is not None else []
    for table in sorted(tables, key=lambda each: each["table"].startswith("lake/")):
        if table["operator"] not in starts:  # the table of a start is the quarantine
            found[table["operator"]] = table["rows"]
    if len(starts) == 1:
        found[starts[0]] = sum(group["rows_in"] for group in groups)
    return found
