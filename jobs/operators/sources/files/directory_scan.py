"""`DirectoryScan`: the declaration of a scanned folder; each of its files is one trigger."""

from __future__ import annotations

import datetime as dt
import fnmatch
import glob
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from drainmark.jobs.errors import UsageError
from drainmark.jobs.formats.column_fit import Columns
from drainmark.jobs.formats.format import Expected, Format, formats, taken_name, with_added
from drainmark.jobs.frames.tags import RESCUED
from drainmark.jobs.protocol.records.addresses import address_of, is_object

__all__ = ["DirectoryScan"]


_POLICIES: Mapping[str, tuple[str | None, ...]] = {
    "order": ("name", "mtime", "arrival"),
    "on_change": ("halt", "ignore", "reprocess"),
    "on_missing": ("halt", "skip"),
    "on_bad": ("quarantine", "halt"),
    "on_schema": (None, "rescue", "quarantine", "halt"),
    "after": ("keep", "move", "delete"),
    "after_when": ("retired", "checkpointed"),
}
_EVOLVE = (
    'on_schema="evolve": a replay must read a file with the same columns as before, so a source adds none by itself',
    'add the column to schema=, or to the file in schemas/ that has the inferred one; or take on_schema="rescue"',
)


@dataclass(frozen=True, kw_only=True)
class DirectoryScan:
    """A scanned folder, or prefix of a bucket; each file is one trigger and becomes one consistent state.

    Args:
        path: the folder, or `s3://BUCKET/PREFIX`; a relative path begins at the folder of drainmark.toml. `run --input`
            overrides it. The settings `s3_endpoint_url`, `s3_profile` and `s3_region` say how to reach a bucket.
        pattern: glob of file names; with `recursive` matched against the path below the folder as well.
        format: `text` (one row per line, column `value`), `csv`, `json` (JSON lines), `parquet`, `orc`, or `binary`
            (one row per file: `content`, not decompressed, at most 64 MiB, and its `length`; an empty file has no row),
            or `debezium` (a message of a change a line: the columns of the schema, and `_op`, `_sequence`,
            `_changed_at`; see docs/how-to/sources.md).
        schema: DDL such as `"id bigint, amount double"`. If it is left out and the files name their columns (CSV with a
            header, JSON lines, Parquet, ORC), it is inferred from the first files, once: the first run or scan writes
            `schemas/APP.SOURCE.ddl` beside the application, and from then on this file declares the columns.
        options: names as Spark's readers have them, e.g. `{"header": "true", "sep": ";"}`. CSV, JSON and text have
            `encoding` (or `charset`; any that Python knows) and `lineSep`; CSV and JSON have `multiLine`, and
            `dateFormat`, `timestampFormat`, `timestampNTZFormat` with Java's patterns. CSV has `header`, `sep` (or
            `delimiter`), `quote`, `escape`, `comment`, `nullValue`, `ignoreLeadingWhiteSpace` and
            `ignoreTrailingWhiteSpace`; JSON has `allowNoFields`: a record without any declared field is a row of nulls,
            and not bad. Text has `wholetext`: a file is one row. For messages without a schema, Debezium has
            `timePrecisionMode` and `decimalHandlingMode`. Others are refused, with what to write instead.
        recursive: also look into folders below.
        follow_links: also take symbolic links to files, with any target. By default a link is refused and listed
            with the reason: a user who may put a link there could make this process read any file that it may read.
            `path` itself may be a link. Links to folders below it are never followed.
        outputs: several outputs from one start: `{"orders": "orders/*.csv", "payments": "payments/*.csv"}` maps an
            output to the glob of its files below `path`; then `schema` may be a mapping by output, too.
        start_from: `"beginning"`, or an ISO time: older files (by modification time) are left to `backfill`.
        order: `"name"`, `"mtime"` or `"arrival"`: order of the files that one scan finds; ties are broken by name.
        settle: seconds that a file must be unchanged before it is taken; an object of a bucket is complete at once.
        on_change: the reaction to a change of a committed file: `"halt"`, `"ignore"`, or `"reprocess"` as a new
            trigger. With `"reprocess"`, a file that returns to its old content counts as changed once more. `backfill`
            without `--again` is refused, leaves the file out, or queues it beside what it gave before.
        on_missing: the reaction to a scanned file that is gone before it was read: `"halt"` or `"skip"`. If a skipped
            file comes back unchanged, the next scan takes it.
        on_bad: the reaction to rows and files that cannot be read: `"quarantine"` keeps them in the table
            `lake/<app>_quarantine` and goes on; `"halt"` stops the region before any row of the file is taken.
        on_schema: the reaction to columns that differ from the declared ones. Left out: a file is quarantined if its
            CSV header has other names or another order, or if it lacks a Parquet or ORC column or has it with another
            type; further columns of Parquet and ORC and further fields of JSON are not read. `"rescue"`: values of
            columns that are not declared are kept as JSON in a further column, `_rescued string`, null if there
            are none; CSV columns are then matched by name, in any order. `"quarantine"`: a file with further columns
            is quarantined, too; in JSON the records with further fields are bad. `"halt"`: both halt the region. Fields
            within a declared column are not compared. In JSON a missing field is null, and names are case-sensitive: a
            record is bad if it lacks a field and has one with the same name in other upper and lower case.
        max_bad_ratio: a file with a larger share of bad rows is quarantined as a whole, with its good rows.
        rounding: the treatment of a decimal with more digits after the point than its column has: by default its row
            is bad; `"half_up"` rounds it.
        after: the treatment of a file after its commit: `"keep"`, `"move"` to the folder or prefix `move_to`, under
            its path below `path`, or `"delete"`. A later file needs a new name, or it counts as a changed file.
        after_when: `"retired"`: when no rewind within the horizon needs the file any more; `"checkpointed"`: right
            after the commit; then a rewind that would read the file again is refused without `--accept-loss`.

    In a periodic region the files that are new at the end of a period are one slice, in the order of the scans that
    found them. With `on_missing="skip"` a slice is read without the files that are gone, and the history names them
    under its id. A file that was replaced before it was read halts the region: the new file is in no other slice.

    A value is what the file says, or its row is bad; no text is trimmed, and an empty field of CSV is null. A time
    without a zone is UTC; one without a date, such as `12:34`, is bad, unless `options["timestampFormat"]` is given.
    Lines that are not UTF-8 or have a NUL byte, and quotes that are not closed, are bad rows. Files are read compressed
    as `.gz`, `.bz2` and `.zst`. Files that are damaged, are not in the declared encoding, or exceed one of the sizes of
    `drainmark.jobs.formats.bad_records.CAPS`, are bad files.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(
                path="prices",  # or s3://bucket/prefix
                pattern="*.csv",
                format="csv",
                schema="item string, price decimal(10,2)",
                options={"header": "true"},
                settle=5,  # a file that is still being written is left alone
            )
        )
        def prices(scanned):
            return scanned
    """

    path: str
    pattern: str = "*"
    format: str = "text"
    schema: str | Mapping[str, str] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    recursive: bool = False
    follow_links: bool = False
    outputs: Mapping[str, str] | None = None
    start_from: str = "beginning"
    order: Literal["name", "mtime", "arrival"] = "name"
    settle: float = 0.5
    on_change: Literal["halt", "ignore", "reprocess"] = "halt"
    on_missing: Literal["halt", "skip"] = "halt"
    on_bad: Literal["quarantine", "halt"] = "quarantine"
    on_schema: Literal["rescue", "quarantine", "halt"] | None = None
    max_bad_ratio: float = 0.5
    rounding: Literal["half_up"] | None = None
    after: Literal["keep", "move", "delete"] = "keep"
    move_to: str | None = None
    after_when: Literal["retired", "checkpointed"] = "retired"

    @property
    def _form(self) -> Format | None:
        """Return the format, None for an unknown name; the type is checked first, since not every value is hashable."""
        return formats().get(self.format) if isinstance(self.format, str) else None

    def schema_of(self, output: str) -> str | None:
        """Return the DDL of an output's rows as read; None for text, or if no schema is declared."""
        form = self._form
        if form is not None and not form.has_schema:
            return form.columns
        declared = self._declared(output)
        return with_added(self.format, declared) if form is not None and declared else declared

    def _declared(self, output: str) -> str | None:
        return self.schema.get(output) if isinstance(self.schema, Mapping) else self.schema

    @property
    def says_columns(self) -> bool:
        """Say whether files name their columns, so that a schema can be inferred."""
        form = self._form
        return (
            form is not None
            and not form.added
            and not form.cannot_compare(replace(self, on_schema="rescue").expects(None))
        )

    def rows_of(self, output: str) -> str:
        """Return the DDL of an output's rows as the source gives them, with the column of rescued values if asked."""
        read = self.schema_of(output) or "value string"
        return f"{read}\n, {RESCUED} string" if self.on_schema == "rescue" else read

    def output_of(self, relative: str) -> str | None:
        """Return the output of a file, by its path below the folder; None if no output takes the file."""
        name = relative.rpartition("/")[2]
        if self.outputs is None:
            nested = "/" in relative
            if nested and not self.recursive:
                return None
            return "" if any(fnmatch.fnmatchcase(text, self.pattern) for text in (name, relative)) else None
        for output, pattern in self.outputs.items():
            is_deep_enough = self.recursive or relative.count("/") == pattern.count("/")
            if is_deep_enough and fnmatch.fnmatchcase(relative, pattern):
                return output
        return None

    def folders(self) -> Iterator[str]:
        """Yield globs of the folders that are scanned for files; `*` stands for `/`, too."""
        root = glob.escape(self.path.rstrip("/") if is_object(self.path) else posixpath.normpath(self.path))
        for pattern in (self.pattern,) if self.outputs is None else self.outputs.values():
            named = pattern.rpartition("/")[0]
            folder = f"{root}/{named}" if named else root
            yield folder
            if self.recursive:
                yield f"{folder}/*"

    def oldest(self) -> float | None:
        """Return the modification time (seconds since 1970) below which files are not taken, None for no limit."""
        if self.start_from == "beginning":
            return None
        moment = dt.datetime.fromisoformat(self.start_from)
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (rule, sentence, remedy) for every argument that does not fit."""
        form = self._form
        if form is None:
            one = "" if isinstance(self.format, str) else " for all outputs; a second scan reads files of another"
            yield "UNKNOWN_FORMAT", f"format {self.format!r} is not known", f"one of {', '.join(formats())}{one}"
        yield from self._schema_problems(form)
        for name, known in _POLICIES.items():
            if (name, getattr(self, name)) == ("on_schema", "evolve"):
                yield "ON_SCHEMA", *_EVOLVE
            elif getattr(self, name) not in known:
                listed = ", ".join(filter(None, known))
                yield "UNKNOWN_POLICY", f"{name}={getattr(self, name)!r} is not known", f"one of {listed}"
        if self.settle < 0:
            yield "NEGATIVE_SETTLE", f"settle={self.settle} is below zero", "give seconds, 0 for none"
        yield from self._reading_problems()
        yield from self._path_problems()
        try:
            self.oldest()
        except ValueError:
            yield "START_FROM", f"start_from={self.start_from!r} is no time", '"beginning" or an ISO time'

    def _schema_problems(self, form: Format | None) -> Iterator[tuple[str, str, str]]:
        if form is not None and not form.has_schema and self.schema is not None:
            yield "SCHEMA_UNUSED", f"format {self.format!r} has columns of its own", "leave schema out"
        for output in self.outputs or ("",):
            if form is not None and form.has_schema and not self.schema_of(output):
                label = f" for output {output!r}" if output else ""
                inferred = (
                    ", or run it where there is a first file, of which it is inferred" if self.says_columns else ""
                )
                remedy = f'add schema="id bigint, …"{inferred}'
                yield "SCHEMA_MISSING", f"format {self.format!r} needs a schema{label}", remedy
            elif form is not None and (name := taken_name(self.format, self._declared(output) or "")) is not None:
                msg = f"the schema has a column {name!r}, which each row of {self.format} gets"
                yield "COLUMN_TAKEN", msg, "leave it out: the column is added"

    def _reading_problems(self) -> Iterator[tuple[str, str, str]]:
        if self.rounding not in (None, "half_up"):
            yield "UNKNOWN_POLICY", f"rounding={self.rounding!r} is not known", '"half_up", or leave it out'
        form = self._form
        declared = self.expects(None)
        cannot = form.cannot_compare(declared) if form and self.on_schema is not None else None
        if cannot is not None:
            yield (
                "ON_SCHEMA",
                f"on_schema={self.on_schema!r}: {cannot}",
                "leave out on_schema, or change the source's options",
            )
        if form is not None and (unread := form.cannot_read(declared)) is not None:
            yield "READER_OPTION", *unread
        if not 0 <= self.max_bad_ratio <= 1:
            yield "BAD_RATIO", f"max_bad_ratio={self.max_bad_ratio} is no share", "give a number from 0 to 1"

    def expects(self, columns: Columns | None) -> Expected:
        """Return the declared properties of files with the given columns."""
        return Expected(
            format=self.format,
            columns=columns,
            options={name.lower(): str(value) for name, value in self.options.items()},
            rounding=self.rounding,
            on_schema=self.on_schema,
        )

    def _path_problems(self) -> Iterator[tuple[str, str, str]]:
        if is_object(self.path):
            try:
                address_of(self.path)
            except UsageError as error:
                yield "PATH", error.message, error.remedy or ""
        elif "://" in self.path:
            scheme = self.path.partition("://")[0]
            yield "PATH", f"files cannot be scanned at {scheme}://", "a path of this machine, or s3://BUCKET/PREFIX"
        if (self.after == "move") != (self.move_to is not None):
            yield "MOVE_TO", f"after={self.after!r}, move_to={self.move_to!r}", 'after="move" needs move_to="…"'
        elif self.move_to is not None and is_object(self.move_to) != is_object(self.path):
            yield "MOVE_TO", "files do not move between a folder and a bucket", "give a place of the same kind"
        elif self.move_to is not None and f"{self.move_to.rstrip('/')}/".startswith(f"{self.path.rstrip('/')}/"):
            yield "MOVE_TO", f"{self.move_to} lies below {self.path}, which is scanned", "give a place beside it"
