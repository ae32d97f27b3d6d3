"""`doctor --repair`: a new registry from the checkpoint tables; and the order to repair one region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Owned, UsageError
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.triggers import (
    GAVE_WAY,
    RebuiltTrigger,
    TriggerStatus,
    file_key,
    placed,
    slices_of,
)
from drainmark.jobs.protocol.withdrawn_ids import identity_of
from drainmark.jobs.runtime.commit.claim_checks import read_facts, why_unsettled
from drainmark.jobs.runtime.messages import scanned_identity
from drainmark.jobs.world import Seam, crosses
from drainmark.orchestration.discovery.state_inputs import rebuild_queues
from drainmark.orchestration.verbs import table_repair
from drainmark.orchestration.verbs.orders import Done, Order
from drainmark.orchestration.workplace.declaration import load_region, remember
from drainmark.orchestration.workplace.moved_inputs import FOLDERS, note_folders, roots_of_before
from drainmark.orchestration.workplace.region_sources import has_folder, source_folder, source_of
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry, living_owner, open_in_time
from drainmark.resources.settings import SQLITE

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.orchestration.workplace.workplace import Opened


def repair(
    workplace: Workplace,
    *,
    applications: Sequence[str] = (),
    inputs: Sequence[str] = (),
    regions: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Rebuild the registry of all regions, or of some, from their checkpoint tables; return the counts of each region.

    Committed, skipped and lost inputs keep their status. Inputs that a rewind withdrew are pending in their old
    place; files of the application's folder that no row names follow. Two things are lost: backfilled files that were
    never committed, and a folder that only `--input` named. Name that folder again with `inputs`.

    Args:
        applications: the code of applications that neither `jobs/apps` nor the settings name.
        inputs: `[NAME=]PATH` as `run --input` takes them.
        regions: only these regions; by default all, and then a registry file that cannot be read is replaced.

    Raises:
        Owned: a run works on a region.
        UsageError: all registries are rebuilt, but the project was moved meanwhile: names a file and what to do.
    """
    if regions is None:
        _set_aside_damaged(workplace)
        regions = workplace.own_regions()
    for region in regions:
        if (owner := living_owner(workplace, region)) is not None:
            msg = f"region {region!r} is owned by pid {owner.pid} on {owner.host}"
            raise Owned(msg, remedy="wait for it, or end it")
    found, moved = [], []
    for region in regions:
        code = _code(workplace, region, applications, inputs)
        try:
            found.append(_rebuild(workplace, region, code))
        except UsageError as error:  # the rows are there; what the next scan would count once more is refused by name
            moved.append(error)
    if moved:
        raise moved[0]
    return found


def lost_regions(workplace: Workplace) -> list[str] | None:
    """Return the regions that the registry does not know, or not as they are; None if it cannot be read at all.

    The rows of the others stay: only they tell of files that `backfill` queued, and of a folder that `--input` named.
    """
    registry = existing_registry(workplace)
    if registry is None:
        return None
    regions = workplace.own_regions()
    return [region for region in regions if registry.is_empty(region) or why_rebuild(workplace, region)]


def why_rebuild(workplace: Workplace, region: str) -> str:
    """Say why a region's rows in the registry must be rebuilt; "" if they belong to its checkpoint table.

    A run may commit, or rewind, while this looks, so it looks twice.
    """

    def look() -> str:
        registry = workplace.registry
        history, why = read_facts(registry, region, lambda: workplace.history(region))
        settled = min((row.first_id for row in history.unpublished), default=history.next_id) - 1
        return why or why_unsettled(registry, history, history.state_at_most(settled) or 0)

    return look() and look()


def _set_aside_damaged(workplace: Workplace) -> None:
    """Rename an SQLite file that cannot be read, so that a new file can replace it.

    It leaves last: a service makes a new one as soon as it is gone, with a log of its own.
    """
    url = workplace.settings.registry_url
    if existing_registry(workplace) is not None or not url.startswith(SQLITE):
        return
    file = Path(url.removeprefix(SQLITE))
    suffix = f".damaged-{int(world.now())}"
    for part in (file.with_name(file.name + end) for end in ("-wal", "-shm", "")):
        if part.exists():
            _rename(part, part.with_name(part.name + suffix))


