"""Rows of a large state as Spark keeps them between groups, so that its files are decoded once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.frames.kept import kept
from drainmark.jobs.protocol.records.manifest import StagedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PIECES = 8
_LEAST_PARTITION, _MOST_PARTITION = 1 << 20, 64 << 20
"""Bytes of files. Fewer rows are not worth a task, and more are too many for one."""


@dataclass(frozen=True, slots=True)
class _Piece:
    frame: DataFrame
    size: int


@dataclass(slots=True)
class CachedRows:
    """Frames of a state's files, persisted: the image, and the changes as they came.

    All pieces are partitioned alike, by the state's keys: a step by key over their union moves none of their rows.

    Attributes:
        keys: names of the key columns; without any, pieces are as they were read.
        image, changes: files whose rows the pieces have; nothing where there are no pieces.
        partitions: of every piece, chosen with the first.
    """

    keys: tuple[str, ...] = ()
    image: tuple[StagedFile, ...] = ()
    changes: tuple[StagedFile, ...] = ()
    pieces: list[_Piece] = field(default_factory=list)
    partitions: int = 0

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
            rows, size = read(image, changes), _size(image) + _size(changes)
            self.partitions = _partitions(rows.sparkSession, size) if self.keys else 0
            self.pieces = [_Piece(kept(self.laid_out(rows)), size)]
        elif new := changes[len(self.changes) :]:
            self.pieces.append(_Piece(kept(self.laid_out(read((), new))), _size(new)))
        self.image, self.changes = image, changes
        if len(self.pieces) > _PIECES:
            self._join_last()
        return _union(piece.frame for piece in self.pieces)

    def laid_out(self, rows: DataFrame) -> DataFrame:
        """Return rows with these keys, partitioned as the pieces are, where there are any."""
        if not self.partitions:
            return rows
        return rows.repartition(self.partitions, *(f"`{key}`" for key in self.keys))

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
        self.pieces, self.image, self.changes, self.partitions = [], (), (), 0


def _partitions(session: SparkSession, size: int) -> int:
    """Return how many partitions a state of so many bytes of files is kept in: as many as a shuffle has, in reason."""
    usual = int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    return max(1, min(usual, size // _LEAST_PARTITION), -(-size // _MOST_PARTITION))


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
