"""Tags, roles and metadata of a region in Dagster, and the numbers of a group.

Numbers stay numbers, so that the asset page plots them. A group may have 2000 triggers: it shows first, last and count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from drainmark.jobs.printable import markdown_code, printable, printable_cell
from drainmark.jobs.regions.explain import VECTORISES
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.orchestration.html_report.page_file import page_link, page_path
from drainmark.orchestration.inspection.desk_links import links
from drainmark.orchestration.inspection.metrics import Present, lag_seconds
from drainmark.resources.settings import Settings

REGION_TAG = "drainmark/region"
"""On every run of a region; `dagster.yaml` allows one run at a time for each value."""

PROCESS_TAG = ".dagster/drainmark_process"
"""Run id, host, pid and start of the process, by which the reaper knows that a run has died. People do not need it, so
it has the prefix of tags that Dagster's pages do not show."""

BEGUN_TAG = ".dagster/drainmark_begun"
"""The id of the run once an op of it has begun; a run that copied the tag has another id."""

IDS_TAG = "drainmark/sequence_ids"
"""First and last id that a run committed, `37..44`: in the list of runs, it shows the run that made a state."""

DESK_TAG = "drainmark/desk"
"""On every run of a desk job: the name of its region. The runs of the region itself do not have it."""

OUTCOME_TAG = "drainmark/outcome"
"""On a run of a desk job: whether it only showed a plan, carried it out, or refused to."""

VERB_TAG = "drainmark/verb"
"""On a run of a desk job: the verb whose plan it made."""

RUN_ID = "drainmark/run_id"
"""On events of a `drainmark run`, which Dagster does not know as a run: the id of the run in the history."""

WITHDRAWN_TAG = "drainmark/withdrawn_ids"
"""Ids that a run committed and a rewind has withdrawn since."""

NOTE_TAG = "drainmark/note"
"""The reason why a run ended without work, or the error with which it ended."""

OF_AN_END = (IDS_TAG, OUTCOME_TAG, VERB_TAG, WITHDRAWN_TAG, NOTE_TAG)
"""What a run has done. Dagster copies them to its retry, and to a run that somebody executes again on its page."""

MAX_RETRIES_TAG = "dagster/max_retries"
"""Dagster's own tag: how often it retries the run."""

DATA_VERSION_TAG = "dagster/data_version"
"""Dagster's own tag: the version of the data that an event tells of."""

QUEUED_TAG = "drainmark/queued_by"
"""On a run of partitions: its own id, once it has queued their files. A re-execution inherits the tag of its parent."""

TRIGGER_TAG = "drainmark/trigger"
"""The trigger for which a run was requested (`runs="per_trigger"`)."""

_TABLE_ROWS = 200


def desk_metadata(region: str, remedies: Iterable[str]) -> dict[str, Any]:
    """Return what the commands of remedies are on the region's desk, with a link each; nothing if they are not there.

    It is for metadata whose value nobody else chose: a text with names of files is a remedy if they are quoted in it.
    """
    found = links(region, remedies)
    return {"drainmark/desk": dg.MetadataValue.md(found)} if found else {}


def plain_metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata whose texts, which Dagster shows as plain text, have no control characters."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in values.items()}


def group_metadata(report: GroupReport) -> dict[str, Any]:
    """Return the numbers of a group, which are the same on every table that it changed."""
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
        "drainmark/first_trigger": printable(report.first_uri),
        "drainmark/last_trigger": printable(report.last_uri),
        "drainmark/rows_in": report.rows_in,
        "drainmark/rows_quarantined": report.rows_quarantined,
        "drainmark/bytes_in": report.bytes_in,
        "drainmark/process_seconds": round(report.process_seconds, 4),
        "drainmark/drain_seconds": round(report.drain_seconds, 4),
        "drainmark/checkpoint_seconds": round(report.checkpoint_seconds, 4),
        "drainmark/publish_seconds": round(report.publish_seconds, 4),
        "drainmark/checkpoint_pending_seconds": round(report.pending_seconds, 4),
    }


def standing_metadata(present: Present) -> dict[str, Any]:
    """Return the status of a region for its checkpoint table's page; all numbers are always present, for plots."""
    history = present.moment.history
    waiting = time.time() - present.oldest_pending_at if present.oldest_pending_at is not None else 0.0
    return {
        "drainmark/state": present.moment.state.value,
        "drainmark/attempts": history.attempts,
        "drainmark/lag_seconds": round(lag_seconds(history), 3),
        "drainmark/pending_triggers": present.pending or 0,
        "drainmark/oldest_pending_seconds": round(max(0.0, waiting), 3),
    }


