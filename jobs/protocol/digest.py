"""The digest of a history: the facts of a region after a number of rows, without the rows.

A compaction of the checkpoint table writes the digest into the footer of its file, so the digest is committed with the
rows that it stands for. A process that opens the table reads the newest digest and the few rows after it. A digest is
only an index: if there is none, or if it has another version, the rows are folded from the first one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drainmark.jobs.protocol.claimed_code import Deploy
from drainmark.jobs.protocol.counters import Totals
from drainmark.jobs.protocol.history import Outcome, RegionHistory, Replacement
from drainmark.jobs.protocol.id_runs import Archive, IdRows, Ids, States
from drainmark.jobs.protocol.records import state_generations
from drainmark.jobs.protocol.records.checkpoint_row import (
    FORMAT_VERSION,
    PLAIN_FORMAT,
    STAGES_FORMAT,
    CheckpointRow,
    format_of,
)
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable, Replaced
from drainmark.jobs.protocol.records.schema_compatibility import Retentions, retained
from drainmark.jobs.protocol.stage_flow import Flow
from drainmark.jobs.protocol.withdrawn_ids import Withdrawn

VERSION = 1
"""Version of the digest; a digest of another version is ignored."""


def digest_of(history: RegionHistory) -> str:
    """Return the digest of a history as JSON text."""
    remarks = history.states.rows.remarks
    value = {
        "version": VERSION,
        "format": _format_of(history),
        "epoch": history.epoch,
        "next_id": history.next_id,
        "states": list(history.states.ids.runs()),
        "skips": sorted(history.skips),
        "images": {table: list(numbers) for table, numbers in history.images.items()},
        "dropped": dict(history.dropped),
        "trimmed": dict(history.trimmed),
        "gone": list(history.gone.left(history.states.rows).runs()),
        "attempts": history.attempts,
        "halt": _row_to_json(history.halt),
        "unpublished": [row.to_json() for row in history.unpublished],
        "tables": [table.to_json() for table in history.tables],
        "former": [table.to_json() for table in history.former],
        "operators": history.operators,
        "code": history.code,
        "generations": history.generations,
        "versions": dict(history.versions),
        "last_claim": _row_to_json(history.last_claim),
        "last_outcome": history.last_outcome.value,
        "last_error": dict(history.last_error) if history.last_error is not None else None,
        "rewinds": list(history.rewinds),
        "replaced": _replaced_to_json(history.replaced),
        "totals": history.totals.to_json(),
    }
    if history.horizon is not None:
        value["horizon"] = history.horizon
    if history.lost_epochs:
        value["lost_epochs"] = list(history.lost_epochs)
    if history.flow.through:
        value["flow"] = history.flow.to_json()
    by_table = {"lags": history.lags, "left": history.left, "dropping": history.dropping}
    value |= {name: dict(facts) for name, facts in by_table.items() if facts}
    if history.deploys:
        value["deploys"] = [[each.epoch, each.first_id, each.code, each.operators] for each in history.deploys]
    if history.carried:
        value["carried"] = {table: sorted(ids.items()) for table, ids in history.carried.items()}
    if history.retentions:
        value["retentions"] = history.retentions
    if remarks:
        value["remarks"] = [[number, by, dict(found)] for number in remarks for by, found in remarks[number].items()]
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _format_of(history: RegionHistory) -> int:
    if any(found.kept.by_nothing for found in history.replaced.values()):
        return FORMAT_VERSION
    if history.images or history.lags or format_of((*history.tables, *history.former)) == FORMAT_VERSION:
        return FORMAT_VERSION  # an image may be made of runs
    return STAGES_FORMAT if history.flow.channels or history.carried or history.states.rows.remarks else PLAIN_FORMAT


def history_from(text: str, archive: Archive) -> RegionHistory | None:
    """Return the history that a digest stands for; None if it has another version or a newer format.

    Args:
        archive: holds the rows that the digest leaves out.
    """
    value = json.loads(text)
    if value["version"] != VERSION or value["format"] > FORMAT_VERSION:  # the rows say which version to install
        return None
    rows = IdRows(archive=archive, archived=value["next_id"] - 1)
    for number, by, remark in value.get("remarks", ()):
        rows.remark(by, {number: remark})
    former, tables = (tuple(map(RegionTable.from_json, value[name])) for name in ("former", "tables"))
    retentions: Retentions = {
        name: tuple((first_id, kept) for first_id, kept in known) for name, known in value.get("retentions", {}).items()
    }
    if not retentions:  # digests from before have none: the tables' own count from the beginning
        retentions = retained({}, (*former, *tables), INITIAL_ID)
    return RegionHistory(
        epoch=value["epoch"],
        lost_epochs=tuple((first, last) for first, last in value.get("lost_epochs", ())),
        next_id=value["next_id"],
        states=States(Ids((first, last) for first, last in value["states"]), rows),
        skips=frozenset(value["skips"]),
        images={table: tuple(numbers) for table, numbers in value["images"].items()},
        carried={table: dict(pairs) for table, pairs in value.get("carried", {}).items()},
        dropped=value["dropped"],
        lags=value.get("lags", {}),
        trimmed=value.get("trimmed", {}),  # digests from before format 4 have none
        gone=Withdrawn(Ids((first, last) for first, last in value["gone"])),
        attempts=value["attempts"],
        halt=_row_from_json(value["halt"]),
        unpublished=tuple(CheckpointRow.from_json(row) for row in value["unpublished"]),
        tables=tables,
        former=former,
        # Digests from before 0.4 do not say when a table left: it may lack all rows.
        left=value.get("left", {table.name: INITIAL_ID for table in former}),
        dropping=value.get("dropping", {}),
        operators=value.get("operators"),  # digests from before 0.4 have none of these three
        code=value.get("code"),
        deploys=tuple(
            Deploy(epoch, first_id, code, tuple(operators))
            for epoch, first_id, code, operators in value.get("deploys", ())
        ),
        horizon=value.get("horizon"),
        generations=state_generations.from_json(value.get("generations", {})),
        retentions=retentions,
        versions=value["versions"],
        last_claim=_row_from_json(value["last_claim"]),
        last_outcome=Outcome(value["last_outcome"]),
        last_error=value["last_error"],
        rewinds=tuple((moment, to) for moment, to in value["rewinds"]),
        replaced=_replaced_from_json(value["replaced"]),
        totals=Totals.from_json(value["totals"]),
        flow=Flow.from_json(value["flow"]) if "flow" in value else Flow(),
    )


def _row_to_json(row: CheckpointRow | None) -> dict[str, Any] | None:
    return row.to_json() if row is not None else None


def _row_from_json(value: Mapping[str, Any] | None) -> CheckpointRow | None:
    return CheckpointRow.from_json(value) if value is not None else None


def _replaced_to_json(replaced: Mapping[int, Replacement]) -> list[dict[str, Any]]:
    kept: dict[int, dict[str, Any]] = {}
    for old, replacement in replaced.items():
        entry = kept.setdefault(id(replacement.kept), {"kept": replacement.kept.to_json(), "in_force": {}})
        entry["in_force"][str(old)] = replacement.by
    return list(kept.values())


def _replaced_from_json(value: list[dict[str, Any]]) -> dict[int, Replacement]:
    found: dict[int, Replacement] = {}
    for entry in value:
        kept = Replaced.from_json(entry["kept"])
        found |= {int(old): Replacement(by, kept) for old, by in entry["in_force"].items()}
    return found
