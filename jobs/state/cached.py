"""Rows of a large state as Spark keeps them between groups, so that its files are decoded once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.protocol.manifest import StagedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PIECES = 8


@dataclass(slots=True)
class CachedRows:
    """Frames of a state's files, persisted: the image, and the changes as they came (design.md §3.4).

    Attributes:
        image, changes: files whose rows the pieces have; nothing where there are no pieces.
    """

    image: tuple[StagedFile, ...] = ()
    changes: tuple[StagedFile, ...] = ()
    pieces: list[DataFrame] = field(default_factory=list)

    def rows(
        self,
        image: tuple[StagedFile, ...],
        changes: tuple[StagedFile, ...],
        read: Callable[[Sequence[StagedFile], Sequence[StagedFile]], DataFrame],
    ) -> DataFrame:
        """Return the rows of these files; what is new is read, the rest is there.

        Many pieces are made one again, so that plans stay small; the pieces before that are what it is computed of.
        """
        known = changes[: len(self.changes)] == self.changes and image == self.image and self.pieces
        if not known:
            self.release()
            self.pieces = [read(image, changes).persist()]
        elif new := changes[len(self.changes) :]:
            self.pieces.append(read((), new).persist())
        self.image, self.changes = image, changes
        rows = functools.reduce(lambda some, others: some.unionByName(others), self.pieces)
        if len(self.pieces) > _PIECES:
            whole = rows.persist()
            whole.count()
            self._drop()
            self.pieces, rows = [whole], whole
        return rows

    def release(self) -> None:
        self._drop()
        self.image, self.changes = (), ()

    def _drop(self) -> None:
        for piece in self.pieces:
            with suppress(Exception):  # the session may be gone, and its memory with it
                piece.unpersist()
        self.pieces = []
