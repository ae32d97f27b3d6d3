"""Keyed state as it was before the next group: runs, and the changes after them; in memory while its files are small.

The state at N is the newest image ≤ N and the changes after it; the last row of each key wins. An image is a list of
runs (see `runs.py`). In a large state, the rows of few keys are looked up in the row groups that can hold them, so the
cost of a group depends on its changes; a group that may have most keys joins the whole state. Frames, tables and files
are immutable, so a checkpoint refers to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.protocol.records.manifest import Image, StagedFile
from drainmark.jobs.state.checkpointed_state import Frozen, StagingFolder, Written
from drainmark.jobs.state.due_rows import DueRows, PassedTime
from drainmark.jobs.state.keyed_rows import RowsPerKey
from drainmark.jobs.state.run_making import RunMaking
from drainmark.jobs.state.runs import Run, RunMerge, image_of, runs_of
from drainmark.jobs.state.state_rows import StateFiles, StateRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

MEMORY_STATE_BYTES = 32 * 1024 * 1024
"""The most bytes in files of a state that is kept in memory as a whole, if its operator reads all of it."""
LOOKED_UP_STATE_BYTES = 1024 * 1024
"""The same limit if the operator looks up keys: above about this size, a look-up is cheaper."""
YOUNG_ROWS, YOUNG_BYTES = 250_000, 64 * 1024 * 1024
"""The most changes since the last image that make no run yet if keys are looked up; they are kept in memory."""
_MOST_YOUNG_ROWS, _MOST_YOUNG_BYTES = 1_000_000, 256 * 1024 * 1024
"""The most changes that are kept in memory until the run with them is written: those of a group come on top."""
_IMAGE_MINIMUM_ROWS = 2_000
_IMAGE_CHANGE_FILES = 64


@dataclass(slots=True, kw_only=True)
class KeyedState:
    """The state of one operator at the last committed id.

    Attributes:
        table: name of its CHANGES table.
        per_key: selects the rows that are kept of a key, by id and position.
        in_files: reads the rows of the files.
        runs, change_files: the files of the state; of `change_files`, only the rows after `image_at` count.
        rows: the state's rows while they are in memory, else None.
        young: the rows of the changes after `image_at`, as they came; None if they are too many, or not looked up.
        looked_up_by: the key columns by which rows are looked up; () if the whole state is read.
        is_tiered: an image names older runs; else it is one run, which is the whole state.
        passed: the time up to which the operator has asked for due rows.
    """

    table: str
    per_key: RowsPerKey
    in_files: StateRows
    runs: tuple[Run, ...] = ()
    image_at: int = 0
    change_files: list[StagedFile] = field(default_factory=list)
    rows: pa.Table | None = None
    young: pa.Table | None = None
    looked_up_by: tuple[str, ...] = ()
    is_tiered: bool = True
    passed: PassedTime = field(default_factory=PassedTime)
    _frame: DataFrame | None = None
    _columns: Sequence[str] | None = None
    _merge: RunMerge | None = None

    @classmethod
    def load(
        cls,
        *,
        table: str,
        stored: StateFiles,
        keys: Sequence[str],
        schema: Any,
        image: Image | None,
        live: Sequence[StagedFile],
        dropped: int = 0,
        depth: int = 1,
        gone: str = GONE,
        looked_up_by: Sequence[str] = (),
        is_tiered: bool = True,
    ) -> KeyedState:
        """Return the state that the published files and the newest image make up.

        If the image was deleted, the changes alone are the state, provided that all of them are kept.

        Args:
            stored: reads that table's files.
            schema: Spark's type of its rows.
            dropped: the id up to which (inclusive) changes may be gone; 0 if all are kept.

        Raises:
            SplitBrain: the image is gone, and so are changes that it stands for.
        """
        if image is not None and not stored.holds(image.files):
            if dropped:
                msg = f"the image of {table} at {image.at} is gone, and changes up to {dropped} are in no other place"
                raise SplitBrain(msg, remedy="restore its files below _staged from a backup", table=table)
            image = None
        after = image.at if image else 0
        state = cls(
            table=table,
            per_key=RowsPerKey(tuple(keys), depth, gone),
            in_files=StateRows(stored=stored, schema=schema, hashed=tuple(looked_up_by or keys)),
            runs=runs_of(image),
            image_at=after,
            change_files=[file for file in live if (file.last_id or 0) > after],
            looked_up_by=tuple(looked_up_by),
            is_tiered=is_tiered,
        )
        if state.looked_up_by and _are_few(state.change_files):
            state.young = state.in_files.read(state.change_files, after)
        if state.size <= state._memory_bytes:
            state.rows = state._read_all()
        return state

    def _read_all(self) -> pa.Table | None:
        import pyarrow as pa

        young = self.young if self.young is not None else self.in_files.read(self.change_files, self.image_at)
        found = [rows for rows in (self.in_files.read(self.run_files), young) if rows is not None]
        return self.per_key.last(pa.concat_tables(found, promote_options="permissive")) if found else None

    @property
    def run_files(self) -> tuple[StagedFile, ...]:
        return tuple(file for run in self.runs for file in run.files)

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return (*self.run_files, *self.change_files)

    @property
    def size(self) -> int:
        """Return the bytes of the state's files."""
        return sum(file.size for file in self.files)

    @property
    def _memory_bytes(self) -> int:
        return min(MEMORY_STATE_BYTES, LOOKED_UP_STATE_BYTES) if self.looked_up_by else MEMORY_STATE_BYTES

    @property
    def is_in_memory(self) -> bool:
        return self.rows is not None or not self.files

    @property
    def can_look_up(self) -> bool:
        """Say whether rows of few keys can be read without the others: runs are sorted, later changes in memory."""
        has_young = self.young is not None or not self.change_files
        return bool(self.looked_up_by) and has_young and self.in_files.are_sorted(self.run_files)

    def look_up(self, keys: pa.Table, due: DueRows | None = None) -> pa.Table | None:
        """Return the last `depth` rows of each of some keys; None for no rows; see `StateRows.look_up`."""
        found = self.in_files.look_up(self.run_files, self.young, keys, due)
        last = self.per_key.last(found) if found is not None else None
        return last if last is not None and last.num_rows else None

    def is_read_whole(self, rows: int) -> bool:
        """Say whether a group of so many rows reads the whole state, not only the rows of its keys. To choose rows, the
        group's keys must be known first; if the group may have most of the keys, that is not worth the wait."""
        return self.is_in_memory or sum(file.rows for file in self.files) <= rows * self.per_key.depth

    def before(self, session: SparkSession, partials: DataFrame, *, whole: bool = False) -> DataFrame | None:
        """Return the rows of the keys in the partials, one for each key; None for the initial state.

        Args:
            whole: rows of other keys may be among them; for a state in memory they always are.
        """
        if self.is_in_memory:
            return self._in_memory(session, partials.columns)
        rows = self.current(session, None if whole else partials, is_raw=self.per_key.depth > 1)
        return rows if rows is None else rows.select(*(quoted_name(name) for name in partials.columns))

    def current(self, session: SparkSession, changed: DataFrame | None, *, is_raw: bool = False) -> DataFrame | None:
        """Return the state, the last `depth` rows of each key; None for the initial state.

        Args:
            changed: has some or all key columns; only rows that equal one of its rows in these are returned. None: all.
            is_raw: earlier rows, and those of keys that are gone, are returned, too.
        """
        if self.is_in_memory:
            rows = self._in_memory(session)
            return rows if rows is None or changed is None else self.per_key.matching(rows, changed)
        rows = self.in_files.frame(session, self.run_files, self.change_files, self.image_at)
        rows = rows if changed is None else self.per_key.matching(rows, changed)
        return rows if is_raw else self.per_key.current(rows)

    def _in_memory(self, session: SparkSession, columns: Sequence[str] | None = None) -> DataFrame | None:
        """Return a state in memory as a frame, which is made once for each version of the state."""
        if self.rows is None or self.rows.num_rows == 0:
            return None
        if self._frame is None:
            self._columns = self._columns or columns
            self._frame = self.in_files.local(session, self.rows.select(self._columns) if self._columns else self.rows)
        return self._frame

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def prepare(self, at: int, files: Sequence[StagedFile], changes: pa.Table | None) -> Frozen:
        """Take over the changes of a drained group with the last id `at`, and freeze the state."""
        unwritten = changes if not files and changes is not None and changes.num_rows else None
        new_rows = unwritten.num_rows if unwritten is not None else sum(file.rows for file in files)
        has_image = new_rows > 0 and self.image_due(new_rows, max(len(files), 1))
        was_in_memory, earlier = self.is_in_memory, tuple(self.change_files)
        self.passed.taken_over()
        self.change_files.extend(files)
        if new_rows:
            self._frame = None
            changes = self._read_if_few(files) if changes is None else changes
            self.rows = self.per_key.last(joined(self.rows, changes)) if was_in_memory and changes is not None else None
            self.young = _younger(self.young, changes, earlier) if self.looked_up_by else None
        return Frozen(
            at=at,
            changes=unwritten,
            rows=self.rows,
            runs=self.runs,
            image_at=self.image_at,
            change_files=tuple(self.change_files),
            young=self.young,
            merge=self._merge,
            has_image=has_image,
        )

    def _read_if_few(self, files: Sequence[StagedFile]) -> pa.Table | None:
        may_stay = sum(file.size for file in files) <= self._memory_bytes
        return self.in_files.read(files) if may_stay or _are_few(files) else None

    def checkpoint(self, frozen: Frozen, staging: StagingFolder, session: SparkSession) -> Written:
        """Write the changes that are in memory, and an image if it is due; this method must not change the state."""
        files = staging.write(frozen.changes, "rows") if frozen.changes is not None else ()
        if not frozen.has_image:
            return Written(files=files)
        making = RunMaking(
            in_files=self.in_files,
            per_key=self.per_key,
            is_tiered=self.is_tiered,
            staging=staging,
            session=session,
        )
        if frozen.rows is not None:
            whole = making.whole(frozen.rows, self._memory_bytes if self.looked_up_by else None)
            return Written(files=files, image=Image(table=self.table, at=frozen.at, files=whole))
        runs, merge = making.after(frozen, files)
        return Written(files=files, image=image_of(self.table, frozen.at, runs), merge=merge)

    def checkpointed(self, written: Written) -> None:
        """Note the files of the checkpoint; a state that outgrew the memory is read from its files from now on."""
        self.change_files.extend(written.files)
        if written.image is not None:
            self.runs, self.image_at, self.change_files = runs_of(written.image), written.image.at, []
            self.young, self._merge = None, written.merge
            if self._merge is not None:
                self._merge.begin()
            self.in_files.forget_others(self.run_files)
        if self.size > self._memory_bytes:
            self.rows = self._frame = None
        elif self.rows is None and written.image is not None:
            self.rows = self._read_all()

    def read_if_in_memory(self, files: Sequence[StagedFile]) -> pa.Table | None:
        """Return a group's staged changes if they and the state may be in memory, so without a Spark job; else None."""
        return self._read_if_few(files) if files and self.is_in_memory else None

    def image_due(self, new_rows: int, new_files: int) -> bool:
        """Say whether an image is due with a group that adds so many rows and files."""
        changes = sum(file.rows for file in self.change_files) + new_rows
        whole = sum(run.rows for run in self.runs)
        files = len(self.change_files) + new_files
        if changes > max(whole // 2, _IMAGE_MINIMUM_ROWS) or files > _IMAGE_CHANGE_FILES:
            return True
        is_looked_up = bool(self.looked_up_by) and not self.is_in_memory
        return is_looked_up and (changes > YOUNG_ROWS or not self.can_look_up)


def _are_few(files: Sequence[StagedFile]) -> bool:
    """Say whether changes may be read into memory; few rows can be large, as held rows of documents are."""
    return sum(file.rows for file in files) <= YOUNG_ROWS and sum(file.size for file in files) <= YOUNG_BYTES


def _younger(young: pa.Table | None, changes: pa.Table | None, earlier: Sequence[StagedFile]) -> pa.Table | None:
    """Return the changes since the image with those of a group; None if they are too many for the memory.

    Args:
        young: of earlier groups; None if there are none, or if they are only in the `earlier` files.
    """
    if changes is None or (young is None and earlier):
        return None
    found = joined(young, changes)
    return found if found.num_rows <= _MOST_YOUNG_ROWS and found.nbytes <= _MOST_YOUNG_BYTES else None


def joined(before: pa.Table | None, new: pa.Table) -> pa.Table:
    """Return the rows of both tables, `new` last."""
    import pyarrow as pa

    return new if before is None else pa.concat_tables([before, new], promote_options="permissive")
