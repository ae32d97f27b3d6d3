"""`quarantine`: the rows and files that could not be read, and reading a fixed file again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.history import RegionHistory, retracted_by, target_before
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.triggers import FILE, RETRACTION, kind_of
from drainmark.orchestration.discovery.state_inputs import bad_records, is_quarantined_whole
from drainmark.orchestration.verbs.file_names import files_named, require_one_file
from drainmark.orchestration.verbs.inputs.backfill import Queueing, Wanted, again_command, pattern_of, plan_queue
from drainmark.orchestration.workplace.declaration import declared
from drainmark.orchestration.workplace.workplace import Workplace

_REASONS = 3

_IN_SLICES = (
    "a file of a period that was quarantined whole is taken by the next scan when it is fixed; for single rows, put the"
    " fixed ones into a new file, or push or send them again"
)


def quarantined_files(workplace: Workplace, region: str) -> list[dict[str, Any]]:
    """Return the files with quarantined rows, or quarantined whole, in the states in force, in the order of their ids.

    Each has `sequence_id`, `file`, `is_whole` (nothing of it was read), `rows_in`, `rows_quarantined`, `reasons` (the
    three most frequent) and `redriven_as` (the newest id of the file, null if it is this one).
    """
    history = workplace.history(region)
    reasons: Mapping[int, Counter[str]] = defaultdict(Counter)
    for row in bad_records(workplace, region, history):
        reasons[row["_sequence_id"]][row["reason"]] += 1
    counting = {
        number: row
        for number, row in history.states.items()
        if row.trigger_kind != RETRACTION and retracted_by(history, number) is None
    }
    newest = {row.trigger_uri: number for number, row in counting.items()}
    return [
        {
            "sequence_id": number,
            "file": state.trigger_uri,
            "is_whole": is_quarantined_whole(state),
            "rows_in": state.rows_in,
            "rows_quarantined": state.detail["rows_quarantined"],
            "reasons": [reason for reason, _ in reasons[number].most_common(_REASONS)],
            "redriven_as": newest[state.trigger_uri] if newest[state.trigger_uri] != number else None,
        }
        for number, state in counting.items()
        if state.kind is RowKind.STATE and state.detail.get("rows_quarantined")
    ]


def quarantined_rows(workplace: Workplace, region: str, file: str | None = None) -> list[dict[str, Any]]:
    """Return the quarantined rows of a region, or of one of its files, by id and position.

    Args:
        file: of a state, or of a slice; or a slice.

    Raises:
        UnknownName: nothing of the file is quarantined.
    """
    history = workplace.history(region)
    rows = bad_records(workplace, region, history)
    if file is not None:
        states = _with_bad_rows(history)
        uri = _named(region, file, states, rows)
        of = {number for number, row in states.items() if row.trigger_uri == uri}
        rows = [row for row in rows if row["_sequence_id"] in of or row["source_file"] == uri]
    return sorted(rows, key=lambda row: (row["_sequence_id"], row["position"] or 0))


def carry_out(workplace: Workplace, planned: Queueing) -> dict[str, Any]:
    """Queue the file of a plan as it was then; a file that has changed since is scanned anew."""
    done = planned.carry_out(workplace)
    return {name: done[name] for name in planned.facts}


def plan_redrive(workplace: Workplace, region: str, file: str) -> Queueing:
    """Return a fixed file that was quarantined whole, to be queued as a new trigger with its own id; change nothing.

    Its facts are `region`, `file`, `quarantined_as`, `queued` and `pending_triggers`.

    A file that was quarantined in part is refused: its good rows are in the tables already, and would be counted twice.

    Raises:
        UnknownName: nothing of the file is quarantined.
        UsageError: only some of its rows are, or the file is unchanged, or gone, or was read again since; or it is not
            a trigger of its own.
    """
    from drainmark.jobs.protocol.records.addresses import is_object
    from drainmark.jobs.scan.folder import path_of

    history = workplace.history(region)
    states = _with_bad_rows(history)
    uri = _named(region, file, states, bad_records(workplace, region, history))
    number = max((number for number, row in states.items() if row.trigger_uri == uri), default=0)
    if not number or kind_of(states[number].trigger_identity or {}) != FILE:
        raise UsageError(f"{uri} is no trigger of its own: files are queued, and not slices", remedy=_IN_SLICES)
    state = states[number]
    newest, output = history.newest_by_uri({uri}).get(uri, number), (state.trigger_identity or {}).get("output") or None
    if newest != number:
        msg = f"{uri} was read again as {newest}, after it was quarantined as {number}: its rows would be counted twice"
        raise UsageError(msg, remedy=f"to read it in place of {newest}: {again_command(region, uri, output)}")
    if not is_quarantined_whole(state):
        msg = f"{uri} was read, less {state.detail['rows_quarantined']} of {state.rows_in} rows"
        before = target_before(history, number, declared(workplace, region).rewind_horizon)
        remedy = (
            f"put the fixed rows into a new file, which the next scan takes; or fix the file, and rewind to before it:"
            f" drainmark reset {region} --to {before}"
        )
        raise UsageError(msg, remedy=remedy)
    queueing = plan_queue(workplace, region, Wanted(pattern=pattern_of(uri), output=output))
    queued = queueing.facts
    if queued["refused"]:
        raise UsageError(f"{uri} {queued['refused'][0]['reason']}", remedy="put the fixed file there first")
    if not queued["queued"] and not queued["pending"]:
        msg = f"{uri} is still the file that was quarantined: {state.detail.get('reason')}"
        again = "write the object again" if is_object(uri) else f"touch {shell_word(path_of(uri))}"
        raise UsageError(msg, remedy=f"fix it first; if the declaration was fixed instead: {again}")
    facts = {
        "region": region,
        "file": uri,
        "quarantined_as": number,
        "queued": queued["queued"],
        "pending_triggers": queued["pending_triggers"],
    }
    return replace(queueing, facts=facts)


def _with_bad_rows(history: RegionHistory) -> dict[int, CheckpointRow]:
    return {
        number: row
        for number, row in history.states.items()
        if row.kind is RowKind.STATE and row.detail.get("rows_quarantined")
    }


def _named(region: str, name: str, states: Mapping[int, CheckpointRow], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the trigger, or the file of a slice, that a name means, among those with quarantined rows.

    Raises:
        UnknownName, UsageError: the name means none, or several.
    """
    triggers, files = [row.trigger_uri or "" for row in states.values()], {row["source_file"] or "" for row in rows}
    uris = files_named(name, triggers) or files_named(name, files)
    require_one_file(name, uris)
    if not uris:
        known = list(dict.fromkeys([*triggers, *sorted(files)]))
        remedy = nearest(name, known) if known else f"drainmark quarantine list {region}"
        raise UnknownName(f"nothing of {name!r} is quarantined in region {region!r}", remedy=remedy)
    return uris[0]
