"""A rewind as a list of steps, built from its row: `reset` shows the steps, the owner carries them out; pure.

An owner that rolls a rewind forward has only the row, so the row holds everything that the steps need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, Replaced, StagedFile, TableRole
from drainmark.jobs.protocol.repairs import CopiedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """One commit that takes one table back.

    Attributes:
        to: the last id that stays.
        is_former: whether the code no longer declares the table; if it is gone or given away, the step is omitted.
        rows: number of rows that leave or change, None if not counted; only for display.
    """

    table: RegionTable
    to: int
    is_former: bool = False
    rows: int | None = field(default=None, compare=False)

    def counted(self, rows: int) -> TableStep:
        """Return the step with the number of rows that leave or change."""
        return replace(self, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLeave(TableStep):
    """The step of a table of rows: files with later ids leave, and their rows of earlier ids are written again.

    Attributes:
        restored: rows that come back, since the rows that replaced them leave.
    """

    restored: tuple[CopiedRows, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCut:
    """The files that leave a table of rows in a rewind to an id; used to count the rows and to remove them.

    Attributes:
        whole: files with rows of later ids only.
        straddling: files that also have rows of earlier ids, which are written again.
        leaving: both, in the order of the table.
    """

    whole: tuple[StagedFile, ...]
    straddling: tuple[StagedFile, ...]
    leaving: tuple[StagedFile, ...]


def cut_at(files: Sequence[StagedFile], to: int) -> TableCut:
    """Return the visible files that leave a table of rows in a rewind to an id."""
    leaving = tuple(file for file in files if (file.last_id or 0) > to)
    return TableCut(
        whole=tuple(file for file in leaving if (file.first_id or 0) > to),
        straddling=tuple(file for file in leaving if (file.first_id or 0) <= to),
        leaving=leaving,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysReturn(TableStep):
    """The step of an upsert table: each key that changed since gets its last row from the history, or leaves.

    Attributes:
        images: files of the history that are read in place of dropped changes.
        shown: the last id that the table shows, if it lags behind its history.
    """

    images: tuple[str, ...] = ()
    shown: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestReturns(TableStep):
    """The step of an overwritten table: the history's rows of the last id that stays replace all its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesLeave(TableStep):
    """The step of a sink outside Delta: rows, or files, of later ids are withdrawn.

    Attributes:
        restored: rows of the history that come back, since the rows that replaced them leave.
    """

    restored: tuple[CopiedRows, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggersReturn:
    """The last step: triggers of ids above `to` become pending again, in their old order.

    Attributes:
        lost: the ids, as (first, last), of triggers that are marked as missing instead.
        uris: of these triggers, in that order, () if not looked up; only for display.
    """

    to: int
    lost: tuple[tuple[int, int], ...] = ()
    uris: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """The contents of the row of a rewind.

    Attributes:
        to: the id to go back to.
        tables: all tables that it takes back, the declared ones first.
        former: names of those tables that the code no longer declares.
        restored: rows that come back, since the rows that replaced them leave.
        images: states written whole, which are read in place of dropped changes.
        lags: by visible table that is behind its history, the last id that it shows.
        lost: ids above `to`, as (first, last), whose input can never be read again.
    """

    to: int
    tables: tuple[RegionTable, ...]
    former: tuple[str, ...] = ()
    restored: tuple[Replaced, ...] = ()
    images: tuple[Image, ...] = ()
    lags: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[tuple[int, int], ...] = ()

    def to_detail(self) -> dict[str, Any]:
        """Return the values of the row; values that few rewinds have are None if they are empty."""
        return {
            "to": self.to,
            "tables": [table.to_json() for table in self.tables],
            "former": list(self.former) or None,
            "restored": [replaced.to_json() for replaced in self.restored] or None,
            "images": [image.to_json() for image in self.images] or None,
            "lags": dict(self.lags) or None,
            "lost": [list(run) for run in self.lost] or None,
        }

    @classmethod
    def from_row(cls, row: CheckpointRow) -> Rewind:
        detail: Mapping[str, Any] = row.detail
        return cls(
            to=int(detail["to"]),
            tables=tuple(RegionTable.from_json(value) for value in detail.get("tables") or ()),
            former=tuple(detail.get("former") or ()),
            restored=tuple(Replaced.from_json(value) for value in detail.get("restored") or ()),
            images=tuple(Image.from_json(value) for value in detail.get("images") or ()),
            lags=detail.get("lags") or {},
            lost=tuple((first, last) for first, last in detail.get("lost") or ()),
        )

    @property
    def table_steps(self) -> tuple[TableStep, ...]:
        """Return one step a table: visible tables first, while their histories still hold the rows that leave."""
        return tuple(self._step(table) for table in sorted(self.tables, key=lambda table: not table.is_derived))

    @property
    def steps(self) -> tuple[TableStep | TriggersReturn, ...]:
        """Return all steps in the order in which they are done."""
        return (*self.table_steps, TriggersReturn(to=self.to, lost=self.lost))

    def restored_to(self, name: str) -> tuple[CopiedRows, ...]:
        """Return the rows that come back to a table of rows."""
        found = ((part.ids, part.files.get(name)) for part in self.restored)
        return tuple(CopiedRows(ids=tuple(sorted(ids)), files=files) for ids, files in found if files)

    def _step(self, table: RegionTable) -> TableStep:
        is_former, history = table.name in self.former, table.history or ""
        if table.role is TableRole.OVERWRITE:
            return NewestReturns(table=table, to=self.to, is_former=is_former)
        if table.role is TableRole.COPY:
            restored = self.restored_to(history)
            return CopiesLeave(table=table, to=self.to, is_former=is_former, restored=restored)
        if table.role is TableRole.UPSERT:
            images = tuple(file.path for image in self.images if image.table == history for file in image.files)
            shown = self.lags.get(table.name)
            return KeysReturn(table=table, to=self.to, is_former=is_former, images=images, shown=shown)
        return RowsLeave(table=table, to=self.to, is_former=is_former, restored=self.restored_to(table.name))