def work_metadata(at_work: Mapping[str, tuple[Group, float]]) -> dict[str, Any]:
    """Return the files and ids that are processed now, and the seconds since they began, for each stage."""
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
    """Return the numbers of the steps `in_flight` and `progress`, with a plot for each stage."""
    return {
        "drainmark/row_id": numbers["id"],
        "drainmark/inflight_batches": numbers["inflight_batches"],
        "drainmark/inflight_bytes": numbers["inflight_bytes"],
        **{f"drainmark/through/{stage}": through for stage, through in numbers["stages"].items()},
    }


def data_version(epoch: int, last_id: int) -> dict[str, str]:
    """Return the tag that identifies a state: `epoch.id`."""
    return {DATA_VERSION_TAG: f"{epoch}.{last_id}"}


def column_schema(schema_json: str) -> dg.TableSchema:
    """Return a table's columns for Dagster, from Spark's JSON of the schema."""
    fields = json.loads(schema_json)["fields"]
    return dg.TableSchema(columns=[dg.TableColumn(field["name"], _type_text(field["type"])) for field in fields])


def groups_table(reports: Sequence[GroupReport]) -> str:
    """Return the last 200 groups of a run as a Markdown table, with a line of totals for all."""
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
    """Return the newest 200 of the runs whose states a rewind withdrew, as a Markdown table.

    Args:
        runs: oldest first, for each run: its id, its withdrawn sequence ids, and the place where they are marked.
    """
    shown = runs[-_TABLE_ROWS:]
    rows = (f"| {markdown_code(run)} | {ids} | {where} |" for run, ids, where in shown)
    lines = ["| run | withdrawn ids | marked by |", "|---|---|---|", *rows]
    if len(shown) < len(runs):
        lines.append(f"\nthe last {len(shown)} of {len(runs)} runs")
    return "\n".join(lines)


_FOR_OBSERVERS = frozenset({"durations", "versions"})
"""Numbers of steps that the metadata of a group's assets already has."""


def step_line(step: str, numbers: Mapping[str, Any], seconds: float) -> str:
    """Return the log line of a protocol step, e.g. `state: DRAINING (after 0.24 s)`: seconds since the step before."""
    shown = {name: value for name, value in numbers.items() if name not in _FOR_OBSERVERS}
    told = ", ".join(str(value) if name == step else f"{_words(name)} {value}" for name, value in shown.items())
    return printable_cell(f"{_words(step)}{f': {told}' if told else ''} (after {seconds:.2f} s)")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _type_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value.get("type", "struct"))


def _cell(uri: str) -> str:
    """Return a file's name with its folder, because names repeat in a tree of hosts or days."""
    return markdown_code("/".join(uri.split("/")[-2:]))


START_TAG = "drainmark/start"
END_TAG = "drainmark/end"
"""Tags without a value: `tag:"drainmark/end"` in Dagster's selection finds the ends of all regions."""


def role_tags(region: RegionPlan, operator: str) -> dict[str, str]:
    """Return the tags of an asset by its operator; none if `operator` is neither a start nor an end."""
    starts, ends = ({each.name for each in part} for part in (region.starts, region.ends))
    return {tag: "" for tag, names in ((START_TAG, starts), (END_TAG, ends)) if operator in names}


def region_metadata(region: RegionPlan, settings: Settings) -> dict[str, Any]:
    """Return the metadata of the checkpoint table, which stands for the whole region; the page is first."""
    address = page_link(settings, region.name)
    page = dg.MetadataValue.url(address) if address else dg.MetadataValue.path(page_path(settings.home, region.name))
    return {
        "drainmark/page": page,
        "drainmark/starts": ", ".join(each.name for each in region.starts),
        "drainmark/ends": ", ".join(each.name for each in region.ends),
        "drainmark/one_trigger_a_group": ", ".join(region.forced_single) or "none",
    }


def role_metadata(region: RegionPlan, name: str) -> dict[str, Any]:
    """Return the metadata of an asset by its operator; none for an asset that no single operator writes."""
    if not name:
        return {}
    operator = region.operator(name)
    own = (port for port in region.ports if port.operator == operator.name)
    ports = [f"{port.parameter}: {port.stream} ({port.port_class})" for port in own]
    found = {
        "drainmark/operator": operator.name,
        "drainmark/operator_kind": operator.kind,
        "drainmark/location": str(operator.location),
        "drainmark/ports": "; ".join(ports) or "none",
        "drainmark/vectorises": VECTORISES[region.vectorisation[operator.name]],
    }
    return {**found, "drainmark/composite": operator.composite[-1]} if operator.composite else found
