"""Keyed state as it was before the next group: image plus changes, in memory while it is small.

The state at N is the newest image ≤ N and the changes after it, the last row a key winning. A small state lives as an
Arrow table, a large one as a list of staged files; frames made of either are immutable, so a checkpoint refers to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.protocol.records.manifest import Image, StagedFile
from drainmark.jobs.state.cached_rows import CachedRows
from drainmark.jobs.state.checkpointed_state import Frozen, StagingFolder, Written
from drainmark.jobs.state.keyed_rows import RowsPerKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SMALL_STATE_BYTES = 32 * 1024 * 1024
CACHED_STATE_BYTES = 1024 * 1024 * 1024
"""Up to so many bytes of files Spark keeps a large state between groups, on its disk where memory is short."""
_IMAGE_MINIMUM_ROWS = 2_000
_IMAGE_CHANGE_FILES = 64


class StateFiles(Protocol):
    """The files of a CHANGES table, where only the store knows where they are."""

    def read_each(self, files: Sequence[StagedFile], columns: Sequence[str] | None = None) -> Iterator[pa.Table]: ...
    def frame(self, session: SparkSession, files: Sequence[StagedFile], schema: StructType) -> DataFrame: ...
    def holds(self, files: Sequence[StagedFile]) -> bool: ...


@dataclass(slots=True, kw_only=True)
class KeyedState:
    """The state of one operator at the last committed id.

    Attributes:
        table: name of its CHANGES table.
        stored: reads that table's files.
        keys: key columns.
        schema: Spark's type of its rows.
        image_files, change_files: what the state is made of; of the changes, the rows after `image_at`.
        rows: the state's rows while it is small, else None.
        depth: how many rows of a key are kept, the last ones by id and position.
        per_key: says which these are.
    """

    table: str
    stored: StateFiles
    keys: tuple[str, ...]
    schema: Any
    image_files: tuple[StagedFile, ...] = ()
    image_at: int = 0
    change_files: list[StagedFile] = field(default_factory=list)
    rows: pa.Table | None = None
    depth: int = 1
    _frame: DataFrame | None = None
    _columns: list[str] | None = None
    per_key: RowsPerKey = field(init=False)
    _cache: CachedRows = field(init=False)

    def __post_init__(self) -> None:
        self.per_key = RowsPerKey(self.keys, self.depth)
        self._cache = CachedRows(keys=self.keys)

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
    ) -> KeyedState:
        """Read the state that the published files and the newest image make up.

        Where the image was collected, the changes alone are the state if all of them are kept.

        Args:
            dropped: the id up to which changes may be gone.

        Raises:
            SplitBrain: the image is gone, and so are changes that it stands for.
        """
        if image is not None and not stored.holds(image.files):
            if dropped:
                msg = f"the image of {table} at {image.at} is gone, and changes up to {dropped} are in no other place"
                raise SplitBrain(msg, remedy="restore its files below _staged from a backup", table=table)
            image = None
        after = image.at if image else 0
        changes = [file for file in live if (file.last_id or 0) > after]
        state = cls(
            table=table,
            stored=stored,
            keys=tuple(keys),
            schema=schema,
            image_files=image.files if image else (),
            image_at=after,
            change_files=changes,
            depth=depth,
        )
        files = (*state.image_files, *changes)
        if sum(file.size for file in files) <= SMALL_STATE_BYTES:
            state.rows = state._read_small(files, after)
        return state

    def _read_small(self, files: Sequence[StagedFile], after: int) -> pa.Table | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        images = {file.path for file in self.image_files}
        tables = []
        for file, rows in zip(files, self.stored.read_each(files), strict=True):
            is_image = file.path in images  # a compacted file of changes may reach back behind the image
            tables.append(rows if is_image else rows.filter(pc.greater(rows[SEQUENCE_ID], after)))
        return self.per_key.last(pa.concat_tables(tables, promote_options="permissive")) if tables else None

    @property
    def is_small(self) -> bool:
        return self.rows is not None or not (self.image_files or self.change_files)

    @property
    def files_for_spark(self) -> tuple[StagedFile, ...]:
        """Return the files that Spark reads for the next group: none while the state is in memory."""
        return () if self.is_small else (*self.image_files, *self.change_files)

    def is_read_whole(self, rows: int) -> bool:
        """Are its rows not chosen by the keys of a group of so many rows? To choose, the group's keys must be known
        first; where the group may well have most of them, that is waiting for little."""
        return self.is_small or sum(file.rows for file in self.files_for_spark) <= rows * self.depth

    def before(self, session: SparkSession, partials: DataFrame, *, whole: bool = False) -> DataFrame | None:
        """Return the rows whose keys occur in the partials, one a key; None for the initial state.

        Args:
            whole: rows of other keys may be among them; of a small state they are, whatever the partials.
        """
        if self.is_small:
            if self.rows is None or self.rows.num_rows == 0:
                return None
            if self._frame is None:
                self._columns = self._columns or partials.columns
                self._frame = self._local(session, self.rows.select(self._columns))
            return self._frame
        rows = self._rows_held(session)
        if not whole:
            rows = self.per_key.matching(rows, partials)
        if self.depth == 1:
            rows = self.per_key.current(rows)
        return rows.select(*(f"`{name}`" for name in partials.columns))

    def beside(self, partials: DataFrame) -> DataFrame:
        """Return the partials as the rows that `before` returned lie: then a step by key moves none of those."""
        return self._cache.laid_out(partials)

    def current(self, session: SparkSession, changed: DataFrame | None) -> DataFrame | None:
        """Return the state, a row a key (`depth` of them where it is more); None for the initial state.

        Args:
            changed: has key columns, some or all; then only rows that agree with one of its rows in these. None for
                all rows.
        """
        if self.is_small:
            if self.rows is None or self.rows.num_rows == 0:
                return None
            if self._frame is None:
                self._frame = self._local(session, self.rows)
            return self._frame if changed is None else self.per_key.matching(self._frame, changed)
        rows = self._rows_held(session)
        return self.per_key.current(rows if changed is None else self.per_key.matching(rows, changed))

    def _local(self, session: SparkSession, rows: pa.Table) -> DataFrame:
        from pyspark.sql.types import StructType

        return frame_of(session, rows, StructType([self.schema[name] for name in rows.column_names])).coalesce(1)

    def _rows_held(self, session: SparkSession) -> DataFrame:
        """Return the rows of the files, which Spark keeps from group to group: they need not be decoded each time."""
        if sum(file.size for file in (*self.image_files, *self.change_files)) > CACHED_STATE_BYTES:
            self._cache.release()
            return self._stored(session, self.image_files, self.change_files, self.image_at)
        image = tuple(self.image_files)
        return self._cache.rows(
            image, tuple(self.change_files), lambda some, changes: self._stored(session, some, changes, self.image_at)
        )

    def release(self) -> None:
        """Let go of what Spark keeps; the state is not used any more, or by other means."""
        self._cache.release()

    def _stored(
        self, session: SparkSession, image: Sequence[StagedFile], changes: Sequence[StagedFile], at: int
    ) -> DataFrame:
        """Return the rows of an image and of the changes after it: a compacted file may reach back behind the image."""
        frames = [self.stored.frame(session, image, self.schema)] if image else []
        if changes:
            frames.append(self.stored.frame(session, changes, self.schema).where(F.col(SEQUENCE_ID) > at))
        return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])

    # --- checkpoints: see `StateHandler` ----------------------------------------------------------------------------

    def prepare(self, at: int, files: Sequence[StagedFile], changes: pa.Table | None) -> Frozen:
        """Take over the changes of a drained group, and freeze the state."""
        unwritten = changes if not files and changes is not None and changes.num_rows else None
        new_rows = unwritten.num_rows if unwritten is not None else sum(file.rows for file in files)
        has_image = new_rows > 0 and self.image_due(new_rows, max(len(files), 1))
        was_small = self.is_small
        self.change_files.extend(files)
        if new_rows:
            self._frame = None
            self.rows = self._folded(files, changes) if was_small else None
        return Frozen(
            at=at,
            changes=unwritten,
            rows=self.rows,
            image_files=self.image_files,
            image_at=self.image_at,
            change_files=tuple(self.change_files),
            has_image=has_image,
        )

    def _folded(self, files: Sequence[StagedFile], changes: pa.Table | None) -> pa.Table | None:
        import pyarrow as pa

        if changes is None:
            if sum(file.size for file in files) > SMALL_STATE_BYTES:
                return None
            changes = pa.concat_tables(self.stored.read_each(files))
        return self.per_key.last(_joined(self.rows, changes))

    def checkpoint(self, frozen: Frozen, staging: StagingFolder, session: SparkSession) -> Written:
        """Write the changes that are in memory, and the state whole where that is due."""
        files = staging.write(frozen.changes, "rows") if frozen.changes is not None else ()
        if not frozen.has_image:
            return Written(files=files)
        if frozen.rows is not None:
            whole = staging.write(frozen.rows, "image")
        else:
            rows = self._stored(session, frozen.image_files, (*frozen.change_files, *files), frozen.image_at)
            whole = staging.write_frame(self.per_key.current(rows), "image")
        return Written(files=files, image=Image(table=self.table, at=frozen.at, files=whole))

    def checkpointed(self, written: Written) -> None:
        """Note what the checkpoint wrote; a state that outgrew the memory is read from its files from now on."""
        self.change_files.extend(written.files)
        if written.image is not None:
            self.image_files, self.image_at, self.change_files = written.image.files, written.image.at, []
        if sum(file.size for file in (*self.image_files, *self.change_files)) > SMALL_STATE_BYTES:
            self.rows = self._frame = None
        elif self.rows is None and written.image is not None:
            self.rows = self._read_small(self.image_files, written.image.at)

    def read_if_small(self, files: Sequence[StagedFile]) -> pa.Table | None:
        """Return a group's staged changes where they and the state fit in memory: no job is needed to fold them."""
        import pyarrow as pa

        if not files or not self.is_small or sum(file.size for file in files) > SMALL_STATE_BYTES:
            return None
        return pa.concat_tables(self.stored.read_each(files))

    def image_due(self, new_rows: int, new_files: int) -> bool:
        """Is it time to write the state whole, with the group that adds so many changes?"""
        changes = sum(file.rows for file in self.change_files) + new_rows
        whole = sum(file.rows for file in self.image_files)
        files = len(self.change_files) + new_files
        return changes > max(whole // 2, _IMAGE_MINIMUM_ROWS) or files > _IMAGE_CHANGE_FILES


def _joined(before: pa.Table | None, new: pa.Table) -> pa.Table:
    import pyarrow as pa

    return new if before is None else pa.concat_tables([before, new], promote_options="permissive")
