"""Copies of objects on this machine, for readers that need local files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drainmark.jobs.errors import InputChanged, InputMissing, ObjectChanged, ObjectMissing, SpoolTooSmall
from drainmark.jobs.protocol.records.addresses import address_of
from drainmark.jobs.protocol.records.triggers import VERSION, Trigger
from drainmark.jobs.scan.lost_files import changed_files, missing_files
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3_connection import PARALLEL


def spool(objects: ObjectStore, wanted: Sequence[tuple[Trigger, Path]], room: int) -> None:
    """Copy objects to paths that do not exist yet, if they have not changed since the scan.

    Args:
        room: bytes that one object may have.

    Raises:
        InputMissing, InputChanged: objects are gone or were replaced; the error names their triggers.
        SpoolTooSmall: one object alone is larger; groups of several objects are cut to fit beforehand.
    """
    _require_room([trigger for trigger, _ in wanted], room)
    pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="fetch")
    try:
        found = list(pool.map(lambda each: _fetched(objects, *each), wanted))
    finally:
        pool.shutdown(cancel_futures=True)
    gone = [trigger for (trigger, _), told in zip(wanted, found, strict=True) if told is InputMissing]
    if gone:
        raise missing_files(gone, "the object is gone")
    changed = [trigger for (trigger, _), told in zip(wanted, found, strict=True) if told is InputChanged]
    if changed:
        raise changed_files(changed)


def _fetched(objects: ObjectStore, trigger: Trigger, path: Path) -> type[InputMissing | InputChanged] | None:
    known = trigger.identity
    try:
        objects.fetch(
            *address_of(trigger.uri), path, etag=known["etag"], size=known["size"], version=known.get(VERSION)
        )
    except ObjectMissing:
        return InputMissing
    except ObjectChanged:
        return InputChanged
    return None


def _require_room(triggers: Sequence[Trigger], room: int) -> None:
    largest = max(triggers, key=lambda trigger: trigger.size_bytes)
    if largest.size_bytes > room:
        msg = f"{largest.uri} has {largest.size_bytes} bytes, more than s3_spool_bytes = {room}"
        remedy = f"set s3_spool_bytes to {largest.size_bytes} or more"
        raise SpoolTooSmall(msg, remedy=remedy)