@crosses(Seam.STORE_WRITE)
def _rename(path: Path, target: Path) -> None:
    path.rename(target)


def _code(
    workplace: Workplace, region: str, applications: Sequence[str], inputs: Sequence[str]
) -> tuple[Opened, RegionPlan] | None:
    name = region.partition("/")[0]
    named = next((item for item in applications if Path(item).stem == name or item.rpartition(".")[2] == name), None)
    found = load_region(workplace, region, reference=named)
    if found is None or not inputs:
        return found
    opened = open_in_time(workplace.settings, found[0].reference, inputs=inputs)
    return opened, opened.region(region)


def _rebuild(workplace: Workplace, region: str, code: tuple[Opened, RegionPlan] | None) -> dict[str, Any]:
    known = workplace.registry.region_info(region).epoch  # it may be above that of a checkpoint table from a backup
    history = workplace.history(region)
    triggers = [*_settled(history), *_withdrawn(history)]
    triggers += _missing(history, triggers)
    _note_folders(workplace, region, triggers, rebuild_queues(workplace, region, history))
    is_moved = code is not None and bool(roots_of_before(workplace, code[1]))
    fresh, folder = _unseen(workplace, None if is_moved else code, triggers)
    triggers += fresh
    epoch = max(known, history.epoch)
    folders = workplace.registry.load_cursor(region, FOLDERS)
    workplace.registry.rebuild(
        region,
        epoch=epoch,
        next_id=history.next_id,
        triggers=triggers,
        cursors={FOLDERS: folders} if folders is not None else {},
    )
    if code is not None:
        remember(workplace, *code)
    counts = {status.value: sum(trigger.status is status for trigger in triggers) for status in TriggerStatus}
    return {"region": region, "epoch": epoch, "folder": folder, "triggers": counts}


def _note_folders(
    workplace: Workplace,
    region: str,
    triggers: Sequence[RebuiltTrigger],
    queued: Mapping[str, Sequence[RebuiltTrigger]],
) -> None:
    """Note the folders of a region's files, by which `moved_inputs` knows a project that was moved meanwhile."""
    files = [trigger for trigger in triggers if not slices_of(trigger.identity)]
    if files:
        start = region.partition("/")[2]  # without a period a region has one
        queued = {start: sorted(files, key=lambda trigger: trigger.order_index)}
    names = {start: dict.fromkeys(_folder_of(file.uri) for file in files) for start, files in queued.items()}
    if names and workplace.registry.load_cursor(region, FOLDERS) is None:
        note_folders(workplace, region, {start: [each for each in found if each] for start, found in names.items()})


def _folder_of(uri: str) -> Path | None:
    from drainmark.jobs.scan.folder import path_of

    return None if is_object(uri) else Path(path_of(uri)).parent


def _settled(history: RegionHistory) -> list[RebuiltTrigger]:
    found = []
    for number, row in history.states.items():
        status = TriggerStatus.COMMITTED if row.kind is RowKind.STATE else TriggerStatus.SKIPPED
        if row.trigger_order is not None:
            found.append(_rebuilt(row, row.trigger_order, status, number))
    return found


def _withdrawn(history: RegionHistory) -> list[RebuiltTrigger]:
    rows = [row for row in history.withdrawn if row.trigger_order is not None]
    return [_rebuilt(row, row.trigger_order or 0, TriggerStatus.PENDING, None) for row in rows]


def _missing(history: RegionHistory, known: Sequence[RebuiltTrigger]) -> list[RebuiltTrigger]:
    """Return the lost inputs in their places: the next slice begins at the end of the last one in the order.

    As in the registry that was lost, they give way to a later input of their uri, and are pending again if they return.
    Rows from before 0.4 have a place if they are of withdrawn states; other lost inputs are files: they come last.
    """
    taken = {(trigger.uri, trigger.identity_key) for trigger in known}
    old = {row.trigger_uri or "" for row in history.refused if row.trigger_order is None}
    withdrawn = {identity_of(row): row.trigger_order for row in history.states.rows.of(old)} if old else {}
    found = dict[tuple[str, str], RebuiltTrigger]()
    for row in history.refused:
        order = row.trigger_order if row.trigger_order is not None else withdrawn.get(identity_of(row))
        trigger = _rebuilt(row, order or 0, TriggerStatus.MISSING, None)
        found[trigger.uri, trigger.identity_key] = trigger
    left = [trigger for key, trigger in found.items() if key not in taken]
    full = {0, *(each.order_index for each in known)}
    inside = {each.order_index: each for each in left if each.order_index not in full}
    behind = [each for each in left if inside.get(each.order_index) is not each]
    after = max(full | inside.keys())
    return [*inside.values(), *(replace(each, order_index=after + n) for n, each in enumerate(behind, 1))]


