"""Sources that give files: a file's worth of a slice, and what such a source says of its files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.operators.sources.contract import Reach, Replayable

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
    from drainmark.jobs.operators.sources.slices import Slice
    from drainmark.jobs.tasks.buckets import StoredObject


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePart:
    """A file's worth of a slice.

    Attributes:
        uri: what rows have as `source_file`.
        place: makes it readable at a path that does not exist yet.
        stored: the object that it is, if tasks may fetch it; it never changes.
        check: raises InputChanged unless it is what it was; called after reading.
    """

    uri: str
    size_bytes: int
    place: Callable[[Path], None]
    stored: StoredObject | None = None
    check: Callable[[], None] = lambda: None


class FileSlices(Replayable):
    """A source that gives files, in which rows may be bad: they are judged as those of a `DirectoryScan` are."""

    @property
    @abstractmethod
    def scan(self) -> DirectoryScan:
        """Format, columns, options and policies of the files."""

    @abstractmethod
    def parts(self, piece: Slice, reach: Reach, source: str) -> Iterator[SlicePart]:
        """Yield the files of a slice in order."""

    def columns(self, reach: Reach) -> str | pa.Schema:
        return self.scan.rows_of("")
