"""A group's input: links that we name, identities before and after, paths by id (H22, H24)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from jobs.errors import InputChanged, InputMissing
from jobs.protocol.triggers import Trigger
from jobs.runtime.scanning import identity_key, identity_of, path_of

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


class Inbox:
    """The folder of links through which Spark reads a group; the id is the name, so odd names are harmless."""

    def __init__(self, folder: Path, group: Group) -> None:
        self.folder = folder
        self.group = group

    def link(self) -> None:
        """Make one link a file.

        Raises:
            InputMissing, InputChanged: a file is not what was scanned.
        """
        self.check()
        for output in {member.trigger.output for member in self.group.members}:
            self.output_folder(output).mkdir(parents=True, exist_ok=True)
        for member in self.group.members:
            path = path_of(member.trigger.uri)
            link = self.output_folder(member.trigger.output) / f"{member.sequence_id:019d}{_extension(path)}"
            os.symlink(os.path.abspath(path), link)

    def output_folder(self, output: str) -> Path:
        return self.folder / (output or "all")

    def files_of(self, output: str) -> int:
        return sum(1 for member in self.group.members if member.trigger.output == output)

    def check(self) -> None:
        """Compare every file with its identity at the scan; called before and after reading.

        Raises:
            InputMissing, InputChanged: name the file and the trigger.
        """
        for member in self.group.members:
            trigger = member.trigger
            try:
                facts = os.stat(path_of(trigger.uri))
            except OSError as error:
                msg = f"{trigger.uri} was scanned and cannot be read any more: {error.strerror}"
                remedy = _SKIP.format(trigger.region, trigger.uri)
                raise InputMissing(msg, remedy=remedy, triggers=(trigger,)) from error
            if identity_key(identity_of(facts)) != trigger.identity_key:
                msg = f"{trigger.uri} is not the file that was scanned: it changed since"
                raise InputChanged(msg, remedy="it is scanned anew; write files elsewhere and rename them into place",
                                   triggers=(trigger,))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


_SKIP = "put it back, or: drainmark skip {} --file '{}' --reason '…'"


def paths_by_id(members: Sequence[Assigned]) -> str:
    """Return the uris of a group joined by NUL, which no name contains."""
    return "\0".join(member.trigger.uri for member in members)


def _extension(path: str) -> str:
    """Return what Spark must see of the name: the ending of a compressed file."""
    suffix = PurePosixPath(path).suffix.lower()
    return suffix if suffix in (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst") else ".data"
