"""Probes of a store: what Drainmark relies on, tried on objects of its own in a bucket that is to hold tables."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectChanged, StoreRefused, StoreUnavailable
from drainmark.jobs.tasks.buckets import can_be_named
from drainmark.resources.storage.object_errors import AGAIN
from drainmark.resources.storage.object_store import ObjectStore

_RACES, _WRITERS, _SECONDS = 8, 16, 3.0
"""Races of so many writers, and the seconds after which no further race begins: such a store lets writers wait for each
other. S3Mock, which checks first and writes later, fails in every second race."""

_ELSEWHERE = "use a store with conditional writes (AWS, MinIO, R2, Ceph); docs/how-to/s3.md says what a store must keep"


def require_one_winner(store: ObjectStore, bucket: str, folder: str) -> None:
    """Let writers race to put the same objects, and check that for each object one succeeds, and the others are told.

    They put by the client of this process, and by that of tasks, which sends the same requests as `deltalake`. One put
    after the other would show less: a store that checks first and writes later refuses the second of them.

    Args:
        folder: below which the objects are, with a slash at its end; they are deleted again.

    Raises:
        StoreRefused: two writers succeeded for one object, or one succeeded and another's content is there.
        StoreUnavailable: the store does not answer.
    """
    race = _Race(store, bucket, [f"{folder}put-if-absent-{world.token()}" for _ in range(_RACES)])
    try:
        if race.has_one_winner_each():
            return
    finally:
        store.delete(bucket, race.keys)
    msg = f"the store of s3://{bucket}/{folder} lets several writers put one object in spite of If-None-Match"
    raise StoreRefused(f"{msg}: two owners could both commit", remedy=_ELSEWHERE)


@dataclass(frozen=True, slots=True)
class _Race:
    store: ObjectStore
    bucket: str
    keys: Sequence[str]

    def has_one_winner_each(self) -> bool:
        until = world.monotonic() + _SECONDS
        writers = [self.by_us, self.by_tasks] if can_be_named(self.keys[0]) else [self.by_us]  # pushes need no tasks
        first = [b"first"] if writers[-1](self.keys[0], b"first") else []  # this race is lost before it begins
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="race") as pool:
            for number, key in enumerate(self.keys):
                if world.monotonic() > until:
                    break
                together = threading.Barrier(_WRITERS)
                put = [pool.submit(_put, writers[each % len(writers)], key, each, together) for each in range(_WRITERS)]
                winners = [*(first if not number else []), *itertools.chain(*(each.result() for each in put))]
                if winners and winners != [self.store.get(self.bucket, key)]:  # none, if the winner's reply was lost
                    return False
        return True

    def by_us(self, key: str, content: bytes) -> bool:
        try:
            self.store.put(self.bucket, key, content, if_absent=True)
        except ObjectChanged:
            return False
        return True

    def by_tasks(self, key: str, content: bytes) -> bool:
        try:
            return self.store.bucket(self.bucket).put_absent(key, content)
        except OSError as error:
            raise StoreUnavailable(f"cannot write s3://{self.bucket}/{key}: {error}", remedy=AGAIN) from None


def _put(writer: Callable[[str, bytes], bool], key: str, number: int, together: threading.Barrier) -> list[bytes]:
    """Put an object at the same time as the others; return its content if it was put, else nothing."""
    content = str(number).encode()
    together.wait()
    return [content] if writer(key, content) else []


def habits(store: ObjectStore, bucket: str, folder: str) -> list[Habit]:
    """Return what a store does otherwise than S3, and what this means; [] for nothing. No object is left.

    Args:
        folder: below which objects are put, with a slash at its end.

    Raises:
        StoreRefused, StoreUnavailable: the store does not answer.
    """
    key, found = f"{folder}habits-{world.token()}", []
    odd = f"{key}-\x0b"
    client, translating = store.connection.client, store.connection.translating
    try:
        before = store.put(bucket, key, b"before")
        if before == store.put(bucket, key, b"after!"):
            found.append(SAME_ETAG)
        for habit, ask in ((READS_ANY, client.get_object), (DELETES_ANY, client.delete_object)):
            with suppress(ObjectChanged), translating("ask for", bucket, key):
                ask(Bucket=bucket, Key=key, IfMatch=f'"{before}"')
                found.append(habit)
        with suppress(StoreRefused):  # a store may refuse such keys
            store.put(bucket, odd, b"")
            if odd not in (facts.key for page in store.pages(bucket, f"{key}-") for facts in page):
                found.append(ALTERS_KEYS)
    finally:
        store.delete(bucket, [key, odd])
    return found


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
