"""Sources that give files: the parts of a slice, a file each, and the declaration of the files."""

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
    """The part of a slice that is one file.

    Attributes:
        uri: the value of `source_file` in its rows.
        place: makes the file readable at a path that does not exist yet.
        stored: the object of the file, if tasks may fetch it; the object never changes.
        check: raises InputChanged if the file has changed; called after reading.
    """

    uri: str
    size_bytes: int
    place: Callable[[Path], None]
    stored: StoredObject | None = None
    check: Callable[[], None] = lambda: None


class FileSlices(Replayable):
    """A source that gives files, in which rows may be bad; they are treated like the rows of a `DirectoryScan`."""

    @property
    @abstractmethod
    def scan(self) -> DirectoryScan:
        """Return the format, columns, options and policies of the files."""

    @abstractmethod
    def parts(self, piece: Slice, reach: Reach, source: str) -> Iterator[SlicePart]:
        """Yield the files of a slice in order."""

    def columns(self, reach: Reach) -> str | pa.Schema:
        return self.scan.rows_of("")

    @property
    def parsed(self) -> tuple[str, str] | None:
        ddl = self.scan.schema_of("")
        return (self.scan.format, ddl) if ddl is not None else None
