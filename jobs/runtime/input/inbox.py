"""A group's input: files under names of ours, identities before and after, paths by id."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from drainmark.jobs.formats.inspection import PLAIN
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.outside import Inputs

_GZIP_RATIO = 10
PARSED_FOLDER = "_parsed"
_ASIDE = "_aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A trigger with the sequence id of this attempt."""

    sequence_id: int
    trigger: Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Consecutive triggers that are processed together and committed at once.

    Attributes:
        members: in id order, ids without a gap.
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
        return self.members[sequence_id - self.first_id]


class GroupInbox:
    """The folder through which Spark reads a group; the id is the name of each file, so odd names are harmless.

    What lies there is a link to a local file, or the copy of an object.

    Attributes:
        addresses: by id, paths of the objects that Spark reads where they are; nothing lies here for them.
        follow_links: the source takes symbolic links as the files that they lead to.
    """

    def __init__(self, folder: Path, group: Group, inputs: Inputs, *, follow_links: bool = False) -> None:
        self.folder = folder
        self.group = group
        self.inputs = inputs
        self.follow_links = follow_links
        self.addresses: dict[int, str] = {}

    def fill(self, *, in_place: bool = False) -> None:
        """Make every file of the group readable at its `path`.

        Args:
            in_place: leave objects where they are if Spark can read them there.

        Raises:
            InputMissing, InputChanged: a file is not what was scanned.
        """
        for output in {member.trigger.output for member in self.group.members}:
            self.output_folder(output).mkdir(parents=True, exist_ok=True)
        members = self.group.members
        found = self.inputs.in_place([member.trigger for member in members]) if in_place else {}
        self.addresses = {members[index].sequence_id: address for index, address in found.items()}
        placed = [(member.trigger, self.path(member)) for member in self._placed()]
        self.inputs.place(placed, follow_links=self.follow_links)

    def fetch(self, member: Assigned) -> None:
        """Make an object that has an address readable at its `path`, as the others are.

        Raises:
            InputMissing, InputChanged: it is not what was scanned.
        """
        del self.addresses[member.sequence_id]
        self.inputs.place([(member.trigger, self.path(member))], follow_links=self.follow_links)

    def _placed(self) -> Iterator[Assigned]:
        return (member for member in self.group.members if member.sequence_id not in self.addresses)

    def path(self, member: Assigned) -> Path:
        """Return where a member's file can be read on this machine, unless it has an address."""
        return self.output_folder(member.trigger.output) / f"{member.sequence_id:019d}{_extension(member.trigger.uri)}"

    def is_in_place(self, member: Assigned) -> bool:
        """Does Spark read a member's object where it is?"""
        return member.sequence_id in self.addresses

    def scanned(self, member: Assigned) -> Path | None:
        """Return where a member's file is as it was scanned, None where it is not on this machine."""
        if self.is_in_place(member):
            return None
        original = self.original(member)
        return original if original.exists() else self.path(member)

    def output_folder(self, output: str) -> Path:
        return self.folder / (output or "all")

    def original(self, member: Assigned) -> Path:
        """Return where a member's file is once it was put aside."""
        return self.folder / _ASIDE / self.path(member).name

    def put_aside(self, member: Assigned, cleaned: Path | None = None) -> None:
        """Hide a file from Spark, which reads the cleaned copy in its place, if there is one."""
        self.original(member).parent.mkdir(exist_ok=True)
        os.replace(self.path(member), self.original(member))
        if cleaned is not None:
            os.replace(cleaned, self.path(member).with_suffix(PLAIN))

    def check(self) -> None:
        """Compare every file with its identity at the scan, after reading; a copy of an object is what was scanned.

        Raises:
            InputMissing, InputChanged: name the file and the trigger.
        """
        copies = {member.sequence_id for member in self._placed() if is_object(member.trigger.uri)}
        others = [member.trigger for member in self.group.members if member.sequence_id not in copies]
        self.inputs.check(others, follow_links=self.follow_links)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def paths_by_id(members: Sequence[Assigned]) -> str:
    """Return the uris of a group joined by NUL, which no name contains."""
    return "\0".join(member.trigger.uri for member in members)


def _extension(uri: str) -> str:
    """Return what Spark must see of the name: the ending of a compressed file."""
    suffix = PurePosixPath(uri).suffix.lower()
    return suffix if suffix in (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst") else PLAIN
