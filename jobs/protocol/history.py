"""The meaning of the rows of a checkpoint table: the region's facts, folded in commit order.

Pure: rows in, facts out. All facts that must survive the loss of the registry come from here. A further row costs the
same after a hundred rows and after a million: data that grows with the history is shared or read on demand.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.protocol.claimed_code import Claim, Deploy, deployed
from drainmark.jobs.protocol.counters import Totals
from drainmark.jobs.protocol.id_runs import Ids, States
from drainmark.jobs.protocol.records.checkpoint_row import UNCLEAN, CheckpointRow, Outcome, PublishNote, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import (
    Image,
    Manifest,
    RegionTable,
    Replaced,
    StagedFile,
    TableRole,
)
from drainmark.jobs.protocol.records.schema_compatibility import (
    Retentions,
    retained,
    retained_at,
    with_retentions,
)
from drainmark.jobs.protocol.records.state_generations import Generations, begun, rewound
from drainmark.jobs.protocol.records.triggers import RETRACTION
from drainmark.jobs.protocol.rewind_steps import Rewind
from drainmark.jobs.protocol.stage_flow import Flow
from drainmark.jobs.protocol.withdrawn_ids import Withdrawn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacement of a state after its file was processed anew, or retracted: the new id, and the files with the
    old rows."""

    by: int
    kept: Replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionHistory:
    """The facts of a region after a number of rows.

    Attributes:
        epoch: the highest of all rows; 0 before the first claim.
        lost_epochs: (first, last) of epochs that were claimed, and whose claims are missing: an older copy of the
            checkpoint table was restored.
        next_id: the smallest id that, by the rows, was never given away.
        states: effective states and skips by id, oldest first, without those that rewinds withdrew.
        skips: the ids of the skips among them.
        images: by name of a CHANGES table, the effective ids at which its state was written whole, oldest first.
        carried: by name of a CHANGES table, such an id -> the id of the row with the image, if it is a different id.
        dropped: by name of a CHANGES table, the id up to which (inclusive) its changes were dropped: an image has them.
        trimmed: by name of a history of rows, the id up to which (inclusive) rows may be gone; nothing replaces them.
        lags: by visible table that is behind its history, the last id that it shows.
        gone: the states that rewinds withdrew; see `withdrawn`.
        attempts: unclean claims since the last state, progress, resume, rewind or change of the code.
        halt: the halt row in force; a rewind ends it unless an operator asked for it.
        unpublished: state, progress, skip and rewind rows (the last of each group) that are committed and not yet noted
            as published.
        tables: the region's tables, as the last claim or rewind named them.
        former: tables that earlier rows named and the last one did not; a group from then may still be unpublished.
        left: by former table, the id up to which (inclusive) it is complete; no entry if it left before digests
            had this field.
        dropping: former tables that are being dropped: by name the id of the Delta table to delete, "" if only its
            name is to be forgotten.
        operators: fingerprint by operator of the code that last claimed the region; None if no claim has any.
        code: digest of the files of that code; None if no claim has one.
        deploys: the codes that made ids, or may make them, oldest first; those before digests had them are missing.
        horizon: number of ids that this code lets a rewind go back; None if no claim has it.
        generations: the tables of states that were dropped and begun anew; see `state_generations`.
        retentions: the parts of the past that states keep, by the id from which on they keep it.
        versions: Delta version by table, from the newest published note that names the table.
        replaced: by id of a state in force, the later state in force that withdrew its append rows.
        last_claim, last_outcome, last_error: of the newest owner.
        totals: sums over all rows.
        rewinds: the time of each rewind, in seconds since 1970, and its target id, oldest first.
        refusals: the rows of refused triggers that are newer than the archive of `states`; see `refused`.
        flow: the progress of the region's stages; see `stage_flow`.
    """

    epoch: int = 0
    lost_epochs: tuple[tuple[int, int], ...] = ()
    next_id: int = 1
    states: States = field(default_factory=States)
    skips: frozenset[int] = frozenset()
    images: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    carried: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    trimmed: Mapping[str, int] = field(default_factory=dict)
    lags: Mapping[str, int] = field(default_factory=dict)
    gone: Withdrawn = field(default_factory=Withdrawn)
    attempts: int = 0
    halt: CheckpointRow | None = None
    unpublished: tuple[CheckpointRow, ...] = ()
    tables: tuple[RegionTable, ...] = ()
    former: tuple[RegionTable, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)
    dropping: Mapping[str, str] = field(default_factory=dict)
    operators: Mapping[str, str] | None = None
    code: str | None = None
    deploys: tuple[Deploy, ...] = ()
    horizon: int | None = None
    generations: Generations = field(default_factory=dict)
    retentions: Retentions = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    last_claim: CheckpointRow | None = None
    last_outcome: Outcome = Outcome.NONE
    last_error: Mapping[str, Any] | None = None
    replaced: Mapping[int, Replacement] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    rewinds: tuple[tuple[float, int], ...] = ()
    refusals: tuple[CheckpointRow, ...] = ()
    flow: Flow = field(default_factory=Flow)

    @classmethod
    def from_rows(cls, rows: Iterable[CheckpointRow]) -> RegionHistory:
        """Return the facts after rows in commit order."""
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
        return self.states.ids.from_end(1) or INITIAL_ID

    @property
    def published_id(self) -> int:
        """Return the newest effective id that is noted as published; the last group may not have its note yet."""
        open_groups = [row.first_id for row in self.unpublished if row.kind is RowKind.STATE]
        if not open_groups:
            return self.committed_id
        return self.states.ids.at_most(min(open_groups) - 1) or INITIAL_ID

    @property
    def tables_by_name(self) -> dict[str, RegionTable]:
        """Return all tables that the region has or had, the former ones first."""
        return {table.name: table for table in (*self.former, *self.tables)}

    @property
    def shown_id(self) -> int:
        """Return the newest effective id that all visible tables show."""
        return min([self.published_id, *self.lags.values()])

    @property
    def rewinding(self) -> tuple[CheckpointRow, ...]:
        """Return the committed rewinds that have not taken back all their tables yet."""
        return tuple(row for row in self.unpublished if row.kind is RowKind.REWIND)

    @property
    def is_halt_asked(self) -> bool:
        """Say whether an operator asked for the halt in force. If so, only `resume` ends it.

        Rows from before 0.4 do not record this.
        """
        return self.halt is not None and bool(self.halt.detail.get("asked"))

    @property
    def withdrawn(self) -> tuple[CheckpointRow, ...]:
        """Return the states that a rewind withdrew and that were not processed again, in their input order."""
        return self.gone.in_order(self.states.rows)

    @property
    def refused(self) -> tuple[CheckpointRow, ...]:
        """Return the rows of all refused triggers, without those of slices that were cut anew."""
        archive = self.states.rows.archive
        every = (*(archive.refusals() if archive is not None else ()), *self.refusals)
        return tuple(row for row in every if not row.detail.get("anew"))

    def image_of(self, table: str, at: int | None = None) -> Image | None:
        """Return the newest effective image of a keyed state; with `at`, the newest at or below that id."""
        for number in reversed(self.images.get(table, ())):
            if at is None or number <= at:
                carrier = self.carried.get(table, {}).get(number)
                manifest = manifest_of(self.states.rows.get(number if carrier is None else carrier))
                images = (image for image in manifest.images if image.table == table) if manifest else iter(())
                return next(image for image in images if carrier is None or image.at == number)
        return None

    def image_held(self, table: str, at: int | None, holds: Callable[[Sequence[StagedFile]], bool]) -> Image | None:
        """Return the image to read a keyed state from: `image_of`, or the image that stands in for dropped changes.

        `gc` keeps the second one for any horizon. Both, with the changes after them, give the same state.

        Args:
            holds: returns whether all given files exist.

        Returns:
            None if neither image exists; the changes are then enough, unless some were dropped.
        """
        stands_in = self.image_of(table, self.dropped[table]) if table in self.dropped else None
        found = (image for image in (self.image_of(table, at), stands_in) if image is not None)
        return next((image for image in found if holds(image.files)), None)

    def state_at_least(self, sequence_id: int) -> int | None:
        """Return the smallest effective id of a state (not of a skip) at or above an id."""
        number = self.states.ids.at_least(sequence_id)
        while number is not None and number in self.skips:
            number = self.states.ids.at_least(number + 1)
        return number

    def state_at_most(self, sequence_id: int) -> int | None:
        """Return the largest effective id of a state (not of a skip) at or below an id."""
        number = self.states.ids.at_most(sequence_id)
        while number is not None and number in self.skips:
            number = self.states.ids.at_most(number - 1)
        return number

    def replaced_by(self, sequence_id: int) -> int | None:
        """Return the id of the state that has the rows of an id's file in its place; None if none does."""
        found = self.replaced.get(sequence_id)
        return found.by if found and not found.kept.by_nothing else None

    def replaced_after(self, to: int) -> list[Replaced]:
        """Return the replaced rows that were in force at an id and were withdrawn after it."""
        found: dict[int, tuple[Replaced, dict[int, int]]] = {}
        for old, replacement in self.replaced.items():
            if old <= to < replacement.by:
                found.setdefault(id(replacement.kept), (replacement.kept, {}))[1][old] = replacement.by
        return [replace(kept, ids=ids) for kept, ids in found.values()]

    def newest_by_uri(self, uris: Collection[str] | None = None) -> dict[str, int]:
        """Return, by uri, the id of the newest state in force that no state replaced; for some uris, or for all."""
        rows = self.states.values() if uris is None else self.states.rows.of(uris)
        return {
            row.trigger_uri or "": row.sequence_id
            for row in rows
            if row.kind is RowKind.STATE and row.trigger_kind != RETRACTION
            if row.sequence_id in self.states and row.sequence_id not in self.replaced
        }

    def triggers_above(self, sequence_id: int) -> tuple[CheckpointRow, ...]:
        """Return the effective states above an id, in input order: a rewind to it makes their triggers pending."""
        above = (row for row in self.states.above(sequence_id).values() if row.trigger_kind != RETRACTION)
        return tuple(sorted(above, key=lambda row: (row.trigger_order or 0, row.sequence_id)))

    def oldest_target(self, horizon: int) -> int:
        """Return the oldest id, except 0, that a rewind can go to: within the horizon, all changes after it kept.

        Args:
            horizon: number of ids.
        """
        return max(INITIAL_ID, self.committed_id - horizon, *self.dropped.values(), *self.trimmed.values())

    def check_rewind(self, to: int, horizon: int) -> None:
        """Refuse a target that is not the id of an effective state within the horizon; 0 is always allowed.

        Raises:
            RewindRefused: the target is not allowed; the error names the nearest id that is.
        """
        oldest = self.oldest_target(horizon)
        is_state = to in self.states and to not in self.skips
        if to == INITIAL_ID or (is_state and to >= oldest):
            return
        raise _refusal_of(self, to, oldest)


