"""What the promises say a region's tables hold, computed from its checkpoint rows and the contents of its files.

It is written from `docs/guarantees.md`, and shares no code with the product, so a fault is not made twice. A row of a
table is a pair (sequence id, value); the tables of a region and their roles are those that its claims name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Pairs = list[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a checkpoint table, as it lies in Parquet; the fields are those of `CheckpointRow`.

    Attributes:
        position: of the row in commit order.
    """

    position: int
    kind: str
    sequence_id: int
    epoch: int
    first: int
    last: int
    uri: str
    identity: Mapping[str, Any]
    recorded_at: float
    detail: Mapping[str, Any]

    @property
    def is_again(self) -> bool:
        """Say whether its file was processed anew by request, so that the rows of the earlier time leave."""
        return "again" in self.identity

    @property
    def retracts(self) -> int | None:
        """Return the id of the state that it takes back; None of a row that has a file of its own."""
        return self.identity.get("retracts") if self.identity.get("kind") == "retraction" else None


UNREADABLE = "!"
"""A file with this value cannot be read at all; a value that begins so, only that value not."""


def readable(values: Sequence[str]) -> list[str]:
    """Return the values of a file of which a table gets rows."""
    return [] if UNREADABLE in values else [value for value in values if not value.startswith(UNREADABLE)]


DELETE = "-"
"""Where keys are deleted, a value that begins so deletes the key behind it."""


def quarantined(values: Sequence[str]) -> list[str]:
    """Return the values of a file that go to the quarantine: one for a file that is unreadable as a whole."""
    return [UNREADABLE] if UNREADABLE in values else [value for value in values if value.startswith(UNREADABLE)]


@dataclass(frozen=True, slots=True)
class Moment:
    """The ids in force after a commit, and the id of that commit."""

    number: int
    ids: tuple[int, ...]


