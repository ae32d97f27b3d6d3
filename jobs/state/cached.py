"""Rows of a large state as Spark keeps them between groups, so that its files are decoded once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.kept_frames import kept
from jobs.protocol.manifest import StagedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PIECES = 8


@dataclass(frozen=True, slots=True)
class _Piece:
    frame: DataFrame
    size: int


@dataclass(slots=True)
class CachedRows:
    """Frames of a state's files, persisted: the image, and the changes as they came (design.md §3.4).

    Attributes:
        image, changes: files whose rows the pieces have; nothing where there are no pieces.
    """

    image: tuple[StagedFile, ...] = ()
    changes: tuple[StagedFile, ...] = ()
    pieces: list[_Piece] = field(default_factory=list)

    def rows(
        self,
        image: tuple[StagedFile, ...],
        changes: tuple[StagedFile, ...],
        read: Callable[[Sequence[StagedFile], Sequence[StagedFile]], DataFrame],
    ) -> DataFrame:
        """Return the rows of these files; what is new is read, the rest is there."""
        known = changes[: len(self.changes)] == self.changes and image == self.image and self.pieces
        if not known:
            self.release()
            self.pieces = [_Piece(kept(read(image, changes)), _size(image) + _size(changes))]
        elif new := changes[len(self.changes) :]:
            self.pieces.append(_Piece(kept(read((), new)), _size(new)))
        self.image, self.changes = image, changes
        if len(self.pieces) > _PIECES:
            self._join_last()
        return _union(piece.frame for piece in self.pieces)

    def _join_last(self) -> None:
        """Make one of the last pieces, and of those before them that are not larger: plans stay small, and a row is
        copied about as often as the state doubles."""
        first = len(self.pieces) - _PIECES // 2
        while first > 0 and self.pieces[first - 1].size <= _sum(self.pieces[first:]):
            first -= 1
        last = self.pieces[first:]
        whole = kept(_union(piece.frame for piece in last))
        whole.count()
        _let_go(last)
        self.pieces[first:] = [_Piece(whole, _sum(last))]

    def release(self) -> None:
        _let_go(self.pieces)
        self.pieces, self.image, self.changes = [], (), ()


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return functools.reduce(lambda some, others: some.unionByName(others), frames)


def _let_go(pieces: Iterable[_Piece]) -> None:
    for piece in pieces:
        with suppress(Exception):  # the session may be gone, and its memory with it
            piece.frame.unpersist()


def _sum(pieces: Iterable[_Piece]) -> int:
    return sum(piece.size for piece in pieces)


def _size(files: Iterable[StagedFile]) -> int:
    return sum(file.size for file in files)
