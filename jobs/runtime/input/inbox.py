"""The inbox of a group: files and parts of slices under our own names, paths by id, checks before and after reading."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.formats.lines.content import OTHER_COMPRESSIONS, PLAIN
from drainmark.jobs.operators.sources.files.file_source import SlicePart
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.tasks.buckets import StoredObject

if TYPE_CHECKING:
    from drainmark.resources.inputs.inputs import Inputs

_GZIP_RATIO = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A trigger with the sequence id of this attempt."""

    sequence_id: int
    trigger: Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Consecutive triggers that are processed together and committed at once.

    Attributes:
        members: in the order of their ids; ids have no gap, except if files of slices were skipped.
        attempt: uuid, never used twice.
    """

    members: tuple[Assigned, ...]
    epoch: int
    attempt: str

    @property
    def first_id(self) -> int:
        return self.members[0].sequence_id

    @property
    def last_id(self) -> int:
        return self.members[-1].sequence_id

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        return tuple(member.trigger for member in self.members)

    @property
    def tag(self) -> str:
        """Return what marks the attempt's Spark jobs, so that a time-out can cancel them."""
        return f"drainmark-{self.attempt}"

    @property
    def bytes_to_read(self) -> int:
        """Return an estimate of the bytes after decompression."""
        return sum(
            member.trigger.size_bytes * (_GZIP_RATIO if member.trigger.uri.endswith((".gz", ".zst", ".bz2")) else 1)
            for member in self.members
        )

    def member(self, sequence_id: int) -> Assigned:
        """Return a member by its id; ids have gaps if files of slices were skipped."""
        index = sequence_id - self.first_id
        if index < len(self.members) and self.members[index].sequence_id == sequence_id:
            return self.members[index]
        return next(member for member in self.members if member.sequence_id == sequence_id)


class GroupInbox:
    """The folder through which a group is read; the id is the name of each file, so odd names are harmless.

    Each entry is a link to a local file, or a copy of an object.

    Attributes:
        objects: by id, objects that tasks fetch themselves; the folder has no entry for them.
        follow_links: the source treats a symbolic link as the file that it leads to.
    """

    def __init__(self, folder: Path, group: Group, inputs: Inputs | PartInputs, *, follow_links: bool = False) -> None:
        self.folder = folder
        self.group = group
        self.inputs = inputs
        self.follow_links = follow_links
        self.objects: dict[int, StoredObject] = {}

    def fill(self, *, by_tasks: bool = False, here: bool = True) -> None:
        """Make every file of the group readable at its `path`.

        Args:
            by_tasks: leave objects where they are if tasks can fetch them.
            here: tasks can read the files in this folder.

        Raises:
            InputMissing, InputChanged: a file is gone, or has changed since the scan.
            ClusterRefused: tasks cannot reach a file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        members = self.group.members
        if by_tasks:
            stored = self.inputs.stored([member.trigger for member in members])
            self.objects = {members[index].sequence_id: found for index, found in stored.items()}
        others = [member for member in members if member.sequence_id not in self.objects]
        if others and not here:
            raise _out_of_reach(others[0].trigger.uri)
        wanted = [(member.trigger, self.path(member)) for member in others]
        self.inputs.place(wanted, follow_links=self.follow_links)

    def path(self, member: Assigned) -> Path:
        """Return the path of a member's file on this machine."""
        return self.folder / f"{member.sequence_id:019d}{ending_of(member.trigger.uri)}"

    def check(self) -> None:
        """After reading, compare every file with its identity at the scan; a copy of an object cannot change.

        Raises:
            InputMissing, InputChanged: a file is gone or changed; the error names the file and the trigger.
        """
        read = [member.trigger for member in self.group.members if not is_object(member.trigger.uri)]
        self.inputs.check(read, follow_links=self.follow_links)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _out_of_reach(uri: str) -> ClusterRefused:
    why, elsewhere = "is read", "the files into a bucket (docs/how-to/s3.md)"
    if is_object(uri):
        why = "has a key with an empty part, `.`, `..` or a control character, which no task can name, so it is read"
        elsewhere = "a copy of the object under another key, and skip this one"
    msg = f"{uri} {why} through DRAINMARK_HOME, which the executors do not share"
    return ClusterRefused(msg, remedy=f"put DRAINMARK_HOME on a shared folder, or {elsewhere}")


def paths_by_id(members: Sequence[Assigned]) -> str:
    """Return the uris from the first id to the last, joined by NUL, which no name contains; "" for a missing id."""
    uris = {member.sequence_id: member.trigger.uri for member in members}
    return "\0".join(uris.get(number, "") for number in range(min(uris), max(uris) + 1)) if uris else ""


def ending_of(uri: str) -> str:
    """Return the ending that tells how a file is compressed, `PLAIN` if it is not."""
    suffix = PurePosixPath(uri).suffix.lower()
    return suffix if suffix in (".gz", ".bz2", ".zst", *OTHER_COMPRESSIONS) else PLAIN


class PartInputs:
    """The parts of slices, read by a group as files are (`resources.inputs.inputs.Inputs`).

    Attributes:
        digests: by place of a part, the digest of its bytes, once it was placed or tasks read it.
        range_bytes: tasks read a larger part in ranges of so many bytes.
    """

    def __init__(self, parts: Sequence[SlicePart], range_bytes: int) -> None:
        self._parts = parts
        self.range_bytes = range_bytes
        self.digests: dict[int, str] = {}

    def place(self, wanted: Sequence[tuple[Trigger, Path]], *, follow_links: bool = False) -> None:
        for trigger, path in wanted:
            self._parts[trigger.order_index].place(path)
            self.digests[trigger.order_index] = digest_of(path)

    def stored(self, triggers: Sequence[Trigger]) -> Mapping[int, StoredObject]:
        found = ((index, self._parts[trigger.order_index].stored) for index, trigger in enumerate(triggers))
        return {index: stored for index, stored in found if stored is not None}

    def check(self, triggers: Sequence[Trigger], *, follow_links: bool = False) -> None:
        for trigger in triggers:
            self._parts[trigger.order_index].check()


def digest_of(path: Path) -> str:
    """Return the digest of a file's bytes; `file_ranges.DigestTask` gives the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]