def target_before(history: RegionHistory, sequence_id: int, horizon: int | None = None) -> int:
    """Return the newest id below an id that a rewind can go to; 0 if that of the last state is out of reach.

    Args:
        horizon: number of ids; by default that of the code that last claimed the region.
    """
    found = history.state_at_most(sequence_id - 1) or INITIAL_ID
    reach = next((each for each in (horizon, history.horizon) if each is not None), history.committed_id)
    return found if found >= history.oldest_target(reach) else INITIAL_ID


def commit_times(rows: Iterable[CheckpointRow]) -> Mapping[str, dt.datetime]:
    """Return the commit time of each attempt's group: the time of its last row, the same for all ids of the group."""
    return {row.attempt: row.recorded_at for row in rows if row.kind in (RowKind.STATE, RowKind.SKIP)}


def state_by(history: RegionHistory, moment: dt.datetime) -> int:
    """Return the id of the last state that was committed by a moment, 0 if none was.

    Nothing that was committed later is below it, even if a host whose clock is behind has taken over since.
    """
    times = commit_times(history.states.values())
    later = (number for number, row in history.states.items() if times.get(row.attempt, row.recorded_at) > moment)
    first = next(later, history.next_id)
    return history.state_at_most(first - 1) or INITIAL_ID  # no rewind goes to a skip


