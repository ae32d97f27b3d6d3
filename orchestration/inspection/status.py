"""The present and past of a region, as values for `status` and `history`, and the commands that help.

The checkpoint table has the commits, halts and counts; the registry only has the pending triggers and the owner. If the
registry is lost, its fields are null.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.claimed_code import Deploy, deploy_of
from drainmark.jobs.protocol.failure_policy import SPLIT
from drainmark.jobs.protocol.history import RegionHistory, commit_times
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import REGISTERED, WITHOUT_NAMES
from drainmark.jobs.protocol.records.triggers import DROPPED, PERIOD, RETRACTS, TriggerStatus
from drainmark.jobs.protocol.transitions import State
from drainmark.orchestration.inspection.reads import readers_by_region, reads_of, remedies_of
from drainmark.orchestration.inspection.region_view import RegionView, channels_of, facts_of, moment_of, stages_of
from drainmark.orchestration.workplace.declaration import (
    Declared,
    declared,
    declared_of,
    has_left,
    known_from,
    named_application,
    noted,
)
from drainmark.orchestration.workplace.run_processes import begun_run
from drainmark.orchestration.workplace.workplace import Workplace, looks, open_in_time

if TYPE_CHECKING:
    from drainmark.resources.registry.lease import Owner
    from drainmark.resources.registry.queries import Looks, RegionInfo


_OF_IDS = frozenset({RowKind.STATE, RowKind.SKIP})
_EVENTS = frozenset({RowKind.HALT, RowKind.RESUME, RowKind.REWIND, RowKind.REFUSED, RowKind.PROGRESS})


def statuses(workplace: Workplace, name: str | None = None) -> list[dict[str, Any]]:
    """Return the status of every region, of one region, or of the regions of an application.

    Raises:
        UnknownName: neither a region nor an application has this name.
        ApplicationBroken, AnalysisTimeout, DeclarationError, UsageError: the application cannot be opened.
    """
    registry = looks(workplace)
    wanted = _regions(workplace, registry, name)
    readers = readers_by_region(workplace)
    return [_status(workplace, registry, region, wanted[region], readers=readers) for region in sorted(wanted)]


def known_statuses(workplace: Workplace, reference: str) -> list[dict[str, Any]]:
    """Return the status of the known regions of an application that cannot be opened."""
    registry = looks(workplace)
    known = {region: noted(workplace, region, registry) or Declared() for region in known_from(workplace, reference)}
    readers = readers_by_region(workplace)
    return [_status(workplace, registry, region, said, readers=readers) for region, said in known.items()]


def status_of(workplace: Workplace, region: str) -> dict[str, Any]:
    """Return the status of one region; its code is not opened."""
    registry = looks(workplace)
    return status_at(workplace, registry, region, moment_of(workplace, registry, region))


def status_at(workplace: Workplace, registry: Looks | None, region: str, moment: RegionView) -> dict[str, Any]:
    """Return the status of one region at a moment that the caller has read; its code is not opened.

    It does not say who reads the region: a run writes it often, and the home may have many regions.
    """
    known = noted(workplace, region, registry) or Declared()
    return _status(workplace, registry, region, known, moment, readers={})


def _regions(workplace: Workplace, registry: Looks | None, name: str | None) -> dict[str, Declared]:
    from drainmark.resources.registry.queries import is_cursor

    recorded = registry.regions() if registry is not None else ()
    seen = {*workplace.known_regions(), *(region for region in recorded if not is_cursor(region))}
    if name is None:
        return {region: declared(workplace, region, registry) for region in seen}
    found = {r: declared(workplace, r, registry) for r in seen if name in (r, r.partition("/")[0])}
    if found:  # do not open its code: it may be broken or hang, and then the status is needed most
        return found
    reference, start = named_application(workplace, name)
    plan = open_in_time(workplace.settings, reference).plan
    if start is not None:
        region = plan.region(f"{plan.name}/{start}")
        return {region.name: noted(workplace, region.name, registry) or declared_of(region, reference)}
    below = {r: declared(workplace, r, registry) for r in seen if r.partition("/")[0] == plan.name}
    return {**below, **{region.name: declared_of(region, reference) for region in plan.regions}}


def _status(
    workplace: Workplace,
    registry: Looks | None,
    region: str,
    known: Declared,
    moment: RegionView | None = None,
    *,
    readers: Mapping[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    moment = moment or moment_of(workplace, registry, region)
    history, info, owner, alive, state = moment.history, moment.info, moment.owner, moment.living, moment.state
    pending = None
    if registry is not None and info is not None and not (info.epoch == 0 and history.states):
        pending = registry.pending_count(region) - _committed_unnoted(registry, region, history)
    begun = begun_run(registry, region) if registry is not None and alive is None else None
    is_begun = begun is not None and begun.is_alive is True
    is_owned = alive is not None or is_begun
    reads = reads_of(workplace, history)
    halt = (history.halt.detail.get("error") or {}).get("id") if history.halt is not None else InputChanged.id
    back = remedies_of(region, reads) if halt == InputChanged.id and alive is None else []
    is_left = alive is None and has_left(registry, region)
    if is_left:
        back = [f"drainmark tables drop --region {shell_word(region)} --yes"]
    return {
        "region": region,
        "state": state.value,
        "halt_reason": history.halt.detail.get("reason") if history.halt else None,
        "committed_sequence_id": history.committed_id,
        "published_sequence_id": history.shown_id,
        "lags": dict(history.lags),
        "unregistered": _unregistered(registry, region, history),
        "epoch": history.epoch,
        "pending_triggers": pending,
        "consecutive_reset_attempts": history.attempts,
        "max_consecutive_reset_attempts": known.max_consecutive_reset_attempts,
        "last_error": dict(history.last_error) if history.last_error else None,
        "split": _split(info),
        "owner": _owner(alive),
        "lost_owner": _owner(owner if alive is None else None),
        "begun": {"host": begun.host, "pid": begun.pid, "run_id": begun.run_id} if begun and is_begun else None,
        "is_idle": alive is not None and state is State.STARTED and pending == 0 and not history.flow.channels,
        "dropped_ticks": _dropped_ticks(history),
        "alignment": known.alignment,
        "stages": stages_of(history),
        "channels": channels_of(history),
        "inflight_batches": len(history.flow.batches),
        "inflight_bytes": history.flow.bytes,
        "rewind_horizon": oldest_target(history, known.rewind_horizon),
        "reads": reads,
        "read_by": readers.get(region, []),
        "has_left": is_left,
        "remedies": back
        or remedies(region, history, state, is_owned=is_owned, pending=pending, reference=known.reference),
        "folder": known.folder,
        "home": str(workplace.home),
    }


def _unregistered(registry: Looks | None, region: str, history: RegionHistory) -> list[dict[str, str]] | None:
    """Return the tables that could not be registered under their names, with the errors; None without a registry."""
    wanted = {table.name: table.options[REGISTERED] for table in history.tables if table.options.get(REGISTERED)}
    if not wanted:
        return []
    if registry is None:
        return None
    found = json.loads(registry.load_cursor(region, WITHOUT_NAMES) or "{}")
    return [{"table": table, "name": wanted[table], "error": found[table]} for table in sorted(found.keys() & wanted)]


def _split(info: RegionInfo | None) -> dict[str, Any] | None:
    """Return the error and size of a group that the last owner repeated in groups of one; None if it repeated none."""
    split = ((info.last_error if info is not None else None) or {}).get(SPLIT)
    return {key: split.get(key) for key in ("triggers", "id", "message", "operator", "location")} if split else None


def _dropped_ticks(history: RegionHistory) -> int | None:
    """Return how many ticks were dropped during the state before the last one; None in a region without a period."""
    last = history.states.get(history.committed_id)
    if last is None or last.trigger_kind != PERIOD:
        return None
    return int((last.trigger_identity or {}).get(DROPPED, 0))


def oldest_target(history: RegionHistory, horizon: int) -> int:
    """Return the oldest id that a rewind can go to."""
    oldest = history.oldest_target(horizon)
    if oldest <= INITIAL_ID:
        return INITIAL_ID
    found = history.state_at_least(oldest)
    return found if found is not None else history.committed_id


def _committed_unnoted(registry: Looks, region: str, history: RegionHistory) -> int:
    """Return how many committed triggers are still pending in the registry, which is only an index."""
    groups = [row for row in history.unpublished if row.kind is RowKind.STATE]
    members = [history.states.get(n) for row in groups for n in range(row.group_first or 0, row.sequence_id + 1)]
    orders = [row.trigger_order for row in members if row is not None and row.trigger_order is not None]
    return sum(trigger.status is TriggerStatus.PENDING for trigger in registry.by_order(region, orders))


def _owner(owner: Owner | None) -> dict[str, Any] | None:
    if owner is None:
        return None
    return {
        "host": owner.host,
        "pid": owner.pid,
        "run_id": owner.run_id,
        "since": iso(owner.acquired_at),
        "heartbeat_age_seconds": round(owner.heartbeat_age_seconds, 3),
    }


# --- history ------------------------------------------------------------------------------------------------------


def history_entries(
    workplace: Workplace, region: str, *, last: int | None = None, everything: bool = False
) -> list[dict[str, Any]]:
    """Return committed states, oldest first; with `everything` also withdrawn states and all events.

    Args:
        last: number of newest entries to return; None for all.
        everything: adds withdrawn states, skips, halts, resumes, rewinds and refusals, all in commit order.

    Returns:
        Among other facts `code`, the digest of the code that made a state, and `deployed`: the names of the operators
        that differ, at the first state that other code made than the state before it; else None.
    """
    checkpoint = workplace.store(region).checkpoint
    if not checkpoint.exists():
        return []
    history = checkpoint.history()
    count = last + len(history.skips) if last else None
    first = history.states.ids.from_end(count) if count and len(history.states) >= count else None
    rows = checkpoint.rows(since=first or 0)  # rows after the last `count` states have no smaller id
    committed_at = commit_times(rows)
    commits = {int(last): each for row in rows for last, each in (row.detail.get("commit_seconds") or {}).items()}
    kinds = {*_OF_IDS, *_EVENTS} if everything else {RowKind.STATE}
    entries = [
        _entry(row, committed_at.get(row.attempt, row.recorded_at), commits, history, is_withdrawn=is_withdrawn)
        for row in rows
        if row.kind in kinds or (everything and row.detail.get("dropping"))
        for is_withdrawn in [row.kind in _OF_IDS and row.sequence_id not in history.states]
        if everything or not is_withdrawn
    ]
    _mark_deploys(entries, history)
    return entries[-last:] if last else entries


def _mark_deploys(entries: Sequence[dict[str, Any]], history: RegionHistory) -> None:
    """Name the operators that changed, at the first entry that other code made than the one before it."""
    before: Deploy | None = None
    for entry in (entry for entry in entries if entry["code"] is not None):
        deploy = deploy_of(history.deploys, entry["sequence_id"])
        if deploy is not None and before is not None and deploy.code != before.code:
            entry["deployed"] = list(deploy.operators)
        before = deploy


def _entry(
    row: CheckpointRow,
    committed_at: dt.datetime,
    commits: Mapping[int, float],
    history: RegionHistory,
    *,
    is_withdrawn: bool,
) -> dict[str, Any]:
    row, deploy = history.states.rows.told(row), deploy_of(history.deploys, row.sequence_id)
    return {
        "kind": "drop" if row.detail.get("dropping") else row.kind.value,
        **facts_of(row, history),
        "epoch": row.epoch,
        "trigger": row.trigger_uri if row.trigger_uri is not None else row.detail.get("trigger"),
        "trigger_kind": row.trigger_kind,
        "dropped_ticks": (row.trigger_identity or {}).get(DROPPED, 0) if row.trigger_kind == PERIOD else None,
        "unmet": dict(row.detail.get("unmet") or {}) if row.kind is RowKind.STATE else None,
        "committed_at": iso(committed_at),
        "process_seconds": row.detail.get("process_seconds"),
        "drain_seconds": row.drain_seconds,
        "checkpoint_seconds": commits.get(row.group_last or row.sequence_id),
        "withdrawn": is_withdrawn,
        "retracts": (row.trigger_identity or {}).get(RETRACTS),
        "to": row.detail.get("to"),
        "code": deploy.code if row.kind is RowKind.STATE and deploy is not None else None,
        "deployed": None,
        "run_id": row.run_id,
    }


def iso(moment: dt.datetime) -> str:
    """Return a time as ISO-8601 UTC, to the microsecond, so that it can be passed to `--to-time`."""
    return moment.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


REPAIR = "drainmark doctor --repair"
"""The command for a region that has lost its registry."""


def remedies(
    region: str, history: RegionHistory, state: State, *, is_owned: bool, pending: int | None, reference: str | None
) -> list[str]:
    """Return commands, the most likely one first; none if a run is at work, or if no command is needed.

    Args:
        pending: number of pending triggers; None if the registry is lost, or there never was one.
        reference: the text to open the application by; None if it is unknown.
    """
    found: list[str] = []
    if pending is None and history.last_claim is not None:
        found.append(REPAIR)
    if history.halt is not None:
        from drainmark.jobs.runtime.messages import halt_remedies

        return [*found, *halt_remedies(region, history)]
    if not is_owned and (state is State.UNHEALTHY or pending or history.flow.channels):
        found.append(f"drainmark run {shell_word(reference or region.partition('/')[0])}")
    return found
