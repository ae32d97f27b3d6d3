"""Inputs: folders of this machine and buckets behind the same few methods.

A local file is read at its place, through a link, so its identity is compared before and after. An object is copied
once, with `If-Match` on its etag, into the attempt's inbox, or read by tasks under the same condition: the object that
was scanned is read, or nothing. Spark needs no setting, no jar and no credential of the store.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import InputChanged, InputMissing, ObjectChanged, ObjectMissing
from drainmark.jobs.errors.machine_faults import require_gone
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.addresses import address_of, is_object, prefix_of
from drainmark.jobs.protocol.records.triggers import VERSION, NewTrigger, Trigger, file_key
from drainmark.jobs.scan.bucket_listing import PrefixListing
from drainmark.jobs.scan.bucket_objects import (
    identity_of_object,
    is_marker,
    lies_at,
    listing_prefix,
    literal_prefix,
    refusal_of,
    selects,
)
from drainmark.jobs.scan.findings import ScanFindings, ScanResult, changed_files, judge, missing_files
from drainmark.jobs.scan.folder import IS_LINK, identity_key, identity_of, path_of
from drainmark.jobs.scan.folder_listing import FolderListing
from drainmark.jobs.scan.index import ScanLimits, ScanMemory
from drainmark.jobs.scan.scanner import Listing, Scanner, scan_once
from drainmark.jobs.tasks.buckets import PAGE_KEYS, Bucket, ObjectFacts, StoredObject
from drainmark.resources.inputs.disposal import dispose
from drainmark.resources.storage.object_store import ObjectStore, object_store
from drainmark.resources.storage.s3_connection import PARALLEL

if TYPE_CHECKING:
    from drainmark.resources.settings import Settings


class Inputs:
    """The files of triggers.

    Args:
        objects: of all buckets; opened when the first object is needed.
        limits: of the files that one scan looks at.
        root: folder to which relative paths are relative.
        range_bytes: tasks read a larger file by ranges of so many bytes.
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        limits: ScanLimits | None = None,
        root: Path | None = None,
        range_bytes: int = 128 * 1024 * 1024,
    ) -> None:
        self.objects = objects
        self.limits = limits or ScanLimits()
        self.root = root or Path()
        self.range_bytes = range_bytes
        self._scanners: dict[tuple[ScanMemory, str], Scanner[Any]] = {}
        self._lock = threading.Lock()

    # --- scans and identities ----------------------------------------------------------------------------------------

    def watched(
        self, memory: ScanMemory, location: str, scan: DirectoryScan, *, now: float
    ) -> Generator[ScanResult, None, None]:
        """Scan a folder or a prefix of a bucket again: all files, or, of a large one, those that can have changed.

        The caller must record each result before it asks for the next one: the result then counts as seen.

        Args:
            memory: that of the region; it also identifies the scan.
            now: seconds since 1970.

        Raises:
            UsageError: there is no such folder.
            StoreUnavailable, StoreRefused: a page of a listing failed; the next scan finds files that were not yielded.
        """
        with self._lock:
            scanner = self._scanners.get((memory, location))
            if scanner is None or scanner.scan != scan:
                listing = self._listing(location, scan, memory)
                scanner = self._scanners[memory, location] = Scanner(listing, scan, memory, limits=self.limits)
        for batch in scanner.batches(now):
            yield self._versioned(location, batch)

    def _listing(self, location: str, scan: DirectoryScan, memory: ScanMemory | None = None) -> Listing[Any]:
        if is_object(location):
            return PrefixListing(location, scan, _SourceObjects(self.objects, location, scan))
        return FolderListing(Path(location), scan, memory)

    def scan(self, location: str, scan: DirectoryScan, known: Mapping[str, str], *, now: float) -> ScanResult:
        """Scan a folder or a prefix of a bucket once, completely, even if it is large: too slow for every tick.

        In a bucket, it lists every key below the prefix, 1000 with each request; if `pattern` begins with plain text,
        only keys that begin with that text.

        Raises:
            UsageError: there is no such folder.
            StoreUnavailable, StoreRefused: a page of the listing failed; the pages before it are dropped.
        """
        return self._versioned(location, scan_once(self._listing(location, scan), scan, known, now=now))

    def scan_again(self, triggers: Sequence[Trigger], scan: DirectoryScan, *, now: float) -> ScanResult:
        """Look at the files of triggers once more, wherever they lie; each stays in its output, with its origin.

        Raises:
            StoreUnavailable, StoreRefused: a store did not answer.
        """
        result, anything = ScanResult(), replace(scan, pattern="*", outputs=None, recursive=True)
        for trigger in triggers:
            bucket = address_of(trigger.uri)[0] if is_object(trigger.uri) else None
            location = bucket or os.path.dirname(path_of(trigger.uri))
            listing, found = self._listing(location, anything), ScanFindings(now)
            for entry in listing.entries_of([listing.key_at(trigger.uri)]):
                candidate = listing.candidate(entry, found)
                if candidate is not None:
                    new = replace(candidate.trigger, output=trigger.output, origin=trigger.origin)
                    candidate = candidate._replace(trigger=new)
                    judge(candidate, "", found, scan, settles=listing.settles, oldest=None)
            result = result.with_batch(self._versioned(location, found.result()))
        return result

    def _versioned(self, location: str, found: ScanResult) -> ScanResult:
        if not is_object(location) or not (found.new or found.changed):
            return found
        changed = self.with_versions([trigger for _, _, trigger in found.changed])
        return replace(
            found,
            new=self.with_versions(found.new),
            changed=tuple((uri, key, new) for (uri, key, _), new in zip(found.changed, changed, strict=True)),
        )

    def with_versions(self, triggers: Sequence[NewTrigger]) -> tuple[NewTrigger, ...]:
        """Add the version id to each identity if objects of the bucket have one: a listing does not have it.

        A version can be read even if the object was overwritten since, also by a replay after a rewind.
        """
        asked = (_there(self.objects, *address_of(trigger.uri)) for trigger in triggers)
        first = next((facts for facts in asked if facts is not None), None)
        if first is None or first.version is None:
            return tuple(triggers)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="head") as pool:
            return tuple(pool.map(self._with_version, triggers))

    def _with_version(self, trigger: NewTrigger) -> NewTrigger:
        try:
            facts = self.objects.head(*address_of(trigger.uri))
        except ObjectMissing:
            return trigger
        if facts.version is None or facts.etag != trigger.identity["etag"]:
            return trigger  # replaced since the listing: the read will detect that
        return replace(trigger, identity={**trigger.identity, VERSION: facts.version})

    def is_there(self, location: str) -> bool:
        """Say whether there is a folder to scan; always True for a bucket, which only the scan itself checks."""
        return is_object(location) or Path(location).is_dir()

    def matching(self, address: str) -> Iterator[tuple[ObjectFacts, str | None]]:
        """Yield the objects at an address: that of a bucket, and a key; or a folder; or, if there is neither, a glob.

        In a glob, `**` includes subfolders. With each object comes the reason why it cannot be read, None if it can.

        Raises:
            UsageError: the address names no bucket.
        """
        bucket, glob = address_of(address)
        named = self._matching(bucket, glob, partial(lies_at, glob))
        first = next(named, None)
        if first is not None:
            yield first
            yield from named
        elif (prefix := literal_prefix(glob)) != glob:
            yield from self._matching(bucket, prefix, partial(selects, glob))

    def _matching(
        self, bucket: str, prefix: str, is_meant: Callable[[str], bool]
    ) -> Iterator[tuple[ObjectFacts, str | None]]:
        for page in self.objects.pages(bucket, prefix):
            for facts in page:
                if not is_marker(facts) and is_meant(facts.key.rstrip("/")):
                    yield facts, refusal_of(facts, lambda key: _there(self.objects, bucket, key))

    def lost(self, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the uris of inputs that are gone, and of inputs that were replaced by other files.

        Args:
            rows: (uri, identity at the scan); only the facts that the file has now are compared.
        """
        if not rows:
            return (), ()
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="head") as pool:
            found = list(pool.map(lambda row: self._identity_now(*row), rows))
        gone = tuple(uri for (uri, _), now in zip(rows, found, strict=True) if now is None)
        changed = tuple(
            uri
            for (uri, known), now in zip(rows, found, strict=True)
            if now is not None and any(known.get(name) != value for name, value in now.items())
        )
        return gone, changed

    def _identity_now(self, uri: str, known: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            if is_object(uri):
                return identity_of_object(self.objects.head(*address_of(uri), known.get(VERSION)))
            return identity_of(os.stat(path_of(uri)))
        except ObjectMissing:
            return None
        except OSError as error:
            require_gone(error)
            return None

    # --- the files of a group ---------------------------------------------------------------------------------------

    def place(self, wanted: Sequence[tuple[Trigger, Path]], *, follow_links: bool = False) -> None:
        """Make each trigger's file, as it was scanned, readable at a path that does not exist yet.

        Args:
            follow_links: a file may be a symbolic link; otherwise a link counts as a missing file.

        Raises:
            InputMissing, InputChanged: the error names the triggers with missing or replaced files.
        """
        local = [(trigger, path) for trigger, path in wanted if not is_object(trigger.uri)]
        self.check([trigger for trigger, _ in local], follow_links=follow_links)
        for trigger, path in local:
            os.symlink(os.path.abspath(path_of(trigger.uri)), path)
        copies = [(trigger, path) for trigger, path in wanted if is_object(trigger.uri)]
        if copies:
            spool(self.objects, copies)

    def stored(self, triggers: Sequence[Trigger | NewTrigger]) -> Mapping[int, StoredObject]:
        """Return the inputs that tasks can fetch by themselves: index in `triggers` -> object, as it was scanned."""
        found: dict[int, StoredObject] = {}
        buckets: dict[str, Bucket] = {}
        for index, trigger in enumerate(triggers):
            if not is_object(trigger.uri):
                continue
            (bucket, key), known = address_of(trigger.uri), trigger.identity
            if bucket not in buckets:  # one value for all objects of a bucket, so that it is sent to tasks only once
                buckets[bucket] = self.objects.bucket(bucket)
            stored = StoredObject(
                bucket=buckets[bucket],
                key=key,
                size=known["size"],
                etag=known["etag"],
                version=known.get(VERSION),
            )
            if stored.can_be_named:
                found[index] = stored
        return found

    def check(self, triggers: Sequence[Trigger], *, follow_links: bool = False) -> None:
        """Compare inputs with their identities at the scan.

        Raises:
            InputMissing, InputChanged: as `place`.
        """
        objects = [trigger for trigger in triggers if is_object(trigger.uri)]
        gone, changed = self.lost([(trigger.uri, trigger.identity) for trigger in objects])
        if gone:
            raise missing_files([trigger for trigger in objects if trigger.uri in gone], "the object is gone")
        if changed:
            raise changed_files([trigger for trigger in objects if trigger.uri in changed])
        local = [trigger for trigger in triggers if not is_object(trigger.uri)]
        _check_local(local, follow_links=follow_links)

    def dispose(self, files: Sequence[tuple[str, Mapping[str, Any], int]], scan: DirectoryScan) -> int:
        """Move or delete input files, as the scan declares; missing and replaced files are left alone.

        Args:
            files: uri, identity at the scan, sequence id.

        Returns:
            the number of files that were moved or deleted.
        """
        location, move_to = self._resolved(scan.path), self._resolved(scan.move_to) if scan.move_to else None
        gone, changed = self.lost([(uri, _newest(identity)) for uri, identity, _ in files])
        left = {*gone, *changed}  # most of them, if this is a repetition
        there = [file for file in files if file[0] not in left]
        return dispose(there, objects=self.objects, location=location, move_to=move_to)

    def _resolved(self, path: str) -> str:
        return path if is_object(path) else str(self.root / path)


def inputs_of(settings: Settings) -> Inputs:
    """Return the inputs for the settings."""
    return Inputs(
        object_store(settings),
        limits=ScanLimits(whole=settings.scan_whole_files, rest_seconds=settings.scan_round_seconds),
        root=settings.project_root,
        range_bytes=settings.range_bytes,
    )


class _SourceObjects:
    """The objects of a bucket that a source's scan may take (`jobs.scan.bucket_listing.Objects`)."""

    def __init__(self, objects: ObjectStore, location: str, scan: DirectoryScan) -> None:
        self.objects = objects
        self.bucket, prefix = prefix_of(location)
        self.prefix = prefix + listing_prefix(scan)
        self.recursive = scan.recursive or scan.outputs is not None

    def pages(self, start_after: str = "", first_page: int = PAGE_KEYS) -> Iterator[tuple[ObjectFacts, ...]]:
        return self.objects.pages(
            self.bucket, self.prefix, start_after=start_after, recursive=self.recursive, first_page=first_page
        )

    def head(self, key: str) -> ObjectFacts | None:
        return _there(self.objects, self.bucket, key)


def _there(objects: ObjectStore, bucket: str, key: str) -> ObjectFacts | None:
    try:
        return objects.head(bucket, key)
    except ObjectMissing:
        return None


def _newest(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity without the version id, to compare it with the newest version."""
    return {name: value for name, value in identity.items() if name != VERSION}


def spool(objects: ObjectStore, wanted: Sequence[tuple[Trigger, Path]]) -> None:
    """Copy objects to paths that do not exist yet, if they have not changed since the scan.

    Raises:
        InputMissing, InputChanged: objects are gone or were replaced; the error names their triggers.
    """
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


def _check_local(triggers: Sequence[Trigger], *, follow_links: bool) -> None:
    """Check every file before raising an error, so that the error names all files that are gone.

    If a file was replaced, or a link or folder on its path was, the path leads to another inode.
    """
    gone: list[tuple[Trigger, OSError]] = []
    changed: list[Trigger] = []
    for trigger in triggers:
        try:
            facts = os.stat(path_of(trigger.uri), follow_symlinks=follow_links)
        except OSError as error:
            require_gone(error)
            gone.append((trigger, error))
            continue
        if stat.S_ISLNK(facts.st_mode):
            gone.append((trigger, OSError(errno.ELOOP, f"it {IS_LINK}")))
            continue
        if identity_key(identity_of(facts)) != file_key(trigger.identity_key):
            changed.append(trigger)
    if gone:
        why = gone[0][1]
        raise missing_files([trigger for trigger, _ in gone], why.strerror or "it is gone") from why
    if changed:
        raise changed_files(changed)