def replaced_in(history: RegionHistory, table: str) -> frozenset[int]:
    """Return the ids whose rows were withdrawn from a table of rows; a table of changes keeps all of them."""
    return frozenset(old for old, found in history.replaced.items() if table in found.kept.files)


def retracted_by(history: RegionHistory, sequence_id: int) -> int | None:
    """Return the id of the state that retracted an id; None if none did."""
    found = history.replaced.get(sequence_id)
    return found.by if found and found.kept.by_nothing else None


def retracted_uris(history: RegionHistory) -> dict[str, int]:
    """Return the files without any state in force that counts, because they were retracted: uri -> that state."""
    ids = Ids.of(old for old, found in history.replaced.items() if found.kept.by_nothing)
    found = {row.trigger_uri or "": number for number, row in history.states.rows.among(ids)}
    kept = history.newest_by_uri(found) if found else {}
    return {uri: number for uri, number in found.items() if uri not in kept}


def newest_read(history: RegionHistory, *, skips: bool = True) -> CheckpointRow | None:
    """Return the newest state in force that read an input, or skip; None if there is none. A retraction reads none."""
    number = history.states.ids.from_end(1)
    while number is not None:
        row = history.states[number]
        if row.trigger_kind != RETRACTION and (skips or number not in history.skips):
            return row
        number = history.states.ids.at_most(number - 1)
    return None


