"""What Spark reads and writes of a folder: files on this machine, whether or not the folder is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


class Copies(ABC):
    """The places on this machine of a folder's files."""

    @abstractmethod
    def local(self, path: str) -> Path:
        """Return the place on this machine for a file or folder that Spark is to write; `push` makes it part of here.

        Its parents exist, itself it does not have to.
        """

    @abstractmethod
    def push(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Make files that were written at their `local` place files of this folder; return the marks of those that get
        others by that."""

    @abstractmethod
    def fetch(self, paths: Sequence[str]) -> list[Path]:
        """Return local paths at which Spark can read the files."""

    @abstractmethod
    def keep(self, paths: Iterable[str]) -> None:
        """Delete the local copies of all files but these; a folder that is local has none."""


class InPlace(Copies):
    """The files of a folder on this machine, which are no copies.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def local(self, path: str) -> Path:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def push(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Do nothing: the local place is the place."""
        return {}

    def fetch(self, paths: Sequence[str]) -> list[Path]:
        return [self.folder / path for path in paths]

    def keep(self, paths: Iterable[str]) -> None:
        """Nothing to do: there are no copies."""