def _rebuilt(row: CheckpointRow, order: int, status: TriggerStatus, number: int | None) -> RebuiltTrigger:
    from drainmark.jobs.scan.folder import identity_key

    kept: Mapping[str, Any] = row.trigger_identity or {}
    identity = scanned_identity(kept)
    return RebuiltTrigger(
        uri=row.trigger_uri or "",
        identity=identity,
        identity_key=identity_key(identity),
        size_bytes=row.bytes_in if row.bytes_in is not None else int(identity.get("size", 0)),
        output=str(kept.get("output", "")),
        origin=str(kept.get("origin", "scan")),
        order_index=order,
        status=status,
        sequence_id=number,
        reason=row.detail.get("reason"),
    )


def _unseen(
    workplace: Workplace, code: tuple[Opened, RegionPlan] | None, known: Sequence[RebuiltTrigger]
) -> tuple[list[RebuiltTrigger], str | None]:
    """Return the files of the folder that no row names, as pending triggers, and the folder; None if there is none."""
    if code is None or not has_folder(code[1]):
        return [], None  # the next scan cuts slices after the newest one in a row
    source = source_of(code[1])
    folder = source_folder(workplace, source)
    if not workplace.inputs.is_there(folder):
        return [], None
    in_order = sorted(known, key=lambda trigger: trigger.order_index)
    stand = [trigger for trigger in in_order if trigger.status not in GAVE_WAY]
    seen = {trigger.uri: "" for trigger in in_order} | {t.uri: file_key(t.identity_key) for t in stand}
    found = workplace.inputs.scan(folder, source.scan, seen, now=world.now())
    after = in_order[-1].order_index if in_order else 0
    return [placed(t, after + place) for place, t in enumerate(found.new, 1)], folder


def repair_order(workplace: Workplace, region: str) -> Order:
    """Return the order to rebuild a region's rows in the registry, if they are lost, and to repair its tables.

    Raises:
        UsageError: the region has no checkpoint table, so there is nothing to repair, and nothing to repair it from; or
            no repair gives back what its tables have lost: the remedy does.
        RegistryLost: the registry of all regions cannot be read.
    """
    if region not in workplace.own_regions():
        raise UsageError(f"region {region!r} has never run: there is nothing to repair")
    is_lost = bool(why_rebuild(workplace, region))
    tables = table_repair.plan_region(workplace, region)
    lines = [f"{region}: its rows in the registry are rebuilt from its checkpoint table"] if is_lost else []
    lines += table_repair.repair_lines(tables) if tables.steps else []
    if tables.steps and not tables.is_of_use and not is_lost:
        said = "; ".join(line.strip() for line in lines)
        raise UsageError(f"no repair gives the lost rows back: {said}", remedy=tables.remedy)

    def act() -> Done:
        rebuilt = repair(workplace, regions=[region]) if is_lost else []
        again = partial(repair, workplace, regions=[region])
        mended = table_repair.mend(workplace, region, rebuild=again) if tables.steps else tables
        counts = ", ".join(f"{n} {status}" for each in rebuilt for status, n in each["triggers"].items() if n)
        said = [f"{region}: the registry is rebuilt: {counts or 'nothing'}"] if is_lost else []
        said += table_repair.repair_lines(mended) if tables.steps else []
        return Done(facts={**mended.to_json(), "registry": rebuilt}, lines=tuple(said) or _nothing(region))

    facts: dict[str, Any] = {**tables.to_json(), "registry": "rebuilt" if is_lost else "kept"}
    bound = {**facts, "epoch": workplace.history(region).epoch}
    return Order(verb="repair", region=region, facts=facts, plan=tuple(lines) or _nothing(region), bound=bound, act=act)


def _nothing(region: str) -> tuple[str, ...]:
    return (f"{region}: nothing is to be repaired",)