def lookups_of(history: RegionHistory) -> Mapping[str, int]:
    """Return the tables that the newest group in force looked up, with their versions; its last state may have left."""
    newest = newest_read(history, skips=False)
    if newest is None:
        return {}
    manifest = manifest_of(history.states.rows.get(newest.group_last or newest.sequence_id))
    return (manifest.lookups if manifest is not None else None) or {}


def manifest_of(row: CheckpointRow) -> Manifest | None:
    """Return the manifest that the last row of a group carries."""
    value = row.detail.get("manifest")
    return Manifest.from_json(value) if value is not None else None


_EMPTY = Manifest(files={})
"""Of a row without files."""


class _Fold:
    """The working copy of a fold, with a method for each kind of row.

    Attributes:
        now: the facts that few rows change; those that most rows change are beside it, and `result` joins them.
    """

    def __init__(self, start: RegionHistory) -> None:
        self.now = start
        self.epoch, self.next_id = start.epoch, start.next_id
        self.ids = start.states.ids
        self.rows = start.states.rows.continued(start.next_id)
        self.gone = start.gone
        self.unpublished: list[CheckpointRow] = list(start.unpublished)
        self.refused: list[CheckpointRow] = []
        self.totals = start.totals.copy()

    def add(self, row: CheckpointRow) -> None:
        self.totals.add(row)
        match row.kind:
            case RowKind.CLAIM:
                self._claim(row)
            case RowKind.STATE:
                self._state(row)
            case RowKind.PROGRESS:
                self._progress(row)
            case RowKind.PUBLISHED:
                self._published(row)
            case RowKind.REWIND:
                self._rewind(row)
            case RowKind.HALT:
                self.now = replace(self.now, halt=row, last_error=row.detail.get("error") or self.now.last_error)
            case RowKind.RESUME:
                self.now = replace(self.now, halt=None, attempts=0)
            case RowKind.SKIP:
                self._skip(row)
            case RowKind.REFUSED:
                self.refused.append(row)
                self.gone = self.gone.answered_by(row)
        self.epoch = max(self.epoch, row.epoch)

    def result(self) -> RegionHistory:
        return replace(
            self.now,
            epoch=self.epoch,
            next_id=self.next_id,
            states=States(self.ids, self.rows),
            gone=self.gone,
            unpublished=tuple(self.unpublished),
            refusals=self.now.refusals + tuple(self.refused),
            totals=self.totals,
        )

    def _burn(self, next_id: int) -> None:
        self.next_id = max(self.next_id, next_id)

    def _committed(self) -> int:
        return self.ids.from_end(1) or INITIAL_ID

    # --- claims -----------------------------------------------------------------------------------------------------

    def _claim(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id)
        claim, before = Claim.from_row(row), self.now
        declared = claim.declared
        lost = ((self.epoch + 1, row.epoch - 1),) if row.epoch > self.epoch + 1 else ()
        attempts = before.attempts + (claim.previous in UNCLEAN)
        code = claim.code or before.code
        self._name_tables(claim.tables)
        flow = before.flow
        if declared.operators:  # it is no claim of a verb
            self._come_back(before.tables_by_name)
            flow = flow.claimed(declared.stages, declared.channels, self._committed())
        self.now = replace(
            self.now,
            lost_epochs=before.lost_epochs + lost,
            attempts=attempts if before.code in (None, code) else 0,  # other code failed
            code=code,
            deploys=deployed(before.deploys, row.epoch, claim, self.next_id, before.operators or {}),
            operators=declared.operators or before.operators,
            horizon=before.horizon if declared.horizon is None else declared.horizon,
            generations=begun(before.generations, declared.begun, row.sequence_id),
            retentions=retained(before.retentions, self.now.tables, row.sequence_id),
            flow=flow,
            last_claim=row,
            last_outcome=Outcome.CRASHED,
            last_error=claim.error or before.last_error,
        )

    def _name_tables(self, tables: tuple[RegionTable, ...]) -> None:
        if tables:
            before = self.now
            named = {table.name for table in tables}
            former = tuple(table for name, table in before.tables_by_name.items() if name not in named)
            known = {table.name for table in before.former}
            left = {table.name: self._committed() for table in former if table.name not in known}
            self.now = replace(before, tables=tables, former=former, left={**left, **before.left})

    def _come_back(self, known: Collection[str]) -> None:
        """Record a lag for upsert tables that were missing, or not declared, while their histories went on.

        The claim of a verb also names tables that a rewind took along; only the claim of code declares tables.
        """
        left, lags = self.now.left, dict(self.now.lags)
        for table in self.now.tables:
            shown = left.get(table.name, None if table.name in known else INITIAL_ID)
            history = table.history or ""
            goes_on = left.get(history, self._committed()) if history in known else INITIAL_ID
            if table.role is TableRole.UPSERT and shown is not None and goes_on > shown:
                lags[table.name] = shown
        declared = {table.name for table in self.now.tables}
        left = {name: number for name, number in left.items() if name not in declared}
        self.now = replace(self.now, lags=lags, left=left)

    # --- rows that take an id ---------------------------------------------------------------------------------------

    def _keep(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id + 1)
        self.rows.add(row)
        self.ids = self.ids.with_id(row.sequence_id)
        self.gone = self.gone.answered_by(row)

    def _succeed(self) -> None:
        if self.now.attempts or self.now.last_error is not None:
            self.now = replace(self.now, attempts=0, last_error=None)

    def _state(self, row: CheckpointRow) -> None:
        self._keep(row)
        if row.trigger_kind != RETRACTION:  # no input was read: it says nothing about the last attempt
            self._succeed()
        if row.sequence_id == row.group_last:
            self.unpublished.append(row)
            manifest = manifest_of(row) or _EMPTY
            self._manifest(row.sequence_id, manifest)
            if (kept := manifest.replaced) is not None:
                found = {old: Replacement(new, kept) for old, new in kept.ids.items()}
                self.now = replace(self.now, replaced={**self.now.replaced, **found})

    def _progress(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id + 1)
        self.rows.add(row)
        self._succeed()
        self.unpublished.append(row)
        self._manifest(row.sequence_id, manifest_of(row) or _EMPTY)

    def _manifest(self, number: int, manifest: Manifest) -> None:
        self.rows.remark(number, manifest.late)
        flow = self.now.flow.committed(manifest, self._committed())
        if flow is not self.now.flow:
            self.now = replace(self.now, flow=flow)
        for image in manifest.images:
            table, at = image.table, image.at  # below the row's id if the row is of several groups, or late
            images, carried = self.now.images, self.now.carried
            self.now = replace(self.now, images={**images, table: (*images.get(table, ()), at)})
            if at != number:
                self.now = replace(self.now, carried={**carried, table: {**carried.get(table, {}), at: number}})

    def _skip(self, row: CheckpointRow) -> None:
        flow = self.now.flow.skipped(row.sequence_id, self._committed())
        self._keep(row)
        self.now = replace(self.now, flow=flow, skips=self.now.skips | {row.sequence_id})
        if row.trigger_uri is not None and row.trigger_uri == (self.now.last_error or {}).get("trigger"):
            self.now = replace(self.now, last_error=None)  # nobody has to fix it any more
        self.unpublished.append(row)

    def _rewind(self, row: CheckpointRow) -> None:
        self._burn(row.sequence_id + 1)
        rewind = Rewind.from_row(row)
        to = rewind.to
        self.gone = self.gone.with_states(self._with_input(self.ids.above(to)), self.rows)
        self.ids = self.ids.up_to(to)
        self.now = before = _rewound(self.now, to)
        self._name_tables(rewind.tables)
        self.now = replace(
            self.now,
            # The row names the tables as the withdrawn code declared them.
            tables=with_retentions(self.now.tables, before.retentions),
            former=with_retentions(self.now.former, before.retentions),
            rewinds=(*before.rewinds, (row.recorded_at.timestamp(), to)),
        )
        self.unpublished.append(row)

    def _with_input(self, ids: Ids) -> Ids:
        """Return the ids of states that have an input, which a rewind makes pending again; a retraction has none."""
        without = {found.by for found in self.now.replaced.values() if found.kept.by_nothing}
        return Ids.of(number for number in ids if number not in without) if without else ids

    # --- notes ------------------------------------------------------------------------------------------------------

    def _published(self, row: CheckpointRow) -> None:
        note, before = PublishNote.from_row(row), self.now
        self.unpublished = [open_ for open_ in self.unpublished if open_.sequence_id > note.through]
        for last, seconds in note.commit_seconds.items():
            self._time(int(last), seconds)
        self.now = replace(
            before,
            versions={**before.versions, **note.versions},
            lags=note.lags,
            dropped={**before.dropped, **note.dropped},
            trimmed={**before.trimmed, **note.trimmed},
            dropping={**before.dropping, **note.dropping},
            last_outcome=note.outcome or before.last_outcome,
            last_error=note.error or before.last_error,
        )
        if note.forgotten:
            self.now = _without(self.now, frozenset(note.forgotten))

    def _time(self, last: int, seconds: float) -> None:
        """Set the duration of a group's commit. A commit cannot hold its own duration: the next one brings it."""
        rows = self.rows.recent
        group = rows.get(last)
        if group is None and last <= self.rows.archived:
            self.rows.late[last] = seconds
        for number in range(group.first_id, last + 1) if group else ():
            if number in rows and rows[number].checkpoint_seconds is None:
                rows[number] = replace(rows[number], checkpoint_seconds=seconds)


