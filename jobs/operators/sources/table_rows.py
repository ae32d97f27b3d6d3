"""The rows that a table gets: by the versions that add them, or by ids once the log has forgotten the versions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import InputChanged, InputMissing, ObjectMissing, UsageError
from drainmark.jobs.frames.origins import with_tags_of_table
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.table_log import (
    REWOUND,
    ids_in,
    is_worth_remembering,
    rewinds_between,
    rewound_to,
    written_at,
)
from drainmark.jobs.operators.sources.table_reading import Actions, ByVersion, at_id, file_of
from drainmark.jobs.protocol.chains import IDS, KEEPS
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.tasks.parquet_shares import RowFile
from drainmark.jobs.tasks.places import LocalPlace

if TYPE_CHECKING:
    import pyarrow as pa

_FRESH_SECONDS = 3600.0
"""Files of younger versions are there: nothing deletes files of managed tables that left less than a day ago."""


@dataclass(frozen=True, slots=True)
class TableRows(ByVersion):
    """The rows of a table's versions.

    Attributes:
        starting_version: the first version to read.
        keeps: versions that remove or rewrite rows are passed over.
    """

    starting_version: int
    keeps: bool

    def columns(self) -> pa.Schema:
        return with_tags_of_table(self.table_columns(), self.access.newest_version(self.table)[2])

    def first_version(self, piece: Slice) -> int:
        return self.starting_version

    def next_slice(self, after: Position | None, end: Position, first: int, cut: SliceLimit) -> Slice | None:
        end = {**end, KEEPS: True} if self.keeps else end
        self.require_not_older(after, end)
        try:
            return self._by_versions(after, end, cut)
        except InputMissing:  # the first of these versions has left the log
            piece = self._by_ids(after, end)
            if piece is None:
                raise
            return piece

    def _by_versions(self, after: Position | None, end: Position, cut: SliceLimit) -> Slice | None:
        """Return the slice of the next versions; None if nothing is new.

        Raises:
            InputMissing: the first of them has left the log.
            InputChanged: it removes or rewrites rows, and the policy is to halt.
        """
        first = int(after["version"]) + 1 if after is not None else self.starting_version
        size, last, oldest = 0, first - 1, time.time()
        rewound, read = list[int](), _IdsAdded(after)
        for last, actions, added in self.next_versions(first, int(end["version"]), cut, self._size_of):
            size, oldest, to = size + added, min(oldest, written_at(actions)), rewound_to(actions)
            rewound += [to] if to is not None else []
            read.add(self.added(last, actions), to)
        if not size and not rewound and not is_worth_remembering(last - first + 1, oldest):
            return None  # the next scan looks at these versions again
        facts: dict[str, Any] = {REWOUND: min(rewound)} if rewound else {}
        upstream, end = self.access.upstream(self.table), {**end, "version": last}
        if upstream is not None:
            end = at_id(end, upstream, read.through)
            facts |= {IDS: list(read.bounds)} if read.bounds is not None else {}
        return Slice(start=after, end=end, size_bytes=size, facts=facts)

    def _size_of(self, version: int, actions: Actions) -> int:
        return sum(file_of(action, version).size for action in self.added(version, actions))

    def _by_ids(self, after: Position | None, end: Position) -> Slice | None:
        """Return the slice of all later ids, for versions that left the log; None if ids do not tell what is new.

        Raises:
            InputChanged: rows that were read were replaced since, and the policy is to halt.
        """
        through = after.get("id") if after is not None else (None if self.starting_version else INITIAL_ID)
        upstream, newest = self.access.upstream(self.table), int(end["version"])
        facts = upstream.facts() if upstream is not None and through is not None else None
        if upstream is None or through is None or facts is None or facts.flow.operators:
            return None
        replaced = min((old for old, new in facts.replaced.items() if old <= through < new.by), default=None)
        if replaced is not None:
            if not self.keeps:
                raise self._changed(newest, f"replaced rows of id {replaced} of {upstream.region}")
            return None  # these rows are there again, under a new id, and were read under the old one
        stays = facts.states.ids.at_most(through) or INITIAL_ID
        # At this version, not the newest by now: what comes after it is the next slice's.
        found = [file for file in self.access.live_files(self.table, newest) if (file.last_id or 0) > stays]
        last = max((file.last_id or 0 for file in found), default=stays)
        return Slice(
            start=after,
            end=at_id(end, upstream, last),
            size_bytes=sum(max(1, file.size) for file in found),
            facts={**({IDS: [stays + 1, last]} if found else {}), **({REWOUND: stays} if stays < through else {})},
        )

    def check(self, piece: Slice) -> None:
        try:
            for version in self.versions(piece):
                self.actions(version)
        except InputMissing:  # rows in force are found by their ids
            try:
                is_found = IDS in piece.facts and self._has_ids_in_order()
            except UsageError:  # the whole table is gone
                is_found = False
            if not is_found:
                raise

    def _has_ids_in_order(self) -> bool:
        """Say whether the ids of the table tell which rows a slice has: stages may add rows of an id later."""
        upstream = self.access.upstream(self.table)
        facts = upstream.facts() if upstream is not None else None
        return facts is not None and not facts.flow.operators

    def highest_id(self, piece: Slice) -> int | None:
        """Return the highest id of a slice's rows, 0 without any; None if the log does not tell any more."""
        highest = 0
        try:
            for version in self.versions(piece):
                for action in self.added(version, self.actions(version)):
                    highest = max(highest, ids_in(action)[1] or 0)
        except (InputChanged, InputMissing):
            return None
        return highest

    def added(self, version: int, actions: Actions) -> Actions:
        """Return the `add` actions of a version with new rows; none for a version that is skipped.

        Raises:
            InputChanged: the version removes or rewrites rows, and the policy is to halt.
        """
        added = [entry["add"] for entry in actions if "add" in entry and entry["add"].get("dataChange", True)]
        removed = any("remove" in entry and entry["remove"].get("dataChange", True) for entry in actions)
        has_vectors = any(action.get("deletionVector") for action in added)
        if not (removed or has_vectors):
            return added
        if self.keeps or rewound_to(actions) is not None:
            return []
        raise self._changed(version, "removes or rewrites rows that were read")

    def _changed(self, version: int, what: str) -> InputChanged:
        """Return the error for rows that changed after they were read."""
        return InputChanged(
            f"version {version} of {self.table} {what}",
            remedy='on_change="ignore" at the source passes over such versions: rows that were removed stay in what was'
            " made of them, rows that such a version adds are never read, and rows that come again later are read twice"
            " (an upstream region that was rewound by Drainmark before 0.4 processes its files again)",
            trigger=f"delta:{self.table}#{version}",
        )

    # --- the files of a slice -----------------------------------------------------------------------------------------

    def files(self, piece: Slice) -> list[RowFile]:
        """Return the files that the slice's versions added, or, if one of these is gone, those that have the rows now.

        Raises:
            InputMissing, InputChanged: see `actions_of` and `added`.
        """
        if IDS not in piece.facts:
            return list(self._added_files(piece))
        try:
            found = list(self._added_files(piece))
        except InputMissing:
            if not self._has_ids_in_order():
                raise
            return self._files_with_ids(piece)
        return found if self._are_there(found) or not self._has_ids_in_order() else self._files_with_ids(piece)

    def _added_files(self, piece: Slice) -> Iterator[RowFile]:
        """Yield the files that versions added, without the rows that a later rewind of their region withdrew."""
        folder, versions = self.access.table(self.table), self.versions(piece)
        newest, identity, _ = self.access.newest_version(self.table)
        rewinds = rewinds_between(folder, self.table, identity, versions.start, newest) if versions else []
        for version in versions:
            through = min((to for at, to in rewinds if at > version), default=None)
            for action in self.added(version, self.actions(version)):
                first, last = ids_in(action) if through is not None else (None, None)
                if through is not None and first is not None and first > through:
                    continue  # the file may be gone, too
                yield replace(
                    file_of(action, version), through=through if last is None or last > (through or 0) else None
                )

    def _files_with_ids(self, piece: Slice) -> list[RowFile]:
        """Return the files of the table that have the slice's ids now: rewinds and compactions are done there."""
        first, last = piece.facts[IDS]
        return [
            RowFile(
                version=int(piece.end["version"]),
                path=file.path,
                size=file.size,
                constants=json.loads(file.partition or "{}"),
                vector=file.vector,
                above=first - 1 if (file.first_id or 0) < first else None,
                through=last if (file.last_id or 0) > last else None,
            )
            for file in self.access.live_files(self.table)
            if (file.first_id or 0) <= last and first <= (file.last_id or 0)
        ]

    def _are_there(self, files: Sequence[RowFile]) -> bool:
        folder = self.access.table(self.table)
        if not isinstance(folder.place, LocalPlace):  # asking a bucket takes as long as reading a small file
            written = [written_at(self.actions(version)) for version in {file.version for file in files}]
            if time.time() - min(written, default=0.0) < _FRESH_SECONDS:
                return True
        try:
            for file in files:
                folder.size(file.path)
        except (FileNotFoundError, ObjectMissing):
            return False
        return True


class _IdsAdded:
    """The ids of the rows that a slice adds.

    Attributes:
        through: the id up to which (inclusive) rows were read; None if it is not known.
        bounds: the lowest and the highest id, None without any; also if rows of an id come after those of later ones,
            or the log does not tell ids: then only the versions say which rows are new.
    """

    def __init__(self, after: Position | None) -> None:
        self.through: int | None = after.get("id") if after is not None else INITIAL_ID
        self.bounds: tuple[int, int] | None = None
        self._is_told = True

    def add(self, added: Sequence[dict[str, Any]], rewound: int | None) -> None:
        """Add the files of the next version, and the id to which it took its region back."""
        if rewound is not None and self.through is not None:
            self.through = min(self.through, rewound)
        found = [ids_in(action) for action in added]
        if not found:
            return
        first, last = min(low or 0 for low, _ in found), max(high or 0 for _, high in found)
        self._is_told &= first > (self.through or INITIAL_ID)
        self.through = max(self.through or INITIAL_ID, last)
        low = min(first, self.bounds[0]) if self.bounds is not None else first
        self.bounds = (low, last) if self._is_told else None
