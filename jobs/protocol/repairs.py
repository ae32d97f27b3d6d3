"""Changes by others to a table of a region, and the one commit that repairs it; pure (docs/how-to/repair.md).

A table of rows consists of files that never change, so a repair shows its earlier files again. If such a file is gone,
the repair shows the files that checkpoint rows name for its ids. A visible table is rebuilt from its history if that is
not enough. An id is lost if some of its rows exist nowhere: the region keeps halting until a rewind goes below it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.protocol.records.ids import split_txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersions:
    """The Delta version of a table, and the newest `txnVersion` of its region; None before its first commit."""

    delta: int
    txn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVersions:
    """The versions of a table that the checkpoint table of its region knows.

    Attributes:
        noted: Delta version of the newest publish that is noted; None before the first note.
        least: `txnVersion` that the table must have, because the newest published group has rows for it; else 0.
        epochs: returns whether the region claimed an epoch.
        has: returns whether a row of an epoch and an id may have been committed to the table.
    """

    noted: int | None
    least: int
    epochs: Callable[[int], bool]
    has: Callable[[int, int], bool]

    def other_copy(self, found: TableVersions) -> str:
        """Say why a table with these versions is another copy than the one that the region made; "" if it is not."""
        if self.noted is not None and found.delta < self.noted:
            return f"is at version {found.delta}, but was at {self.noted}: was an older copy restored?"
        if (found.txn or 0) < self.least:
            return f"lacks the rows of id {split_txn_version(self.least)[1]}: was an older copy restored?"
        epoch, number = split_txn_version(found.txn or 0)  # without an id, a commit only keeps older epochs away
        if not self.epochs(epoch) or (number and not self.has(epoch, number)):
            msg = f"has a commit of epoch {epoch} with id {number}, which the checkpoint table does not know"
            return f"{msg}: was an older copy of the checkpoint table restored?"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDamage:
    """The damage to a table after others changed its rows, or may have changed them.

    Attributes:
        version: Delta version that was examined.
        txn_version: of the region, at that version; None before its first commit. Of a table that was deleted or
            restored: the version of the newest row that is noted as published.
        commits: those of others that changed rows, oldest first, as JSON: `version`, `operation`, `engine`, `user`.
        live: bytes by path of the files that the table shows now.
        marked: paths of those among them of which rows have left by deletion vectors.
        sound: files that the table showed before these commits and that still exist.
        gone: files that the table showed before these commits and that no longer exist.
        is_traced: whether these are all rows that the table had; False if the region committed on top, if the log was
            cut, or if the table is another copy, which may lack ids and show others.
    """

    version: int
    txn_version: int | None
    commits: tuple[Mapping[str, Any], ...] = ()
    live: Mapping[str, int] = field(default_factory=dict)
    marked: frozenset[str] = frozenset()
    sound: tuple[StagedFile, ...] = ()
    gone: tuple[StagedFile, ...] = ()
    is_traced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRows:
    """The rows of some ids, and the files that hold them beside other rows."""

    ids: tuple[int, ...]
    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRepair:
    """One commit that repairs a table: the files that leave and the files that come back.

    Attributes:
        table: its name.
        version: Delta version that the commit must follow directly; if others committed since, plan it again.
        txn_version: of the table; the commit keeps it, unless it carries out a rewind as well.
        commits: the commits of others, as in `TableDamage`.
        added: files that are shown again.
        removed: bytes by path of the files that leave.
        copied: rows that are written again, because their files also hold other rows.
        history: the table from which all rows (the last of each key, or of the last id) are rebuilt; None if none are.
        lost: ids of which some rows exist nowhere.
    """

    table: str
    version: int
    txn_version: int | None
    commits: tuple[Mapping[str, Any], ...] = ()
    added: tuple[StagedFile, ...] = ()
    removed: Mapping[str, int] = field(default_factory=dict)
    copied: tuple[CopiedRows, ...] = ()
    history: str | None = None
    lost: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the values that `doctor --repair --json` prints."""
        return {
            "table": self.table,
            "version": self.version,
            "commits": [dict(commit) for commit in self.commits],
            "shown_again": [file.path for file in self.added],
            "removed": sorted(self.removed),
            "rewritten": [{"ids": list(part.ids), "files": [file.path for file in part.files]} for part in self.copied],
            "rebuilt_from": self.history,
            "lost_ids": list(self.lost),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRepair:
    """One commit that brings a sink outside Delta to what the region's history says.

    Attributes:
        table: its name.
        why: the rest of a sentence about it: where it is, and where the checkpoint table.
        txn_version: of the sink; 0 if it has none.
        written: ids whose rows, or files, are written again; of a sink with keys, ids with other rows than they should.
        leaving: ids whose rows, or files, leave, since the checkpoint table does not know them.
        lost: ids with rows that exist nowhere.
    """

    table: str
    why: str
    txn_version: int
    written: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the values that `doctor --repair --json` prints."""
        return {
            "table": self.table,
            "why": self.why,
            "written_again": list(self.written),
            "leaving_ids": list(self.leaving),
            "lost_ids": list(self.lost),
        }


Repair = TableRepair | SinkRepair


def exact_repair(name: str, damage: TableDamage) -> TableRepair | None:
    """Return the repair that shows exactly the earlier files; None if they are unknown, or if some are gone."""
    if not damage.is_traced or damage.gone:
        return None
    return _repair(name, damage, damage.sound)


def repair_from_history(name: str, damage: TableDamage, history: str, lost: Iterable[int]) -> TableRepair:
    """Return the repair that rebuilds a visible table from its history."""
    return _repair(name, damage, (), history=history, lost=tuple(sorted(lost)))


def repair_of_rows(
    name: str,
    damage: TableDamage,
    named: Sequence[StagedFile],
    *,
    shown: Mapping[int, int],
    ids: Collection[int],
    edge: int,
    is_there: Callable[[StagedFile], bool],
    restored: Sequence[CopiedRows] = (),
) -> TableRepair:
    """Return the repair that gives a table of rows all rows of some ids and no others, wherever they are left.

    Args:
        named: files that checkpoint rows name, of groups that are published to the table.
        shown: number of rows by id in the sound files.
        ids: the ids with rows that belong to the table.
        edge: rows of ids up to this (inclusive) may have been dropped; an image, or an outside sink, stands for them.
        is_there: returns whether a file is on the disk or in the bucket.
        restored: rows that come back with a rewind that is under way, or are back.
    """
    wanted, known = sorted(ids), set(ids)
    harmed = {number for file in damage.gone for number in _within(file, wanted)}
    if not damage.is_traced:
        harmed |= _lacking(named, shown, wanted)
    spoilt = {number for number in harmed if number > edge}
    returning = {number for part in restored for number in part.ids}
    searched = sorted(spoilt - returning)
    sources = {file.path: file for file in named if _within(file, searched)}
    there = {path for path, file in sources.items() if is_there(file)}
    lost = {number for path, file in sources.items() if path not in there for number in _within(file, searched)}
    leaving = sorted({*spoilt, *returning, *(number for number in shown if number not in known)})
    kept, found = sorted(known.difference(leaving)), sorted(set(searched) - lost)
    parts = [(file, _within(file, kept) if _within(file, leaving) else None) for file in damage.sound]
    for file in (sources[path] for path in sorted(there)):
        part = _within(file, found)
        parts.append((file, None if len(part) == len(_bounds(file)) else part))
    copied = [CopiedRows(ids=tuple(part), files=(file,)) for file, part in parts if part]
    whole = [file for file, part in parts if part is None]
    return _repair(name, damage, whole, copied=(*copied, *restored), lost=tuple(sorted(lost)))


def _lacking(named: Iterable[StagedFile], shown: Mapping[int, int], wanted: Sequence[int]) -> set[int]:
    """Return the ids without rows, of files of which some rows are not shown.

    A rewind, or a file that is processed again, removes all rows of an id. So an id that is shown is shown whole.
    """
    written = Counter[range]()
    for file in named:
        written[_bounds(file)] += file.rows
    differing = (ids for ids, rows in written.items() if sum(shown.get(number, 0) for number in ids) != rows)
    return {number for ids in differing for number in _among(ids, wanted) if not shown.get(number)}


def _within(file: StagedFile, ids: Sequence[int]) -> Sequence[int]:
    """Return those of some ids, which are in order, that a file may hold."""
    return _among(_bounds(file), ids)


def _among(bounds: range, ids: Sequence[int]) -> Sequence[int]:
    return ids[bisect_left(ids, bounds.start) : bisect_left(ids, bounds.stop)]


def _bounds(file: StagedFile) -> range:
    return range(file.first_id or 0, (file.last_id or 0) + 1)


def _repair(name: str, damage: TableDamage, shown: Iterable[StagedFile], **more: Any) -> TableRepair:
    files, unchanged = {file.path: file for file in shown}, damage.live.keys() - damage.marked
    return TableRepair(
        table=name,
        version=damage.version,
        txn_version=damage.txn_version,
        commits=damage.commits,
        added=tuple(file for path, file in files.items() if path not in unchanged),
        removed={path: size for path, size in damage.live.items() if path not in files or path in damage.marked},
        **more,
    )
