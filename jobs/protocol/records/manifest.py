"""The results of a group, by name: staged files for each table, and the tables of a region.

A checkpoint names files and does not copy them: to publish, roll forward and rewind, Drainmark needs these values and
the files that they name, never the application's code.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from drainmark.jobs.protocol.records.deletion_vectors import DeletionVector


class TableRole(StrEnum):
    """The way in which the staged files of a table are published."""

    APPEND = "append"  # a sink of rows: files are added
    CHANGES = "changes"  # state or history: one row for each changed key and id; files are added
    UPSERT = "upsert"  # visible table with one row for each key: merged from the staged rows of its history
    OVERWRITE = "overwrite"  # visible table of the last id's rows: replaced by the staged rows of its history
    COPY = "copy"  # visible rows outside Delta: copied from the staged rows of its history


STAGED = "_staged/"
"""The beginning of the paths of staged files."""


def is_ours(path: str) -> bool:
    """Say whether a file of a table with partitions has its place from us: others have folders for partitions."""
    return "/" not in path or path.startswith(STAGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One Parquet file below a table's root, with exact facts from its footer.

    Attributes:
        path: relative to the table's root, with forward slashes.
        size: bytes.
        rows: number of rows.
        first_id: smallest `_sequence_id`, None without rows.
        last_id: largest `_sequence_id`, None without rows.
        mark: a stamp that another file in its place would not have; the process that wrote it keeps it, no row does.
        partition: by column of a partitioned table, the value of all rows as Delta's log has it, as JSON; else "".
        statistics: JSON of the column statistics for the log; "" if the log has `_sequence_id` only. Rows keep it
            beside the files: an older Drainmark can read the rows, and writes fewer statistics.
        vector: the rows that have left a visible file, None for none; they do not count in `rows`. No row has it.
    """

    path: str
    size: int
    rows: int
    first_id: int | None
    last_id: int | None
    mark: str = field(default="", compare=False, repr=False)
    partition: str = ""
    statistics: str = field(default="", compare=False, repr=False)
    vector: DeletionVector | None = None

    @property
    def values(self) -> dict[str, str | None]:
        """The values of its partition by column, in the form of the log."""
        return json.loads(self.partition) if self.partition else {}

    @property
    def constants(self) -> dict[str, str | None]:
        """The values of its partition that are in the log alone, since others wrote it; {} for a file of ours.

        Ours has them itself: an empty text is null in the log.
        """
        return {} if is_ours(self.path) else self.values

    def may_hold(self, ids: Collection[int]) -> bool:
        """Say whether some ids are within the file's bounds."""
        return any((self.first_id or 0) <= each <= (self.last_id or 0) for each in ids)

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        del value["mark"]
        del value["statistics"]  # see `Manifest`
        del value["vector"]
        if not self.partition:
            del value["partition"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StagedFile:
        return cls(**value)


RowsOf = tuple[Collection[int], Sequence[StagedFile]]
"""The rows of some ids in some files, which may hold rows of other ids, too."""


REGISTERED = "registered"
"""Option of a Delta table: the name that it gets in a catalogue of Spark."""

ON_READ = "on-read"
"""The option `merge` of an UPSERT table whose rows leave by deletion vectors."""

WITHOUT_NAMES = "tables-without-names"
"""Name of a note in the registry: the reason for each table that could not get that name; JSON."""

_FLAGS = frozenset({"adopted", "deletes", "evolves", "external", "options", "retention", "withdrawn_by"})
_DERIVED = frozenset({TableRole.UPSERT, TableRole.OVERWRITE, TableRole.COPY})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTable:
    """One table of a region, as its claim rows describe it.

    Attributes:
        name: path below DRAINMARK_HOME, e.g. `lake/word_counts` or `state/word_count/words_by_word`; of a sink outside
            Delta the name that is used everywhere, e.g. `database/warehouse/orders`.
        role: see `TableRole`.
        operator: name of the operator that writes it.
        schema_json: Spark's (and Delta's) JSON of the schema, all nullable.
        keys: key columns (CHANGES and UPSERT).
        history: of a derived table: name of the CHANGES or APPEND table from which it is brought up to date.
        columns: of a derived table: the columns of the history that are visible; of an UPSERT table keys first,
            `_sequence_id` last.
        deletes: rows of its history may be gone (`_gone`): of an UPSERT table they delete their keys, of an OVERWRITE
            table one stands for an id without rows.
        adopted: others made the table and may write to it; published through delta-spark.
        evolves: columns that the code adds are added to the table.
        external: the adapter that writes it (`database`, `file`), "" for a Delta table.
        options: settings of the adapter, or of the Delta table, without credentials.
        retention: of a state: the part of the past that it keeps (`Retention`, as JSON); {} if that is not known, or
            if it keeps everything.
        withdrawn_by: of a table of a change stream: the states that know which of its rows came, and alone take them
            back; "" among them if plain rows come, too. () if all do.
    """

    name: str
    role: TableRole
    operator: str
    schema_json: str
    keys: tuple[str, ...] = ()
    history: str | None = None
    columns: tuple[str, ...] = ()
    deletes: bool = False
    adopted: bool = False
    evolves: bool = False
    external: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    retention: Mapping[str, Any] = field(default_factory=dict, hash=False)
    withdrawn_by: tuple[str, ...] = ()

    @property
    def is_derived(self) -> bool:
        """Say whether it is brought up to date from a history, so that no files are staged for it."""
        return self.role in _DERIVED

    @property
    def is_managed(self) -> bool:
        """Say whether it is a Delta table that only Drainmark writes to."""
        return not self.adopted and not self.external

    @property
    def is_merged_on_read(self) -> bool:
        """Say whether rows leave it by deletion vectors."""
        return self.options.get("merge") == ON_READ

    @property
    def may_widen(self) -> bool:
        """Say whether the table gets the columns that it lacks: new ones of the code, or `_gone`."""
        return self.evolves or (self.role is TableRole.CHANGES and "_gone" in self.column_names)

    @property
    def column_names(self) -> list[str]:
        """Return the names of the columns that the region writes."""
        return [column["name"] for column in json.loads(self.schema_json)["fields"]]

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a flag that is not set is left out, so that rows without it stay as in older versions."""
        value = asdict(self)
        return {name: field for name, field in value.items() if name not in _FLAGS or field}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RegionTable:
        fields = dict(value)
        fields["role"] = TableRole(fields["role"])
        fields["keys"] = tuple(fields["keys"])
        fields["columns"] = tuple(fields["columns"])
        fields["withdrawn_by"] = tuple(fields.get("withdrawn_by") or ())
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A whole keyed state at id `at`: for each key, the rows with the largest ids in its files count.

    Only rows of the checkpoint table name it, so a rewind withdraws it with its row.

    Attributes:
        table: name of the CHANGES table whose state it is.
        at: the sequence id of the state.
        files: below that table's root, never part of its Delta log; older images may name them, too.
        runs: number of files of each run, oldest first (see `state/runs.py`); () if all files are one run.
    """

    table: str
    at: int
    files: tuple[StagedFile, ...]
    runs: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        value = {"table": self.table, "at": self.at, "files": [file.to_json() for file in self.files]}
        return value | ({"runs": list(self.runs)} if self.runs else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Image:
        return cls(
            table=value["table"],
            at=value["at"],
            files=tuple(StagedFile.from_json(file) for file in value["files"]),
            runs=tuple(value.get("runs") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Append rows that a group withdraws: it has processed their files anew, or retracts them.

    Attributes:
        ids: withdrawn id -> the id in its place.
        files: by name of an APPEND table, staged files with only the withdrawn rows: `show --at` an earlier id reads
            them, and a rewind to an earlier id brings them back.
        by_nothing: the ids in their place have no rows of these files (`drainmark retract`).
    """

    ids: Mapping[int, int]
    files: Mapping[str, tuple[StagedFile, ...]]
    by_nothing: bool = False

    def to_json(self) -> dict[str, Any]:
        value = {"ids": {str(old): new for old, new in self.ids.items()}, "files": _files_to_json(self.files)}
        return value | ({"by_nothing": True} if self.by_nothing else {})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Replaced:
        ids = {int(old): new for old, new in value["ids"].items()}
        return cls(ids=ids, files=_files_from_json(value["files"]), by_nothing=bool(value.get("by_nothing")))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTaken:
    """The input that a group took from an autonomous source: read at most once, so a replay does not find it again.

    Attributes:
        files: number of files taken, whether or not they could be read.
        rows: number of rows that the region saw.
        bad: number of rows and whole files that could not be read and are left out.
        error: the reason why the group got no rows, None if reading worked.
    """

    files: int = 0
    rows: int = 0
    bad: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The output of autonomous operators downstream for a group, written before its commit: at least once.

    Attributes:
        rows: number of rows written to the table.
        error: the reason why they were not written, None if they were.
    """

    rows: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All staged files of one group, by table name; in the checkpoint row of the group's last id.

    Attributes:
        files: CHANGES and APPEND tables with their staged files, possibly none.
        upserts: names of the derived tables (UPSERT, OVERWRITE, COPY) to bring up to date from their histories' files.
        images: states written whole with this group.
        lookups: Delta version read, by autonomous lookup table.
        replaced: the append rows that the group withdraws, None for nearly all groups.
        feeds: by name of an autonomous source, the input taken; sources without input are not named.
        sent: by name of a table that is written outside the region, the output written.
        stages: by name of a stage, the id up to which (inclusive) it has done everything; empty if that is the
            committed id for all stages, and nothing is in flight.
        channels: the batches in flight, as JSON (see `stage_flow`).
        spans: by name of a derived table that needs every id, (first, last) of each run of ids that the row brings;
            a table that is not named has the group's own ids.
        restarts: by name of a stage, how often it began a batch again since the last row.
        late: by id of a state of an earlier row, later findings of stages: `rows_quarantined`, `reason`, `unmet`.
        dropped_intervals: checkpoint intervals that ended while an earlier commit was under way, since the last row.
    """

    files: Mapping[str, tuple[StagedFile, ...]]
    upserts: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    lookups: Mapping[str, int] | None = None
    replaced: Replaced | None = None
    feeds: Mapping[str, FeedTaken] = field(default_factory=dict)
    sent: Mapping[str, Sent] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    channels: Mapping[str, Any] = field(default_factory=dict)
    spans: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    dropped_intervals: int = 0

    @property
    def has_partitions(self) -> bool:
        """Say whether files of partitioned tables are among its files."""
        replaced = self.replaced.files if self.replaced else {}
        return any(file.partition for staged in (*self.files.values(), *replaced.values()) for file in staged)

    def to_json(self) -> dict[str, Any]:
        """Return the fields; a field that few rows have is left out if empty: such rows stay as in older versions."""
        value: dict[str, Any] = {
            "files": _files_to_json(self.files),
            "upserts": list(self.upserts),
            "images": [image.to_json() for image in self.images],
            "lookups": dict(self.lookups or {}),
        }
        if self.replaced:
            value["replaced"] = self.replaced.to_json()
        if self.feeds:
            value["feeds"] = {name: asdict(taken) for name, taken in self.feeds.items()}
        if self.sent:
            value["sent"] = {name: asdict(sent) for name, sent in self.sent.items()}
        if self.stages:
            value |= {"stages": dict(self.stages), "channels": dict(self.channels)}
        if self.spans:
            value["spans"] = {name: [list(run) for run in runs] for name, runs in self.spans.items()}
        if self.restarts:
            value["restarts"] = dict(self.restarts)
        if self.late:
            value["late"] = {str(number): dict(remark) for number, remark in self.late.items()}
        if self.dropped_intervals:
            value["dropped_intervals"] = self.dropped_intervals
        told = {
            name: {file.path: file.statistics for file in files if file.statistics}
            for name, files in self.files.items()
        }
        if any(told.values()):
            value["statistics"] = {name: statistics for name, statistics in told.items() if statistics}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        return cls(
            files=_with_statistics(_files_from_json(value["files"]), value.get("statistics") or {}),
            upserts=tuple(value["upserts"]),
            images=tuple(Image.from_json(image) for image in value["images"]),
            lookups=value["lookups"],
            replaced=Replaced.from_json(value["replaced"]) if value.get("replaced") else None,
            feeds={name: FeedTaken(**taken) for name, taken in (value.get("feeds") or {}).items()},
            sent={name: Sent(**sent) for name, sent in (value.get("sent") or {}).items()},
            stages=value.get("stages") or {},
            channels=value.get("channels") or {},
            spans={name: tuple((a, b) for a, b in runs) for name, runs in (value.get("spans") or {}).items()},
            restarts=value.get("restarts") or {},
            late=late_of(value),
            dropped_intervals=value.get("dropped_intervals") or 0,
        )


def _with_statistics(
    files: Mapping[str, tuple[StagedFile, ...]], told: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[StagedFile, ...]]:
    return {
        name: tuple(replace(file, statistics=told[name].get(file.path, "")) for file in staged)
        if name in told
        else staged
        for name, staged in files.items()
    }


def late_of(manifest: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return `Manifest.late` from the JSON of a manifest."""
    return {int(number): remark for number, remark in (manifest.get("late") or {}).items()}


def _files_to_json(files: Mapping[str, tuple[StagedFile, ...]]) -> dict[str, Any]:
    return {name: [file.to_json() for file in staged] for name, staged in files.items()}


def _files_from_json(value: Mapping[str, Any]) -> dict[str, tuple[StagedFile, ...]]:
    return {name: tuple(StagedFile.from_json(file) for file in files) for name, files in value.items()}
