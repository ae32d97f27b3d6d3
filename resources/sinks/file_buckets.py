"""A prefix of a bucket that several owners may try to write to; files that an earlier owner puts late are deleted.

A put is atomic, but no store offers a put that a later owner can refuse. So an owner looks for the marks of later
epochs before each put and once more after its last put. A rewind notes the withdrawn ids *before* it deletes their
files. A late put either comes before the rewind lists the files, so the rewind deletes it; or its owner finds the note
when it looks again, and deletes the file itself. If that process dies in between, the next owner deletes the file.

Objects below `_drainmark/` are written once and never changed: `epochs/<epoch>`, `applied/<version>`,
`withdrawn/<ids>`; and the files that tasks write for an owner, in `staged/<epoch>-<uuid>/`, which the owner copies.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, ObjectChanged, ObjectMissing, StoreUnavailable
from drainmark.jobs.tasks import places
from drainmark.resources.storage.object_store import ObjectStore

CONTROL = "_drainmark"
STAGED = "staged"
ASIDE = "aside"
_KEPT_NOTES = 2


@dataclass(frozen=True, slots=True)
class BucketTarget:
    """A prefix of a bucket as the target of a sink.

    Attributes:
        id_in: returns the id in the name of a file, None if the name is not one of the sink's.
    """

    store: ObjectStore
    bucket: str
    prefix: str
    id_in: Callable[[str], int | None]

    @property
    def uri(self) -> str:
        return f"{self.bucket}/{self.prefix}"

    def names(self) -> Iterator[str]:
        """Yield the names of files, and of folders with objects: some stores still list folders that are empty."""
        root, last = self.key(""), ""
        for page in self.store.pages(self.bucket, root):
            for facts in page:
                name = facts.key.removeprefix(root).partition("/")[0]
                if name not in ("", CONTROL, last) and not facts.key.endswith("/"):
                    yield name
                    last = name

    def get(self, name: str) -> bytes:
        return self.store.get(self.bucket, self.key(name))

    def note(self) -> dict[str, Any] | None:
        versions = self.listed("applied")
        if not versions:
            return None
        try:
            found: dict[str, Any] = json.loads(self.get(f"{CONTROL}/applied/{versions[-1]}"))
        except ObjectMissing:  # a writer of newer notes deleted it after the listing
            return self.note()
        return found

    def begin(self, note: dict[str, Any]) -> None:
        with contextlib.suppress(ObjectChanged):  # another process was faster: its note counts
            self.put_note(note)

    def newest_epoch(self) -> int:
        return int(max(self.listed("epochs"), default="0"))

    @contextlib.contextmanager
    def writing(self, epoch: int) -> Iterator[BucketWriting]:
        """Yield the puts and deletes of an owner, after the leftovers of earlier owners are deleted."""
        self.put(f"{CONTROL}/epochs/{epoch:010d}", b"")
        writing = BucketWriting(at=self, epoch=epoch, staged=f"{CONTROL}/{STAGED}/{epoch}-{world.token()}")
        writing.require_last()
        self.sweep(epoch)
        try:
            yield writing
        finally:
            writing.discard_staged()

    # --- internals -------------------------------------------------------------------------------------------------

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def put(self, name: str, data: bytes, *, if_absent: bool = False) -> None:
        self.store.put(self.bucket, self.key(name), data, if_absent=if_absent)

    def put_note(self, note: dict[str, Any]) -> None:
        data = json.dumps(note).encode()
        self.put(f"{CONTROL}/applied/{note['version']:020d}", data, if_absent=note["version"] == 0)

    def listed(self, kind: str) -> list[str]:
        """Return the names of notes or marks in ascending order."""
        return sorted(self.store.names(self.bucket, self.key(f"{CONTROL}/{kind}/")))

    def withdrawn(self) -> Callable[[str], bool]:
        """Return a function that says whether the id of a name was withdrawn."""
        spans = [tuple(map(int, name.split("-"))) for name in self.listed("withdrawn")]

        def is_withdrawn(name: str) -> bool:
            number = self.id_in(name)
            return number is not None and any(first <= number <= last for first, last in spans)

        return is_withdrawn

    def forget_aside(self) -> None:
        self.delete([f"{CONTROL}/{ASIDE}"])

    def sweep(self, epoch: int) -> None:
        """Delete files of withdrawn ids that a dead process put late, and files that earlier owners staged."""
        kinds = set(self.store.names(self.bucket, self.key(f"{CONTROL}/")))
        if "withdrawn" in kinds:
            self.delete(list(filter(self.withdrawn(), self.names())))
        staged = self.listed(STAGED) if STAGED in kinds else []
        self.delete([f"{CONTROL}/{STAGED}/{name}" for name in staged if int(name.partition("-")[0]) < epoch])

    def keys(self, names: Collection[str]) -> list[str]:
        """Return the keys of files, or of all objects in folders, by name."""
        return [
            facts.key
            for name in names
            for page in self.store.pages(self.bucket, self.key(name))
            for facts in page
            if facts.key == self.key(name) or facts.key.startswith(f"{self.key(name)}/")
        ]

    def delete(self, names: Collection[str]) -> None:
        """Delete files, or all objects in folders, by name."""
        self.store.delete(self.bucket, self.keys(names))


@dataclass(slots=True, kw_only=True)
class BucketWriting:
    """The puts and deletes of one owner.

    Attributes:
        staged: folder below the prefix to which tasks write.
    """

    at: BucketTarget
    epoch: int
    staged: str
    _brought: list[str] = field(default_factory=list)
    _is_staged: bool = False

    def staging(self) -> places.BucketPlace:
        self._is_staged = True
        return places.BucketPlace(self.at.store.bucket(self.at.bucket), self.at.key(self.staged))

    def bring(self, staged: str, name: str, inside: str | None) -> None:
        self.require_last()
        self._brought.append(name)
        at, target = self.at, f"{name}/{inside}" if inside else name
        at.store.copy(at.bucket, at.key(f"{self.staged}/{staged}"), at.bucket, at.key(target))

    def discard_staged(self) -> None:
        """Delete the files that tasks wrote; if the store does not answer, the next owner does it."""
        with contextlib.suppress(StoreUnavailable):
            self.at.delete([self.staged] if self._is_staged else [])

    def put(self, name: str, inside: str | None, data: bytes) -> None:
        self.require_last()
        self._brought.append(name)
        self.at.put(f"{name}/{inside}" if inside else name, data)

    def replace(self, name: str, inside: str | None, data: bytes) -> None:
        self.require_last()
        self.at.put(f"{name}/{inside}" if inside else name, data)

    def withdraw(self, first: int, last: int, find: Callable[[], Collection[str]]) -> None:
        self.require_last()
        if first <= last:
            self.at.put(f"{CONTROL}/withdrawn/{first:020d}-{last:020d}", b"")
        self.at.delete(find())

    def readmit(self, ids: Collection[int]) -> None:
        """Note the other ids of each span of withdrawn ids before its note is deleted, so that `sweep` keeps these."""
        self.require_last()
        for name in self.at.listed("withdrawn"):
            first, last = map(int, name.split("-"))
            back = sorted(number for number in ids if first <= number <= last)
            edges = [first - 1, *back, last + 1]
            for before, after in itertools.pairwise(edges) if back else ():
                if before + 1 < after:
                    self.at.put(f"{CONTROL}/withdrawn/{before + 1:020d}-{after - 1:020d}", b"")
            if back:
                self.at.delete([f"{CONTROL}/withdrawn/{name}"])

    def set_aside(self, names: Collection[str]) -> None:
        self.require_last()
        at, aside = self.at, f"{CONTROL}/{ASIDE}/{world.token()[:8]}"
        for key in at.keys(names):
            at.store.copy(at.bucket, key, at.bucket, at.key(f"{aside}/{key.removeprefix(at.key(''))}"))
        at.delete(names)

    def finish(self, note: dict[str, Any]) -> None:
        """Look for later epochs once more, write the note of the version, and delete old notes."""
        self.require_last()
        self.at.put_note(note)
        old = self.at.listed("applied")[:-_KEPT_NOTES]
        self.at.delete([f"{CONTROL}/applied/{name}" for name in old])

    def require_last(self) -> None:
        """Check that there is no later owner; if there is one, delete our files of withdrawn ids.

        Raises:
            Fenced: there is a later owner.
        """
        newest = int(self.at.listed("epochs")[-1])
        if newest <= self.epoch:
            return
        is_withdrawn = self.at.withdrawn()
        self.at.delete([name for name in self._brought if is_withdrawn(name)])
        raise Fenced(f"an owner of epoch {newest} writes to {self.at.uri}", epoch=newest)