@dataclass(slots=True)
class Model:
    """The fold of a region's rows, in commit order.

    Args:
        rows: of the checkpoint table.
        values_of: returns the values in the file of a state.
        horizon: number of ids that a rewind can go back.

    Attributes:
        force: the states and skips in force, by id.
        ever: all states and skips, also withdrawn ones.
        tables: the newest description of each table, by name.
        declared: the tables that the last claim named.
        left: tables that some claim did not name any more.
        moments: after each group, skip and rewind.
        rewinds: target by id of each rewind.
        published: all commits up to this id are carried out.
        floor: the lowest id, except 0, that was never beyond the horizon.
        dropped: by keyed state, the id up to which its changes may be gone.
        refused: the rows of files that were given up.
        given_up: tables that an operator dropped after they left the code.
        fault: the first row that breaks a rule of ids.
    """

    rows: Iterable[Row]
    values_of: Callable[[Row], Sequence[str]]
    horizon: int
    force: dict[int, Row] = field(default_factory=dict)
    ever: dict[int, Row] = field(default_factory=dict)
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    declared: tuple[str, ...] = ()
    left: set[str] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=lambda: [Moment(0, ())])
    rewinds: dict[int, int] = field(default_factory=dict)
    published: int = 0
    floor: int = 0
    lags: Mapping[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    refused: list[Row] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)
    epoch: int = 0
    newest: int = 0
    fault: str | None = None
    _named: dict[int, Collection[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = list(self.rows)
        for row in self.rows:
            self._add(row)

    def _add(self, row: Row) -> None:
        if row.epoch < self.epoch or (row.kind == "claim" and row.epoch == self.epoch):
            self.fault = self.fault or f"a {row.kind} of epoch {row.epoch} follows epoch {self.epoch}"
        self.epoch = max(self.epoch, row.epoch)
        if row.kind in ("state", "skip", "rewind"):
            if row.sequence_id <= self.newest:
                self.fault = self.fault or f"a {row.kind} has the id {row.sequence_id} after {self.newest}"
            self.newest = max(self.newest, row.sequence_id)
        if row.kind in ("state", "skip"):
            self.force[row.sequence_id] = self.ever[row.sequence_id] = row
            if row.sequence_id == row.last:
                manifest = row.detail.get("manifest") or {}
                names = (*manifest.get("files", ()), *manifest.get("upserts", ()))
                self._named.update(dict.fromkeys(range(row.first, row.last + 1), frozenset(names)))
                self._moment(row.sequence_id)
        elif row.kind == "rewind":
            self.rewinds[row.sequence_id] = to = int(row.detail["to"])
            self.force = {number: each for number, each in self.force.items() if number <= to}
            self._moment(row.sequence_id)
            self.lags = {}
            self.dropped = self.dropped if to else {}
        elif row.kind == "published":
            self.published = max(self.published, int(row.detail.get("through", row.sequence_id)))
            self.lags = row.detail.get("lags") or {}
            self.dropped |= row.detail.get("dropped") or {}
            self.given_up |= set(row.detail.get("dropping") or ())
        elif row.kind == "refused":
            self.refused.append(row)
        if row.kind in ("claim", "rewind") and row.detail.get("tables"):
            found = {table["name"]: table for table in row.detail["tables"]}
            self.left |= set(self.tables).difference(found)
            self.tables |= found
            self.declared = tuple(found)

    def _moment(self, number: int) -> None:
        self.moments.append(Moment(number, tuple(self.force)))
        self.floor = max(self.floor, max(self.force, default=0) - self.horizon)

    @property
    def committed(self) -> int:
        return max(self.force, default=0)

    def is_shown(self, name: str) -> bool:
        """Say whether users read a table, and all of its rows count; a history may drop rows beyond the horizon."""
        is_history = any(table.get("history") == name for table in self.tables.values())
        return self.tables[name]["role"] != "changes" and not is_history

    def ids_at(self, number: int) -> list[int]:
        """Return the ids in force up to an id."""
        return [each for each in self.force if each <= number]

    def replaced(self, ids: Collection[int]) -> dict[int, int]:
        """Return old id -> new id of files that were processed again, or retracted, where these ids are in force."""
        found, newest = {}, dict[str, int]()
        for number in sorted(ids):
            row = self.ever[number]
            if row.retracts is not None:
                found[row.retracts] = number
            elif row.kind == "state":
                if row.is_again and row.uri in newest:
                    found[newest[row.uri]] = number
                newest[row.uri] = number
        return found

    def content(self, name: str, ids: Collection[int]) -> Pairs:
        """Return the rows of a table where these ids are in force, sorted."""
        table = self.tables[name]
        role, gone = table["role"], self.replaced(ids)
        source = table["history"] if role == "upsert" else name
        if "_gone" in self.tables[source]["schema_json"]:
            return self._of_keys(source, ids, shows_them=role == "upsert")
        states = [n for n in sorted(ids) if self.ever[n].kind == "state" and source in self._named[n] and n not in gone]
        sorted_out = quarantined if name.endswith("_quarantine") else readable
        found = [(number, value) for number in states for value in sorted_out(self.values_of(self.ever[number]))]
        if role == "changes":
            return sorted(set(found))
        if role == "upsert":
            return sorted((number, value) for value, number in {value: number for number, value in found}.items())
        if role == "overwrite":
            last = max((number for number, _ in found), default=0)
            return sorted((number, value) for number, value in found if number == last)
        return sorted(found)

    def _of_keys(self, source: str, ids: Collection[int], *, shows_them: bool) -> Pairs:
        """Return the changes of keys that files bring and delete, or the keys that are there behind them.

        A key is as the last file says that changed it and was not retracted. A retraction writes the keys anew of which
        its file was the last one.
        """
        said: dict[str, dict[int, bool]] = {}
        changes: Pairs = []
        for number in (n for n in sorted(ids) if self.ever[n].kind == "state" and source in self._named[n]):
            old = self.ever[number].retracts
            values = readable(self.values_of(self.ever[number if old is None else old]))
            told = {value.removeprefix(DELETE): not value.startswith(DELETE) for value in values}
            if old is None:
                for key, is_there in told.items():
                    said.setdefault(key, {})[number] = is_there
                changes += [(number, key) for key in told]
            else:
                changes += [(number, key) for key in told if max(said[key], default=0) == old]
                for key in told:
                    del said[key][old]
        if not shows_them:
            return sorted(changes)
        last = {key: number for number, key in changes}
        return sorted((last[key], key) for key, mine in said.items() if mine and mine[max(mine)])

    def contents_since(self, name: str) -> list[Pairs]:
        """Return what a reader may find in a visible table now: its content after the last commit that is known to be
        carried out, or after any later one."""
        least = min(self.published, self.lags.get(name, self.published))
        if self.tables[name]["role"] == "upsert" and name in self.left:
            least = 0  # a table that came back to the code is brought up when its history goes on
        before = [moment for moment in self.moments if moment.number <= least]
        after = [moment for moment in self.moments if moment.number > least]
        found = [self.content(name, moment.ids) for moment in (*before[-1:], *after)]
        if least == 0:
            found += [self.content(name, moment.ids) for moment in before[:-1]]
        return found

    def files_needed(self) -> dict[str, set[str]]:
        """Return, by table, the files that some state within the horizon needs, and no older one."""
        oldest, found = self.committed - self.horizon, dict[str, set[str]]()

        def add(name: str, files: Iterable[Mapping[str, Any]]) -> None:
            found.setdefault(name, set()).update(file["path"] for file in files)

        images: dict[str, dict[int, Any]] = {}
        for number, row in self.force.items():
            manifest = self.ever[row.last].detail.get("manifest") or {}  # its last id may be withdrawn
            if number >= oldest:
                for name, files in (manifest.get("files") or {}).items():
                    add(name, files)
            for image in manifest.get("images") or () if row.last in self.force else ():
                images.setdefault(image["table"], {})[image["at"]] = image["files"]
            for name, files in ((manifest.get("replaced") or {}).get("files") or {}).items():
                add(name, files)
        for name, by_id in images.items():
            edges = (oldest, self.dropped.get(name, 0))
            kept = [max((at for at in by_id if at <= edge), default=0) for edge in edges]
            for at in by_id:
                if at >= oldest or at in kept:
                    add(name, by_id[at])
        return found

    def files_of_parts(self) -> set[str]:
        """Return the images of groups of which a rewind left a part: they may stay as long as that part."""
        groups = {row.last for row in self.force.values()} - self.force.keys()
        manifests = [self.ever[last].detail.get("manifest") or {} for last in groups]
        return {file["path"] for found in manifests for image in found.get("images") or () for file in image["files"]}