def _rewound(history: RegionHistory, to: int) -> RegionHistory:
    """Return the facts without what was only so above an id; states, tables and rewinds are the caller's."""
    return replace(
        history,
        attempts=0,
        halt=history.halt if history.is_halt_asked else None,
        last_error=None,
        skips=frozenset(number for number in history.skips if number <= to),
        images={table: tuple(at for at in ids if at <= to) for table, ids in history.images.items()},
        carried={
            table: {at: number for at, number in ids.items() if at <= to} for table, ids in history.carried.items()
        },
        flow=history.flow.rewound(to),
        generations=rewound(history.generations, to),
        retentions=retained_at(history.retentions, to),
        lags={},  # the rewind uses the lags that its row names
        left={name: min(number, to) for name, number in history.left.items()},
        dropped=history.dropped if to != INITIAL_ID else {},  # no state is left that could lack changes
        trimmed=history.trimmed if to != INITIAL_ID else {},
        replaced={old: found for old, found in history.replaced.items() if old <= to and found.by <= to},
    )


def _without(history: RegionHistory, names: Collection[str]) -> RegionHistory:
    """Return the facts without former tables that were dropped: a table of such a name is a new one from now on."""

    def others(facts: Mapping[str, T]) -> dict[str, T]:
        return {name: fact for name, fact in facts.items() if name not in names}

    return replace(
        history,
        former=tuple(table for table in history.former if table.name not in names),
        left=others(history.left),
        dropping=others(history.dropping),
        versions=others(history.versions),
        lags=others(history.lags),
        images=others(history.images),
        carried=others(history.carried),
        dropped=others(history.dropped),
        trimmed=others(history.trimmed),
        retentions=others(history.retentions),
    )


__all__ = ["UNCLEAN", "Outcome", "RegionHistory", "Replacement", "manifest_of"]


def _refusal_of(history: RegionHistory, to: int, oldest: int) -> RewindRefused:
    """Return the error that says why an id is no target of a rewind, and names the nearest id that is.

    Args:
        oldest: see `RegionHistory.oldest_target`.
    """
    candidates = [
        INITIAL_ID if oldest <= INITIAL_ID else None,
        history.state_at_most(to),
        history.state_at_least(max(to, oldest)),
    ]
    near = [number for number in candidates if number is not None and number >= oldest]
    nearest = min(near, key=lambda number: abs(number - to), default=INITIAL_ID)
    if to > history.committed_id:
        why = f"the last committed id is {history.committed_id}"
    elif to < oldest:
        why = f"the rewind horizon reaches back to {oldest}"
    elif to in history.states:
        why = "it belongs to a skipped trigger"
    else:
        why = "no state of that number is in force: its attempt failed or a rewind withdrew it"
    msg = f"cannot rewind to {to}: {why}"
    return RewindRefused(msg, remedy=f"the nearest id is {nearest}: reset --to {nearest}", nearest=nearest)
