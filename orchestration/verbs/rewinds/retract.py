"""`retract`: files that are committed leave the tables again, without a replay of the later ones.

The plan is made without a claim and changes nothing; `carry_out` claims the region and looks again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import RetractRefused, UnknownName, UsageError
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.claimed_code import deploy_of
from drainmark.jobs.protocol.history import RegionHistory, retracted_by
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.protocol.records.triggers import FILE, RETRACTION, TriggerStatus
from drainmark.jobs.runtime.commit.removal.keyed_retraction import KeyedHistory
from drainmark.jobs.runtime.commit.removal.retractable import keyed_tables, remedy_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.file_names import files_named, require_one_file, triggers_named
from drainmark.orchestration.verbs.rewinds.readers import Home, cascade_flag, readers_of, tables_of
from drainmark.orchestration.workplace.declaration import declared, load_region
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.jobs.runtime.commit.region_owner import RegionOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractPlan:
    """The states that leave.

    Attributes:
        states: by id, the rows of the states that are taken back.
        keyed: the tables of one row a key from which they are taken out.
        done: by uri of a file that was retracted before, the id that did it.
        told: the regions of this home that read its changes, and get rows that leave as deletes.
        unpublished: an earlier command died before all tables were brought up.
        facts: the output of `--json`.
    """

    region: str
    states: dict[int, CheckpointRow]
    done: dict[str, int]
    keyed: tuple[KeyedHistory, ...]
    told: frozenset[str]
    unpublished: bool
    facts: dict[str, Any]


def plan_retract(workplace: Workplace, region: str, files: Sequence[str]) -> RetractPlan:
    """Return what a retraction of files takes back: all states in force of each file; change nothing.

    Raises:
        UnknownName: no state was made from a file of that name.
        UsageError: the name means several files, or the file is no committed one.
        RetractRefused: an operator on the way keeps what cannot be subtracted, or a region that reads a table would not
            go on.
    """
    history = workplace.history(region)
    states: dict[int, CheckpointRow] = {}
    done: dict[str, int] = {}
    with naming_rewind(workplace, region):
        for file in files:
            uri, found = _states_of(workplace, region, history, file)
            if found:
                states |= found
            else:
                done[uri] = _retracted_as(history, uri)
        ids = sorted(states)
        spared = _spared(workplace, region, history, ids) if ids else frozenset()
        told = _told(workplace, region, history, ids, spared) if ids else frozenset()
        keyed = _keyed(workplace, region, history, ids) if ids else ()
    facts = {
        "region": region,
        "files": [
            {"file": states[number].trigger_uri, "sequence_id": number, "code": _code(history, number)}
            for number in ids
        ],
        "retracted_before": [{"file": uri, "sequence_id": number} for uri, number in done.items()],
        "rows": _rows(workplace, region, history, ids),
        "readers": readers_of(workplace, region, ids, spared),
        "committed_sequence_id": history.committed_id,
    }
    return RetractPlan(
        region=region,
        states={number: states[number] for number in ids},
        done=done,
        keyed=keyed,
        told=told,
        unpublished=bool(history.unpublished),
        facts=facts,
    )


def carry_out(workplace: Workplace, plan: RetractPlan, why: str = "") -> dict[str, Any]:
    """Take back the states of a plan in one commit; finish what an earlier command left, if there is nothing else.

    Raises:
        RetractRefused: the region is not as it was planned, or see `plan_retract`; nothing was changed.
        Owned: a run has the region.
    """
    if not plan.states and not plan.unpublished:
        return {**plan.facts, "retracted": [], "epoch": workplace.history(plan.region).epoch}
    owner = region_owner(workplace, plan.region)
    claim = partial(owner.claim, deleting=_names(plan.keyed))
    with naming_rewind(workplace, plan.region, list(plan.states)), owning(owner, claim):
        gone = [number for number in plan.states if not _counts(owner.history, number)]
        if gone:
            msg = f"{plan.region} is not as it was planned: {gone[0]} was rewound, replaced or retracted since"
            raise RetractRefused(msg, remedy="nothing was changed: repeat the command, and look at its new plan")
        if plan.states and _names(plan.keyed) != _names(
            _keyed(workplace, plan.region, owner.history, list(plan.states))
        ):
            msg = f"{plan.region} has other tables than when it was planned"
            raise RetractRefused(msg, remedy="nothing was changed: repeat the command, and look at its new plan")
        by = _taken_back(workplace, owner, plan, why) if plan.states else {}
        done = [{**entry, "retracted_by": by[entry["sequence_id"]]} for entry in plan.facts["files"]]
        committed, epoch = owner.history.committed_id, owner.history.epoch
    return {**plan.facts, "retracted": done, "committed_sequence_id": committed, "epoch": epoch}


def _taken_back(workplace: Workplace, owner: RegionOwner, plan: RetractPlan, why: str) -> dict[int, int]:
    """Take back the states of a plan, as the tables of the owner's claim are."""
    ids = list(plan.states)
    _told(workplace, plan.region, owner.history, ids, _spared(workplace, plan.region, owner.history, ids))
    return owner.retractions.retract(ids, plan.keyed, why)


