"""The inbox of a group: files under our own names, paths by id, checks of identities before and after reading."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from drainmark.jobs.errors.environment import ClusterRefused
from drainmark.jobs.formats.lines.line_format import PLAIN
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.outside import Inputs
from drainmark.jobs.tasks.buckets import StoredObject

_GZIP_RATIO = 10
_ASIDE = "_aside"
_OWN_PARSER = "needs Spark's own parser, by its format or its options, and Spark does not read buckets here"


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
    """The folder through which Spark reads a group; the id is the name of each file, so odd names are harmless.

    Each entry is a link to a local file, or a copy of an object.

    Attributes:
        objects: by id, objects that tasks fetch themselves; the folder has copies only of those that were needed here.
        addresses: by id, paths of the objects that Spark reads in place; the folder has no entry for them.
        follow_links: the source treats a symbolic link as the file that it leads to.
    """

    def __init__(self, folder: Path, group: Group, inputs: Inputs, *, follow_links: bool = False) -> None:
        self.folder = folder
        self.group = group
        self.inputs = inputs
        self.follow_links = follow_links
        self.objects: dict[int, StoredObject] = {}
        self.addresses: dict[int, str] = {}

    def fill(self, *, by_tasks: bool = False, here: bool = True) -> None:
        """Make every file of the group readable at its `path`.

        Args:
            by_tasks: leave objects where they are if tasks can fetch them.
            here: Spark can read the files in this folder.

        Raises:
            InputMissing, InputChanged: a file is gone, or has changed since the scan.
            ClusterRefused: Spark cannot reach a file.
        """
        for output in {member.trigger.output for member in self.group.members}:
            self.output_folder(output).mkdir(parents=True, exist_ok=True)
        members = self.group.members
        if by_tasks:
            stored = self.inputs.stored([member.trigger for member in members])
            self.objects = {members[index].sequence_id: found for index, found in stored.items()}
        others = [member for member in members if member.sequence_id not in self.objects]
        if others and not here:
            raise not_readable(others[0], "is read through DRAINMARK_HOME, which the executors do not share")
        self._place(others)

    def require_readable(self, members: Sequence[Assigned], *, here: bool) -> None:
        """Make objects that tasks fetched readable for Spark: in place if possible, else at their `path`.

        Args:
            here: Spark can read the files in this folder.

        Raises:
            InputMissing, InputChanged: an object is gone, or has changed since the scan.
            ClusterRefused: Spark cannot read an object at all.
        """
        wanted = [member for member in members if member.sequence_id in self.objects and not self._has_copy(member)]
        found = self.inputs.in_place([member.trigger for member in wanted]) if wanted else {}
        self.addresses.update((wanted[index].sequence_id, address) for index, address in found.items())
        left = [member for member in wanted if not self.is_in_place(member)]
        if left and not here:
            raise not_readable(left[0], _OWN_PARSER)
        self._place(left)

    def fetch(self, member: Assigned) -> None:
        """Make an object that has an address readable at its `path`, like the others.

        Raises:
            InputMissing, InputChanged: the object is gone, or has changed since the scan.
        """
        del self.addresses[member.sequence_id]
        self._place([member])

    def _place(self, members: Iterable[Assigned]) -> None:
        wanted = [(member.trigger, self.path(member)) for member in members]
        self.inputs.place(wanted, follow_links=self.follow_links)

    def _has_copy(self, member: Assigned) -> bool:
        return self.is_in_place(member) or self.path(member).with_suffix(PLAIN).exists() or self.path(member).exists()

    def path(self, member: Assigned) -> Path:
        """Return the path of a member's file on this machine, unless the file has an address."""
        return self.output_folder(member.trigger.output) / f"{member.sequence_id:019d}{ending_of(member.trigger.uri)}"

    def is_in_place(self, member: Assigned) -> bool:
        """Does Spark read a member's object in place?"""
        return member.sequence_id in self.addresses

    def scanned(self, member: Assigned) -> Path:
        """Return the path of a member's file with the content that was scanned, if the folder ever had it."""
        original = self.original(member)
        return original if original.exists() else self.path(member)

    def output_folder(self, output: str) -> Path:
        return self.folder / (output or "all")

    def original(self, member: Assigned) -> Path:
        """Return the path of a member's file after it was put aside."""
        return self.folder / _ASIDE / self.path(member).name

    def put_aside(self, member: Assigned, cleaned: Path | None = None) -> None:
        """Hide a file, or the copy in its place, from Spark; if a cleaned copy is given, Spark reads that instead."""
        path, original = self.path(member), self.original(member)
        if member.sequence_id in self.objects or os.path.lexists(original):
            path.with_suffix(PLAIN).unlink(missing_ok=True)
            if member.sequence_id in self.objects:
                path.unlink(missing_ok=True)
        else:
            original.parent.mkdir(exist_ok=True)
            os.replace(path, original)
        if cleaned is not None:
            os.replace(cleaned, path.with_suffix(PLAIN))

    def read_copy(self, member: Assigned, uri: str) -> None:
        """Let Spark read a copy of a file from a bucket.

        Raises:
            ClusterRefused: Spark cannot reach the copy.
        """
        address = self.inputs.readable(uri)
        if address is None:
            raise not_readable(member, _OWN_PARSER)
        self.addresses[member.sequence_id] = address

    def check(self) -> None:
        """After reading, compare every file with its identity at the scan; a copy of an object cannot change.

        Raises:
            InputMissing, InputChanged: a file is gone or changed; the error names the file and the trigger.
        """
        read = [m for m in self.group.members if self.is_in_place(m) or not is_object(m.trigger.uri)]
        self.inputs.check([member.trigger for member in read], follow_links=self.follow_links)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def paths_by_id(members: Sequence[Assigned]) -> str:
    """Return the uris from the first id to the last, joined by NUL, which no name contains; "" for a missing id."""
    uris = {member.sequence_id: member.trigger.uri for member in members}
    return "\0".join(uris.get(number, "") for number in range(min(uris), max(uris) + 1)) if uris else ""


def not_readable(member: Assigned, why: str) -> ClusterRefused:
    """Return the error for a file that Spark cannot reach."""
    trigger = member.trigger
    return ClusterRefused(
        f"{trigger.uri} {why}",
        remedy="give the cluster Spark's S3 connector (docs/how-to/s3.md), or DRAINMARK_HOME on a shared folder",
    )


def ending_of(uri: str) -> str:
    """Return the ending that Spark must see: that of a compressed file, else `PLAIN`."""
    suffix = PurePosixPath(uri).suffix.lower()
    return suffix if suffix in (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst") else PLAIN
