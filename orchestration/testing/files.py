"""Input in memory: files as text, bytes or rows, written to the folder of a source, in the source's format."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.formats.format import format_of
from drainmark.jobs.frames.tags import arrow_schema
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource

if TYPE_CHECKING:
    import pyarrow as pa

Content = str | bytes | Sequence[Mapping[str, Any]]
"""Text, bytes, or rows by column, which are encoded in the source's format."""

_Value = str | bytes | Mapping[str, Any] | None

Record = _Value | tuple[str | bytes | None, _Value]
"""A record of a topic: text, bytes, a row that is encoded in the source's format, None for a tombstone; or a pair of a
key and one of these."""

Files = str | Path | Mapping[str, Content] | Mapping[str, Path | Mapping[str, Content]] | Mapping[str, Sequence[Record]]
"""A folder to copy files from; contents by file name; or, for several sources, either of these by source. For sources
that read Kafka: lists of records by source."""

_STEP_NS = 1_000_000
_MARGIN_SECONDS = 60.0


class Inbox:
    """The folders that the sources of an application under test scan.

    Every file gets a modification time of its own, in the order given, old enough for the source's `settle`. It is
    written under another name and then renamed, so that it appears at once.
    """

    def __init__(self, root: Path, sources: Mapping[str, DirectorySource]) -> None:
        self.root = root
        self.sources = sources
        self.folders = {name: root / name for name in sources}
        self._last_ns = 0
        for folder in self.folders.values():
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, files: Files) -> list[Path]:
        """Write files and return their paths, in the order given.

        Raises:
            UsageError: the source of the files is not given, a name is taken, or rows do not fit the format.
        """
        return [path for name, given in self._by_source(files) for path in self._add(name, given)]

    def _by_source(self, files: Files) -> list[tuple[str, Any]]:
        if not self.sources:
            remedy = 'name the source: run_app(app, {"SOURCE": [record, …]}); later ones can be added then'
            raise UsageError("no source of the application scans a folder that files can be put into", remedy=remedy)
        if isinstance(files, Mapping) and any(isinstance(content, Mapping | Path) for content in files.values()):
            for name in files:
                if name not in self.sources:
                    raise UnknownName(f"there is no source {name!r}", remedy=nearest(name, list(self.sources)))
            return list(files.items())
        if len(self.sources) > 1:
            names = ", ".join(self.sources)
            msg = f"the application has several sources: {names}"
            raise UsageError(msg, remedy="give files by source: {'" + next(iter(self.sources)) + "': {...}}")
        return [(next(iter(self.sources)), files)]

    def _add(self, name: str, files: str | Path | Mapping[str, Content]) -> list[Path]:
        scan, folder = self.sources[name].scan, self.folders[name]
        if not isinstance(files, Mapping):
            return self._copy(Path(files), folder, scan)
        return [self._place(folder / file, encoded(content, scan, file), scan) for file, content in files.items()]

    def _copy(self, source: Path, folder: Path, scan: DirectoryScan) -> list[Path]:
        if not source.is_dir():
            raise UsageError(f"{source} is no folder", remedy="give a folder, or files as {name: content}")
        found = [path for path in source.rglob("*") if path.is_file()]
        found.sort(key=lambda path: (path.stat().st_mtime_ns, str(path)))
        return [self._place(folder / path.relative_to(source), path, scan) for path in found]

    def _place(self, path: Path, content: bytes | Path, scan: DirectoryScan) -> Path:
        if path.exists():
            raise UsageError(f"{path.name!r} is there already", remedy="a changed file is another trigger: rename it")
        hidden = self.root / f".{len(os.listdir(self.root))}.part"
        if isinstance(content, Path):
            shutil.copyfile(content, hidden)
        else:
            hidden.write_bytes(content)
        settled = time.time_ns() - int((scan.settle + _MARGIN_SECONDS) * 1e9)
        self._last_ns = max(settled, self._last_ns + _STEP_NS)
        os.utime(hidden, ns=(self._last_ns, self._last_ns))
        path.parent.mkdir(parents=True, exist_ok=True)
        return hidden.rename(path)


def encoded(content: Content, scan: DirectoryScan, name: str) -> bytes:
    """Return the bytes of a file in the format of its source.

    Args:
        content: rows are mappings by column; for text sources the column is `value`.
        name: path below the source's folder; it decides the output, and so the schema.

    Raises:
        UsageError: rows do not have the columns of the schema.
    """
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    ddl, form = scan.schema_of(scan.output_of(name) or ""), format_of(scan.format)
    columns = column_names(ddl) if ddl else ("value",)
    if form.lines is not None and scan.on_schema is not None:
        columns = tuple(dict.fromkeys([*columns, *(column for row in content for column in row)]))
    elif form.lines is not None:
        require_columns(content, columns, name)
    whole = form.encoded(content, columns, scan.options, lambda: _schema(ddl or ""))
    if whole is None:
        raise UsageError(f"{name!r}: a {scan.format} file has no rows", remedy="give its content as bytes")
    return whole


def require_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], name: str) -> None:
    """Check that rows have no other columns than these.

    Args:
        name: of the file or topic for the rows.

    Raises:
        UsageError: a row has another column.
    """
    for row in rows:
        if unknown := set(row) - set(columns):
            msg = f"{name!r}: a row has no column {', '.join(sorted(unknown))}"
            raise UsageError(msg, remedy=f"the source has {', '.join(columns)}")


def column_names(ddl: str) -> tuple[str, ...]:
    """Return the names of the columns of a DDL schema, in order.

    >>> column_names("id bigint, `a b` decimal(10,2), s struct<x: int, y: string>")
    ('id', 'a b', 's')
    """
    columns, depth, quoted = [""], 0, False
    for character in ddl:
        quoted ^= character == "`"
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0 and not quoted:
            columns.append("")
        else:
            columns[-1] += character
    names = (column.strip() for column in columns)
    return tuple(name[1:].partition("`")[0] if name[0] == "`" else name.split()[0].rstrip(":") for name in names)


def _schema(ddl: str) -> pa.Schema:
    from pyspark.sql.types import StructType

    from drainmark.orchestration.testing.session import shared_engine

    _ = shared_engine().session  # Spark parses its own DDL
    return arrow_schema(StructType.fromDDL(ddl))
