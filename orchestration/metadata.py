"""What Dagster shows of a region: names of tags and metadata, and the numbers of a group (field.md §4.3).

Numbers stay numbers, so that the asset page plots them. Triggers stand as first, last and count: a group may hold 2000.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from jobs.runtime.run import GroupReport

REGION_TAG = "drainmark/region"
"""On every run of a region; `dagster.yaml` allows one run a value at a time."""

PROCESS_TAG = "drainmark/process"
"""Run id, host, pid and start of the process: how the reaper knows that a run has died (faults.md 5)."""

NOTE_TAG = "drainmark/note"
"""Why a run ended without doing anything, or which error it ended with."""

TRIGGER_TAG = "drainmark/trigger"
"""The trigger for which a run was requested (`runs="per_trigger"`)."""

_TABLE_ROWS = 200


def group_metadata(report: GroupReport) -> dict[str, Any]:
    """Return the numbers of a group: the same on every table that it changed."""
    return {
        "drainmark/sequence_id": report.last_id,
        "drainmark/first_sequence_id": report.first_id,
        "drainmark/epoch": report.epoch,
        "drainmark/triggers": report.triggers,
        "drainmark/first_trigger": report.first_uri,
        "drainmark/last_trigger": report.last_uri,
        "drainmark/rows_in": report.rows_in,
        "drainmark/bytes_in": report.bytes_in,
        "drainmark/process_seconds": round(report.process_seconds, 4),
        "drainmark/drain_seconds": round(report.drain_seconds, 4),
        "drainmark/checkpoint_seconds": round(report.checkpoint_seconds, 4),
        "drainmark/publish_seconds": round(report.publish_seconds, 4),
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
        "| ids | triggers | first trigger | last trigger | rows in | bytes in | process s | drain s | checkpoint s"
        " | publish s |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for report in shown:
        seconds = (report.process_seconds, report.drain_seconds, report.checkpoint_seconds, report.publish_seconds)
        cells = [
            f"{report.first_id}–{report.last_id}",
            str(report.triggers),
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
    lines.append(f"\n**{len(reports)} groups, {triggers} triggers, {rows} rows in**")
    return "\n".join(lines)


def step_line(step: str, numbers: Mapping[str, Any], seconds: float) -> str:
    """Return one log line of a protocol step, with the seconds since the step before."""
    told = ", ".join(f"{name}={value}" for name, value in numbers.items())
    return f"{step}: {told} ({seconds:.3f} s)" if told else f"{step} ({seconds:.3f} s)"


def _type_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value.get("type", "struct"))


def _cell(uri: str) -> str:
    return uri.rpartition("/")[2].replace("|", "\\|")
