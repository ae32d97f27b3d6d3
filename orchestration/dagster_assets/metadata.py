"""Tags and metadata of a region in Dagster, and the numbers of a group.

Numbers stay numbers, so that the asset page plots them. Triggers stand as first, last and count: a group may hold 2000.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from drainmark.jobs.printable import printable_cell
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.orchestration.views.metrics import Present, lag_seconds

REGION_TAG = "drainmark/region"
"""On every run of a region; `dagster.yaml` allows one run a value at a time."""

PROCESS_TAG = ".dagster/drainmark_process"
"""Run id, host, pid and start of the process: how the reaper knows that a run has died. Of no use to
people, so it has the prefix of tags that Dagster's pages do not show."""

IDS_TAG = "drainmark/sequence_ids"
"""First and last id that a run committed, `37..44`: which run made a state can be looked up in the list of runs."""

DESK_TAG = "drainmark/desk"
"""On every run of an operator's verb: the region that it is for. No tag of a region's own runs."""

RUN_ID = "drainmark/run_id"
"""On events of a `drainmark run`, which is no run of Dagster's: by which id the history knows it."""

WITHDRAWN_TAG = "drainmark/withdrawn_ids"
"""Ids that a run committed and that a rewind has withdrawn since."""

NOTE_TAG = "drainmark/note"
"""Why a run ended without doing anything, or which error it ended with."""

TRIGGER_TAG = "drainmark/trigger"
"""The trigger for which a run was requested (`runs="per_trigger"`)."""

_TABLE_ROWS = 200


def group_metadata(report: GroupReport) -> dict[str, Any]:
    """Return the numbers of a group: the same on every table that it changed."""
    in_flight = {
        "drainmark/alignment": report.alignment,
        "drainmark/inflight_batches": report.inflight_batches,
        "drainmark/inflight_bytes": report.inflight_bytes,
        "drainmark/stage_restarts": report.restarts,
        "drainmark/dropped_intervals": report.dropped_intervals,
    }
    return (in_flight if report.alignment else {}) | {
        "drainmark/sequence_id": report.last_id,
        "drainmark/first_sequence_id": report.first_id,
        "drainmark/epoch": report.epoch,
        "drainmark/triggers": report.triggers,
        "drainmark/first_trigger": report.first_uri,
        "drainmark/last_trigger": report.last_uri,
        "drainmark/rows_in": report.rows_in,
        "drainmark/rows_quarantined": report.rows_quarantined,
        "drainmark/bytes_in": report.bytes_in,
        "drainmark/process_seconds": round(report.process_seconds, 4),
        "drainmark/drain_seconds": round(report.drain_seconds, 4),
        "drainmark/checkpoint_seconds": round(report.checkpoint_seconds, 4),
        "drainmark/publish_seconds": round(report.publish_seconds, 4),
        "drainmark/checkpoint_pending_seconds": round(report.pending_seconds, 4),
    }


def standing_metadata(history: RegionHistory, present: Present) -> dict[str, Any]:
    """Return how a region stands, for the page of its checkpoint table; numbers are there always, so that they plot."""
    waiting = time.time() - present.oldest_pending_at if present.oldest_pending_at is not None else 0.0
    return {
        "drainmark/state": present.state(history).value,
        "drainmark/attempts": history.attempts,
        "drainmark/lag_seconds": round(lag_seconds(history), 3),
        "drainmark/pending_triggers": present.pending or 0,
        "drainmark/oldest_pending_seconds": round(max(0.0, waiting), 3),
    }


def work_metadata(at_work: Mapping[str, tuple[Group, float]]) -> dict[str, Any]:
    """Return what is processed now: files, ids, and for how many seconds already; of several stages each one's."""
    found: dict[str, Any] = {"drainmark/at_work": len(at_work)}
    for stage, (group, seconds) in at_work.items():
        suffix = f"/{stage}" if stage else ""
        first, last = group.members[0].trigger.uri, group.members[-1].trigger.uri
        files = first if first == last else f"{first} .. {last}"
        found |= {
            f"drainmark/at_work_files{suffix}": printable_cell(files),
            f"drainmark/at_work_id{suffix}": group.last_id,
            f"drainmark/at_work_triggers{suffix}": len(group.members),
            f"drainmark/at_work_seconds{suffix}": round(seconds, 1),
        }
    return found


def flow_metadata(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the steps `in_flight` and `progress` tell of the stages of a region: a plot for each of them."""
    return {
        "drainmark/row_id": numbers["id"],
        "drainmark/inflight_batches": numbers["inflight_batches"],
        "drainmark/inflight_bytes": numbers["inflight_bytes"],
        **{f"drainmark/through/{stage}": through for stage, through in numbers["stages"].items()},
    }


def data_version(report: GroupReport) -> dict[str, str]:
    """Return the tag that names the state: `epoch.id`."""
    return {"dagster/data_version": f"{report.epoch}.{report.last_id}"}


def column_schema(schema_json: str) -> dg.TableSchema:
    """Return a table's columns as Dagster shows them, from Spark's JSON of the schema."""
    fields = json.loads(schema_json)["fields"]
    return dg.TableSchema(columns=[dg.TableColumn(field["name"], _type_text(field["type"])) for field in fields])


def groups_table(reports: Sequence[GroupReport]) -> str:
    """Return the groups of a run as a Markdown table, the last 200 of them, with a line of totals."""
    shown = reports[-_TABLE_ROWS:]
    lines = [
        "| ids | first trigger | last trigger | rows | bytes | process s | drain s | checkpoint s | publish s |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for report in shown:
        seconds = (report.process_seconds, report.drain_seconds, report.checkpoint_seconds, report.publish_seconds)
        cells = [
            f"{report.first_id}..{report.last_id}",
            _cell(report.first_uri),
            _cell(report.last_uri),
            str(report.rows_in),
            str(report.bytes_in),
            *(f"{value:.2f}" for value in seconds),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if len(shown) < len(reports):
        lines.append(f"\nthe last {len(shown)} of {len(reports)} groups")
    triggers, rows = sum(report.triggers for report in reports), sum(report.rows_in for report in reports)
    lines.append(f"\n**groups: {len(reports)}, triggers: {triggers}, rows in: {rows}**")
    return "\n".join(lines)


def runs_table(runs: Sequence[tuple[str, str, str]]) -> str:
    """Return the runs that made what a rewind withdrew as a Markdown table, the newest 200 of them.

    Args:
        runs: of each, oldest first, its id, which of its sequence ids are withdrawn, and what marks them.
    """
    shown = runs[-_TABLE_ROWS:]
    lines = ["| run | withdrawn ids | marked by |", "|---|---|---|", *(f"| {' | '.join(run)} |" for run in shown)]
    if len(shown) < len(runs):
        lines.append(f"\nthe last {len(shown)} of {len(runs)} runs")
    return "\n".join(lines)


def step_line(step: str, numbers: Mapping[str, Any], seconds: float) -> str:
    """Return one log line of a protocol step: `state: DRAINING (after 0.24 s)`, counted from the step before."""
    told = ", ".join(str(value) if name == step else f"{_words(name)} {value}" for name, value in numbers.items())
    return printable_cell(f"{_words(step)}{f': {told}' if told else ''} (after {seconds:.2f} s)")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _type_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value.get("type", "struct"))


def _cell(uri: str) -> str:
    """Return a file's name with its folder: names alone repeat in a tree of hosts or days."""
    return printable_cell("/".join(uri.split("/")[-2:])).replace("|", "\\|")
