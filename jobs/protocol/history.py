"""What the rows of a checkpoint table mean: the region's facts, folded in commit order (design.md §3.3).

Pure: rows in, facts out. Everything that must survive the loss of the registry is answered from here (H27).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jobs.errors import RewindRefused
from jobs.protocol.ids import INITIAL_ID
from jobs.protocol.manifest import Image, Manifest, RegionTable, Replaced
from jobs.protocol.rows import CheckpointRow, RowKind


class Outcome(StrEnum):
    """How an owner ended; CRASHED is what the next owner concludes when there is no word."""

    NONE = "none"  # there was no owner yet
    CLEAN = "clean"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CRASHED = "crashed"


UNCLEAN = frozenset({Outcome.FAILED, Outcome.CRASHED})
_STATES = frozenset({RowKind.STATE, RowKind.SKIP})


@dataclass(frozen=True, slots=True)
class Replacement:
    """What came of a state whose file was processed anew: the id in its place, and where its append rows are kept."""

    by: int
    kept: Replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionHistory:
    """The facts of a region after a number of rows.

    Attributes:
        epoch: the highest; 0 before the first claim.
        next_id: the smallest id that was surely never given away.
        states: effective states and skips by id, oldest first: what rewinds withdrew is not in here.
        withdrawn: states that a rewind withdrew and that were not processed again, in their input order.
        attempts: unclean claims since the last state, resume or rewind (E14, E18).
        halt: the halt row in force.
        unpublished: state, skip and rewind rows (the last of each group) committed and not yet noted as published.
        tables: the region's tables as the last claim or rewind knew them.
        former: tables that earlier claims knew and the last one does not: a group of then may still be unpublished.
        versions: Delta version by table of the last published note.
        replaced: states in force whose append rows a later state in force withdrew, by id.
        last_claim, last_outcome, last_error: of the newest owner.
    """

    epoch: int = 0
    next_id: int = 1
    states: Mapping[int, CheckpointRow] = dataclasses.field(default_factory=dict)
    withdrawn: tuple[CheckpointRow, ...] = ()
    attempts: int = 0
    halt: CheckpointRow | None = None
    unpublished: tuple[CheckpointRow, ...] = ()
    tables: tuple[RegionTable, ...] = ()
    former: tuple[RegionTable, ...] = ()
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    last_claim: CheckpointRow | None = None
    last_outcome: Outcome = Outcome.NONE
    last_error: Mapping[str, Any] | None = None
    refused: tuple[CheckpointRow, ...] = ()
    replaced: Mapping[int, Replacement] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Iterable[CheckpointRow]) -> RegionHistory:
        """Fold rows given in commit order."""
        return cls().with_rows(rows)

    def with_rows(self, rows: Iterable[CheckpointRow]) -> RegionHistory:
        """Return the facts after further rows."""
        fold = _Fold(self)
        for row in rows:
            fold.add(row)
        return fold.result()

    @property
    def committed_id(self) -> int:
        """Return the newest effective committed id, 0 for the initial state."""
        return list(self.states)[-1] if self.states else INITIAL_ID

    @property
    def published_id(self) -> int:
        """Return the newest effective id that is noted as published; the note of the last group may be on its way."""
        open_groups = [row.group_first or row.sequence_id for row in self.unpublished if row.kind is RowKind.STATE]
        if not open_groups:
            return self.committed_id
        return max((number for number in self.states if number < min(open_groups)), default=INITIAL_ID)

    @property
    def is_rewinding(self) -> bool:
        """Is a rewind committed whose tables are not all done?"""
        return any(row.kind is RowKind.REWIND for row in self.unpublished)

    def image_of(self, table: str) -> Image | None:
        """Return the newest effective image of a keyed state."""
        for row in reversed(list(self.states.values())):
            manifest = manifest_of(row)
            for image in manifest.images if manifest else ():
                if image.table == table:
                    return image
        return None

    def replaced_by(self, sequence_id: int) -> int | None:
        """Return the id whose state withdrew the append rows of an id."""
        found = self.replaced.get(sequence_id)
        return found.by if found else None

    def replaced_after(self, to: int) -> list[Replaced]:
        """Return the rows that were there at an id and were withdrawn after it."""
        found: dict[int, tuple[Replaced, dict[int, int]]] = {}
        for old, replacement in self.replaced.items():
            if old <= to < replacement.by:
                found.setdefault(id(replacement.kept), (replacement.kept, {}))[1][old] = replacement.by
        return [dataclasses.replace(kept, ids=ids) for kept, ids in found.values()]

    def newest_by_uri(self) -> dict[str, int]:
        """Return, by uri, the newest state in force that no other has replaced."""
        states = ((n, row) for n, row in self.states.items() if row.kind is RowKind.STATE and n not in self.replaced)
        return {row.trigger_uri or "": number for number, row in states}

    def triggers_above(self, sequence_id: int) -> tuple[CheckpointRow, ...]:
        """Return the effective states above an id, in input order: what a rewind to it would make pending."""
        above = [row for number, row in self.states.items() if number > sequence_id]
        return tuple(sorted(above, key=lambda row: (row.trigger_order or 0, row.sequence_id)))

    def check_rewind(self, to: int, horizon: int) -> None:
        """Refuse a target that is no effective committed id within the horizon, nor 0, whatever the horizon (H4).

        Raises:
            RewindRefused: names the nearest id that would do.
        """
        oldest = max(INITIAL_ID, self.committed_id - horizon)
        allowed = [INITIAL_ID, *(n for n, row in self.states.items() if row.kind is RowKind.STATE and n >= oldest)]
        if to in allowed:
            return
        nearest = min((n for n in allowed if n >= oldest), key=lambda n: abs(n - to), default=INITIAL_ID)
        if to > self.committed_id:
            why = f"the last committed id is {self.committed_id}"
        elif to < oldest:
            why = f"the rewind horizon reaches back to {oldest}"
        elif to in self.states:
            why = "it belongs to a skipped trigger"
        else:
            why = "no state of that number is in force: its attempt failed or a rewind withdrew it"
        msg = f"cannot rewind to {to}: {why}"
        raise RewindRefused(msg, remedy=f"the nearest id is {nearest}: reset --to {nearest}", nearest=nearest)


def manifest_of(row: CheckpointRow) -> Manifest | None:
    """Return the manifest that the last row of a group carries."""
    value = row.detail.get("manifest")
    return Manifest.from_json(value) if value is not None else None


class _Fold:
    """The fold's working copy; one method a kind."""

    def __init__(self, start: RegionHistory) -> None:
        self.facts = {field.name: getattr(start, field.name) for field in dataclasses.fields(RegionHistory)}
        self.states: dict[int, CheckpointRow] = dict(start.states)
        self.withdrawn: dict[tuple[Any, ...], CheckpointRow] = {_identity(row): row for row in start.withdrawn}
        self.unpublished: list[CheckpointRow] = list(start.unpublished)
        self.refused: list[CheckpointRow] = list(start.refused)
        self.replaced: dict[int, Replacement] = dict(start.replaced)

    def add(self, row: CheckpointRow) -> None:
        self.facts["epoch"] = max(self.facts["epoch"], row.epoch)
        getattr(self, f"_{row.kind.value}")(row)

    def result(self) -> RegionHistory:
        withdrawn = sorted(self.withdrawn.values(), key=lambda row: (row.trigger_order or 0, row.sequence_id))
        self.facts.update(
            states=self.states,
            withdrawn=tuple(withdrawn),
            unpublished=tuple(self.unpublished),
            refused=tuple(self.refused),
            replaced=self.replaced,
        )
        return RegionHistory(**self.facts)

    def _burn(self, next_id: int) -> None:
        self.facts["next_id"] = max(self.facts["next_id"], next_id)

    def _claim(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id)
        previous = Outcome(row.detail.get("previous", Outcome.NONE))
        if previous in UNCLEAN:
            self.facts["attempts"] += 1
        if row.detail.get("error"):
            self.facts["last_error"] = row.detail["error"]
        self._tables(row)
        self.facts.update(last_claim=row, last_outcome=Outcome.CRASHED)

    def _tables(self, row: CheckpointRow) -> None:
        if row.detail.get("tables"):
            tables = tuple(RegionTable.from_json(table) for table in row.detail["tables"])
            named = {table.name for table in tables}
            earlier = {table.name: table for table in (*self.facts["former"], *self.facts["tables"])}
            former = tuple(table for name, table in earlier.items() if name not in named)
            self.facts.update(tables=tables, former=former)

    def _state(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id + 1)
        self.states[row.sequence_id] = row
        self.withdrawn.pop(_identity(row), None)
        self.facts["attempts"] = 0
        self.facts["last_error"] = None
        if row.sequence_id == row.group_last:
            self.unpublished.append(row)
            self._replace(row)

    def _replace(self, row: CheckpointRow) -> None:
        value = (row.detail.get("manifest") or {}).get("replaced")
        if value:
            kept = Replaced.from_json(value)
            self.replaced.update((old, Replacement(new, kept)) for old, new in kept.ids.items())

    def _skip(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id + 1)
        self.states[row.sequence_id] = row
        self.withdrawn.pop(_identity(row), None)
        self.unpublished.append(row)

    def _published(self, row: CheckpointRow) -> None:
        self.facts["versions"] = {**self.facts["versions"], **row.detail.get("versions", {})}
        done = row.detail.get("through", row.sequence_id)
        self.unpublished = [open_ for open_ in self.unpublished if open_.sequence_id > done]
        for last, seconds in (row.detail.get("commit_seconds") or {}).items():
            self._timed(int(last), seconds)
        outcome = row.detail.get("outcome")
        if outcome:
            self.facts["last_outcome"] = Outcome(outcome)
        if row.detail.get("error"):
            self.facts["last_error"] = row.detail["error"]

    def _timed(self, last: int, seconds: float) -> None:
        """A commit cannot hold its own duration: the next one brings it."""
        group = self.states.get(last)
        for number in range(group.group_first or last, last + 1) if group else ():
            if number in self.states:
                self.states[number] = dataclasses.replace(self.states[number], checkpoint_seconds=seconds)

    def _rewind(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id + 1)
        to = row.detail["to"]
        for number in [number for number in self.states if number > to]:
            withdrawn = self.states.pop(number)
            self.withdrawn[_identity(withdrawn)] = withdrawn
        self.replaced = {old: found for old, found in self.replaced.items() if old <= to and found.by <= to}
        self._tables(row)
        self.facts.update(attempts=0, halt=None, last_error=None)
        self.unpublished.append(row)

    def _halt(self, row: CheckpointRow) -> None:
        self.facts["halt"] = row
        if row.detail.get("error"):
            self.facts["last_error"] = row.detail["error"]

    def _resume(self, row: CheckpointRow) -> None:
        self.facts.update(halt=None, attempts=0)

    def _refused(self, row: CheckpointRow) -> None:
        self.refused.append(row)
        self.withdrawn.pop(_identity(row), None)


def _identity(row: CheckpointRow) -> tuple[Any, ...]:
    identity: Sequence[tuple[str, Any]] = sorted((row.trigger_identity or {}).items())
    return (row.trigger_uri, *identity)
