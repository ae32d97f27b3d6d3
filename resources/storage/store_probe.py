"""Probes of a store: what Drainmark relies on, tried on objects of its own in a bucket that is to hold tables."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectChanged, StoreRefused
from drainmark.jobs.protocol.records.addresses import S3
from drainmark.resources.storage.object_store import ObjectStore
from drainmark.resources.storage.s3_requests import S3Requests

_RACES, _WRITERS, _SECONDS = 8, 16, 3.0
"""Races of so many writers, and the seconds after which no further race begins: such a store lets writers wait for each
other. S3Mock, which checks first and writes later, fails in every second race."""

_ELSEWHERE = (
    "use a store with conditional writes (AWS, Azure, MinIO, R2, Ceph); docs/how-to/s3.md says what a store must keep"
)


def require_one_winner(store: ObjectStore, bucket: str, folder: str) -> None:
    """Let writers race to put the same objects, and check that for each object one succeeds, and the others are told.

    They send the same requests as commits. One put after the other would show less: a store that checks first and
    writes later refuses the second of them.

    Args:
        folder: below which the objects are, with a slash at its end; they are deleted again.

    Raises:
        StoreRefused: two writers succeeded for one object, or one succeeded and another's content is there.
        StoreUnavailable: the store does not answer.
    """
    keys = [f"{folder}put-if-absent-{world.token()}" for _ in range(_RACES)]
    try:
        if _has_one_winner_each(store, bucket, keys):
            return
    finally:
        store.delete(bucket, keys)
    msg = f"the store of {bucket}/{folder} lets several writers put one object in spite of If-None-Match"
    raise StoreRefused(f"{msg}: two owners could both commit", remedy=_ELSEWHERE)


def _has_one_winner_each(store: ObjectStore, bucket: str, keys: Sequence[str]) -> bool:
    def put(key: str, content: bytes, together: threading.Barrier | None = None) -> list[bytes]:
        """Put an object, at the same time as others; return its content if it was put, else nothing."""
        if together is not None:
            together.wait()
        try:
            store.put(bucket, key, content, if_absent=True)
        except ObjectChanged:
            return []
        return [content]

    until = world.monotonic() + _SECONDS
    first = put(keys[0], b"first")  # this race is lost before it begins
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="race") as pool:
        for number, key in enumerate(keys):
            if world.monotonic() > until:
                break
            together = threading.Barrier(_WRITERS)
            answers = [pool.submit(put, key, str(each).encode(), together) for each in range(_WRITERS)]
            winners = [*(first if not number else []), *itertools.chain(*(each.result() for each in answers))]
            if winners and winners != [store.get(bucket, key)]:  # none, if the winner's reply was lost
                return False
    return True


def habits(store: ObjectStore, bucket: str, folder: str) -> list[Habit]:
    """Return what a store does otherwise than S3, and what this means; [] for nothing. No object is left.

    Args:
        folder: below which objects are put, with a slash at its end.

    Raises:
        StoreRefused, StoreUnavailable: the store does not answer.
    """
    key = f"{folder}habits-{world.token()}"
    keys = [key, f"{key}-\x0b", f"{key}-after"]
    try:
        return list(_habits(store, bucket, *keys))
    finally:
        store.delete(bucket, keys if bucket.startswith(S3) else [key, keys[-1]])


def _habits(store: ObjectStore, bucket: str, key: str, odd: str, after: str) -> Iterator[Habit]:
    before = store.put(bucket, key, b"before")
    if before == store.put(bucket, key, b"after!"):
        yield SAME_ETAG
    with suppress(ObjectChanged), store.reaching("read", bucket, key):
        store.bucket(bucket).read_if_match(key, before)
        yield READS_ANY
    store.put(bucket, after, b"")
    try:
        if [facts.key for page in store.pages(bucket, key, start_after=key) for facts in page] != [after]:
            yield LISTS_ALL
    except StoreRefused:
        yield LISTS_ALL
    if not bucket.startswith(S3):
        yield DELETES_ANY
        return
    with suppress(ObjectChanged):
        S3Requests(store.connection, bucket).delete(key, before)
        yield DELETES_ANY
    with suppress(StoreRefused):  # a store may refuse such keys
        store.put(bucket, odd, b"")
        if odd not in (facts.key for page in store.pages(bucket, f"{key}-") for facts in page):
            yield ALTERS_KEYS


@dataclass(frozen=True, slots=True)
class Habit:
    """What a store does otherwise than S3.

    Attributes:
        remedy: None if Drainmark itself makes up for it.
        is_fault: Drainmark cannot work with it.
    """

    what: str
    remedy: str | None = None
    is_fault: bool = False


LISTS_ALL = Habit("a listing that is to begin after a key begins elsewhere: none is taken", _ELSEWHERE, is_fault=True)
SAME_ETAG = Habit(
    "an object has the same ETag after its content changed: no change is noticed", _ELSEWHERE, is_fault=True
)
READS_ANY = Habit("it ignores If-Match when it reads: Drainmark compares the ETag of each answer itself")
DELETES_ANY = Habit(
    'it ignores If-Match when it deletes: with after="delete" or "move", an object that replaces a processed one just'
    " before the deletion is deleted unread",
    "give each new object a key of its own, or let the bucket keep versions",
)
ALTERS_KEYS = Habit(
    "it lists control characters in keys as other characters: a scan leaves out such objects, and names them",
    "put them under keys without control characters",
)
