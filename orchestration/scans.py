"""From a scan to pending triggers: what is new is recorded, what changed goes by the source's policy (I1–I4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jobs.errors import InputChanged
from jobs.operators.directory_scan import DirectoryScan
from jobs.protocol.triggers import NewTrigger, TriggerStatus
from jobs.runtime.scanning import ScanResult

if TYPE_CHECKING:
    from resources.inputs import Inputs
    from resources.registry import Registry


def record_scan(
    registry: Registry,
    region: str,
    inputs: Inputs,
    location: str,
    scan: DirectoryScan,
    *,
    now: float,
    was_refused: Callable[[int | None], bool] = lambda sequence_id: False,
) -> ScanResult:
    """Scan a folder, or a prefix of a bucket, and add its new files to the registry, in order.

    A file that changed before it was committed is a new trigger, at the end of the order, and so is one of which
    nothing was taken and that was mended. One that changed after it was committed is ignored, taken anew, or an error,
    as `on_change` says.

    Args:
        was_refused: was the file of a sequence id quarantined whole? Asked only of files that changed.

    Raises:
        InputChanged: a committed file changed and `on_change` is "halt".
        StoreUnavailable, StoreRefused: the listing failed; nothing was added (D15).
    """
    result = inputs.scan(location, scan, registry.known(region), now=now)
    registry.add_triggers(region, list(result.new))
    changed: list[NewTrigger] = []
    for uri, _, trigger in result.changed:
        committed = [known for known in registry.by_uri(region, uri) if known.status is TriggerStatus.COMMITTED]
        is_mended = bool(committed) and was_refused(committed[-1].sequence_id)
        if not committed or is_mended or scan.on_change == "reprocess":
            changed.append(trigger)
        elif scan.on_change == "halt":
            msg = f"{uri} was committed and is another file now"
            raise InputChanged(
                msg,
                remedy=f"restore it; or take the new one: drainmark reset {region} --to-file '{uri}' --accept-loss, "
                'or on_change="reprocess" or "ignore" at the source',
                trigger=uri,
            )
    registry.add_triggers(region, changed)
    return result