@contextmanager
def naming_rewind(workplace: Workplace, region: str, ids: Sequence[int] = ()) -> Iterator[None]:
    """Let a refusal without a remedy name the rewind that has the same effect, with the readers that go back with it.

    Args:
        ids: of the states that are to leave, for a refusal that does not say which ones are refused.
    """
    try:
        yield
    except RetractRefused as error:
        if error.remedy is None:
            horizon, flags = declared(workplace, region).rewind_horizon, cascade_flag(workplace, region)
            refused = error.facts.get("ids") or ids
            error.remedy = remedy_of(region, workplace.history(region), refused, horizon, flags)
        raise


def _told(
    workplace: Workplace, region: str, history: RegionHistory, ids: Sequence[int], spared: Collection[str]
) -> frozenset[str]:
    """Return the regions of this home that read changes of tables, and get rows that leave as deletes.

    Args:
        spared: see `_spared`.

    Raises:
        RetractRefused: others read only what a table gets, and would halt, without a way to go on right.
    """
    links = [link for link in Home(workplace).links(region) if link.table not in spared]
    if readers := dict.fromkeys(link.reader for link in links if not link.has_changes):
        reads = "reads" if len(readers) == 1 else "read"
        msg = f"region {region!r}: {', '.join(readers)} {reads} its tables, and can give back no rows alone"
        raise RetractRefused(msg, operator=None, ids=tuple(ids), readers=tuple(readers))
    return frozenset(link.reader for link in links)


def _spared(workplace: Workplace, region: str, history: RegionHistory, ids: Sequence[int]) -> frozenset[str]:
    """Return the ids of the tables that others read, and that have no rows of some ids: no row leaves these tables.

    A table of one row a key is none of them: the rows of other ids may change.
    """
    read = {link.table for link in Home(workplace).links(region, keeping=True)}
    store, tables = workplace.store(region), tables_of(workplace, region, history) if read else {}
    return frozenset(
        each
        for each, table in tables.items()
        if each in read and table.role is TableRole.APPEND and not any(_count(store.table(table.name).files, ids))
    )


def _keyed(workplace: Workplace, region: str, history: RegionHistory, ids: Sequence[int]) -> tuple[KeyedHistory, ...]:
    def code() -> RegionPlan | None:
        found = load_region(workplace, region)
        return found[1] if found is not None else None

    return keyed_tables(region, history, ids, cache(code))


def _names(keyed: Sequence[KeyedHistory]) -> list[str]:
    return [table.changes.name for table in keyed]


def _counts(history: RegionHistory, number: int) -> bool:
    """Say whether tables have what a state brought to them."""
    return number in history.states and number not in history.replaced


def _states_of(
    workplace: Workplace, region: str, history: RegionHistory, file: str
) -> tuple[str, dict[int, CheckpointRow]]:
    """Return the file that a name means, and its states in force that count; none if it was retracted before."""
    if not file.strip():
        raise UsageError("the name of a file is empty; nothing was changed", remedy="give a file")
    inputs = [
        (number, row)
        for number, row in history.states.items()
        if row.kind is RowKind.STATE and row.trigger_kind != RETRACTION
    ]
    uris = files_named(file, (row.trigger_uri for _, row in inputs))
    require_one_file(file, uris)
    inputs = [(number, row) for number, row in inputs if row.trigger_uri in uris]
    if not inputs:
        raise _unknown(workplace, region, history, file)
    found = {number: row for number, row in inputs if _counts(history, number)}
    other = next((row for row in found.values() if row.trigger_kind != FILE), None)
    if other is not None:
        msg = f"{other.trigger_uri} is no file but a slice of the input of {region}: a later slice begins where it ends"
        raise RetractRefused(msg, operator=None, ids=(other.sequence_id,))
    return uris.pop(), found


def _retracted_as(history: RegionHistory, uri: str) -> int:
    found = (retracted_by(history, number) for number, row in history.states.items() if row.trigger_uri == uri)
    return max(number for number in found if number is not None)


def _unknown(workplace: Workplace, region: str, history: RegionHistory, file: str) -> UsageError:
    if seen := triggers_named(workplace, region, file):
        last = seen[-1]
        waits = last.status is TriggerStatus.PENDING
        remedy = f"drainmark skip {region} --file {shell_word(last.uri)} --reason '…'" if waits else None
        return UsageError(f"{last.uri} is not committed: it is {last.status.value}", remedy=remedy)
    names = [row.trigger_uri for row in history.states.values() if row.trigger_uri]
    remedy = nearest(file, names) if names else f"drainmark history {region}"
    return UnknownName(f"no state of region {region!r} was made from {file!r}", remedy=remedy)


def _code(history: RegionHistory, number: int) -> str | None:
    deploy = deploy_of(history.deploys, number)
    return deploy.code if deploy is not None else None


def _rows(workplace: Workplace, region: str, history: RegionHistory, ids: Sequence[int]) -> dict[str, int]:
    """Return, by name of a table, how many rows leave it; of a table of one row a key, how many may change."""
    store, found = workplace.store(region), {}
    for table in history.tables:
        name = table.history or table.name
        if not table.is_managed and not table.history:
            continue
        kept = store.table(name)
        if (table.is_derived or table.name not in {each.history for each in history.tables}) and kept.exists():
            found[table.name] = sum(_count(kept.files, ids))
    return found


def _count(files: Any, ids: Sequence[int]) -> Sequence[int]:
    from drainmark.resources.delta.merge import of_ids

    near = [file for file in files.live() if file.may_hold(ids)] if ids else []
    return [rows.filter(of_ids(ids)).num_rows for rows in files.pieces(near, ["_sequence_id"])]
