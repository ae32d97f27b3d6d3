"""The record of a scan: new files become pending triggers, changed files follow the source's policy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import AGAIN, BACK, BACKFILL, NewTrigger, Trigger, TriggerStatus, file_key
from drainmark.jobs.scan.findings import ScanResult
from drainmark.jobs.scan.folder import identity_key

if TYPE_CHECKING:
    from drainmark.resources.inputs.inputs import Inputs
    from drainmark.resources.registry.registry import Registry


def record_scan(
    registry: Registry,
    region: str,
    inputs: Inputs,
    location: str,
    scan: DirectoryScan,
    *,
    now: float,
    was_refused: Callable[[Trigger], bool] = lambda file: False,
) -> ScanResult:
    """Scan a folder, or a prefix of a bucket, and add its new files to the registry, in order.

    These files also become new triggers, at the end of the order: a file that changed before it was committed; a file
    that is back after it changed or was missing; and a file that was quarantined whole, then fixed. If another file
    changed after it was committed, `on_change` decides: it is ignored, becomes a new trigger, or is an error. The same
    holds of files that were asked for (`BACKFILL`) and gave way, although the source may not select them.

    Args:
        was_refused: says whether a committed file was quarantined whole; called only for changed files.

    Raises:
        InputChanged: a committed file changed and `on_change` is "halt"; `first_id` is its first sequence id.
        StoreUnavailable, StoreRefused: the listing failed. No file of a small prefix was added; in the first scan of a
            large one, the files listed until then were added.
    """
    from drainmark.resources.registry.scan_queries import RegistryScans

    result, stopped = ScanResult(), None
    asked_for = inputs.scan_again(registry.triggers.gave_way(region, BACKFILL), scan, now=now)
    with closing(inputs.watched(RegistryScans(registry, region), location, scan, now=now)) as batches:
        for batch in itertools.chain((asked_for,), batches):
            registry.triggers.add(region, batch.new)
            changed, refusal = _taken_anew(registry, region, scan, batch, was_refused)
            registry.triggers.add(region, changed)
            result, stopped = result.with_batch(batch), stopped or refusal
    if stopped is not None:
        raise stopped
    return result


def _taken_anew(
    registry: Registry, region: str, scan: DirectoryScan, found: ScanResult, was_refused: Callable[[Trigger], bool]
) -> tuple[list[NewTrigger], InputChanged | None]:
    """Return the changed files that become triggers, and the error of the first one that must not."""
    changed: list[NewTrigger] = []
    refusal: InputChanged | None = None
    for uri, _, trigger in found.changed:
        known = registry.triggers.by_uri(region, uri)
        committed = [each for each in known if each.status is TriggerStatus.COMMITTED]
        is_mended = bool(committed) and was_refused(committed[-1])
        if _awaits_replacement(known) and scan.on_change != "halt":
            changed.append(replacing(trigger, known))
        elif not committed or is_mended or scan.on_change == "reprocess":
            changed.append(_come_back(trigger, known) if committed else trigger)
        elif scan.on_change == "halt" and refusal is None:
            msg = f"{uri} was committed and is another file now"
            first = min(each.sequence_id or 0 for each in committed)
            own = "move the old file itself back, as a copy has another inode"
            back = "write the old object again" if is_object(uri) else own
            remedy = f'{back}; or on_change="reprocess" or "ignore" at the source'
            refusal = InputChanged(msg, remedy=remedy, trigger=uri, first_id=first)
    return changed, refusal


def _awaits_replacement(known: Sequence[Trigger]) -> bool:
    """Say whether a file was to be processed anew (`backfill --again`), and changed before it was read."""
    return bool(known) and known[-1].status is TriggerStatus.SUPERSEDED and AGAIN in known[-1].identity


def replacing(trigger: NewTrigger, known: Sequence[Trigger]) -> NewTrigger:
    """Return the trigger of a file that takes the place of what was committed of it; its key is a new one."""
    times = max((int(each.identity.get(AGAIN, 0)) for each in known), default=0)
    identity = {**trigger.identity, AGAIN: times + 1}
    return replace(trigger, identity=identity, identity_key=identity_key(identity))


def _come_back(trigger: NewTrigger, known: Sequence[Trigger]) -> NewTrigger:
    """Return the trigger of a changed file, with a key of its own if this same content was committed before."""
    same = [each for each in known if file_key(each.identity_key) == trigger.identity_key]
    if not any(each.status is TriggerStatus.COMMITTED for each in same):
        return trigger
    times = max(int(each.identity.get(BACK, 0)) for each in same)
    identity = {**trigger.identity, BACK: times + 1}
    return replace(trigger, identity=identity, identity_key=identity_key(identity))
