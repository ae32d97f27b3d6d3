"""`apply_changes`: the rows of a table, or their history, out of its inserts, updates and deletes in any order.

Its output is a change stream: a row with `_gone` takes a row back. `newest.py` and `versions.py` have the two
computations.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import OperatorFailed, Violation
from drainmark.jobs.frames.names import literal, quoted_name
from drainmark.jobs.frames.row_order import payload_of
from drainmark.jobs.frames.tags import GONE, SOURCE_FILE
from drainmark.jobs.graph.annotations import LONGEST, is_duration
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import KeptState, Operator, Retention, StepResult, names_of
from drainmark.jobs.operators.changes.change_shape import (
    BLOCK,
    BY,
    DELETES,
    IN_BLOCK,
    KEPT_FORGOTTEN,
    KEPT_NAMES,
    KEPT_TEXT,
    TRUNCATES,
    VALID_FROM,
    VALIDITY,
    WHY,
    ChangeShape,
    is_ordered,
    parts_of,
)
from drainmark.jobs.operators.changes.group_changes import TRUNCATED, UNTIL, GroupChanges
from drainmark.jobs.operators.changes.numbered_changes import NET
from drainmark.jobs.operators.changes.rules import IS_KEPT
from drainmark.jobs.state import clock
from drainmark.jobs.state.placed_rows import IS_NEW, ranked, require_columns
from drainmark.jobs.state.run_files import KEY_HASH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["apply_changes"]

_SAID = {BY, DELETES, TRUNCATES, WHY}
_ON_THE_WAY = _SAID | {BLOCK, IN_BLOCK, UNTIL, IS_NEW, KEY_HASH, NET, IS_KEPT}
"""Columns that changes get beside all columns of the stream, and beside those of the output."""


@dataclass(frozen=True, kw_only=True)
class ApplyChanges(Operator):
    """State of type 1: the last change of each key, also if it is a delete; of type 2: all changes of each key.

    The state is the history of upsert sinks with these keys, see `newest.py` and `versions.py`.

    Attributes:
        sequence_by: SQL; several expressions are compared one after the other.
        is_listed: the sequence was given as a list, and is a struct even if it has one part.
        columns, except_columns: of the output; None if not given.
        tracked, untracked: columns of which a change begins, or begins no, new version; None if not given.
        within: how long deletes are remembered; None for ever.
    """

    kind: ClassVar[str] = "apply-changes"
    summary: ClassVar[str] = "the rows of a table, or their history, out of its inserts, updates and deletes"
    keeps_tags: ClassVar[bool] = True
    gives_changes: ClassVar[bool] = True
    configurations: ClassVar[tuple[str, ...]] = (
        "scd 1",
        "scd 1 truncates",
        "scd 1 within ids",
        "scd 1 within duration",
        "scd 2",
        "scd 2 tracked",
    )

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    is_listed: bool = False
    apply_as_deletes: str | None = None
    apply_as_truncates: str | None = None
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] | None = None
    scd_type: int = 1
    tracked: tuple[str, ...] | None = None
    untracked: tuple[str, ...] | None = None
    within: int | dt.timedelta | None = None

    @property
    def kept(self) -> tuple[KeptState, ...]:
        is_newest = self.scd_type == 1
        states = [
            KeptState(
                keys=self.keys if is_newest else (*self.keys, KEPT_TEXT),
                looked_up_by=self.keys,
                evolves=True,
                gone=KEPT_FORGOTTEN,
                history_of=self._history_of(),
                retention=self._retention(),
            )
        ]
        if self.apply_as_truncates is not None:
            states.append(KeptState(part=TRUNCATED))
        if self.within is not None:
            states.append(clock.clock_state())
        return tuple(states)

    def _history_of(self) -> tuple[str, ...]:
        if self.scd_type == 1:
            return self.keys
        tracks_all = self.tracked is None and self.untracked is None
        return (*self.keys, VALID_FROM) if tracks_all else ()  # else a version has values of several changes

    def _retention(self) -> Retention:
        """Return what the state is of: changes in another order, or deletes that are forgotten, cannot be had again."""
        what = "last changes" if self.scd_type == 1 else "changes"
        kept = f"{what} by {', '.join(' '.join(part.split()) for part in self.sequence_by)}"
        if isinstance(self.within, dt.timedelta):
            return Retention(of=f"{kept}, deletes for seconds", extent=self.within.total_seconds())
        return (
            Retention(of=kept)
            if self.within is None
            else Retention(of=f"{kept}, deletes for triggers", extent=self.within)
        )

    def fingerprint(self) -> Any:
        return {
            **super().fingerprint(),
            "keys": list(self.keys),
            "by": [list(self.sequence_by), self.is_listed],
            "deletes": self.apply_as_deletes,
            "truncates": self.apply_as_truncates,
            "columns": [_listed(self.columns), _listed(self.except_columns)],
            "scd": [self.scd_type, _listed(self.tracked), _listed(self.untracked)],
            "within": str(self.within),
        }

    # --- declaration ------------------------------------------------------------------------------------------------

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.keys:
            yield self.wrong("APPLY_CHANGES_KEYS", "it has no keys", 'give keys=["id"]')
        if not self.sequence_by or not all(isinstance(part, str) and part.strip() for part in self.sequence_by):
            yield self.wrong(
                "APPLY_CHANGES_SEQUENCE", "nothing says which change is later", 'give sequence_by="updated_at"'
            )
        for condition in (self.apply_as_deletes, self.apply_as_truncates):
            if condition is not None and not (isinstance(condition, str) and condition.strip()):
                remedy = """write apply_as_deletes="op = 'DELETE'\""""
                yield self.wrong("APPLY_CHANGES_CONDITION", "a condition is SQL", remedy)
        if self.columns is not None and self.except_columns is not None:
            yield self.wrong(
                "APPLY_CHANGES_COLUMNS", "columns= and except_columns= exclude each other", "leave one out"
            )
        if named := sorted(set(self.keys) & set(self.except_columns or ())):
            message = f"{', '.join(named)} is a key, and except_columns= leaves it out"
            yield self.wrong("APPLY_CHANGES_COLUMNS", message, "the keys are always in the output: name other columns")
        if self.scd_type not in (1, 2) or isinstance(self.scd_type, bool):
            message = f"stored_as_scd_type={self.scd_type!r} is not known"
            yield self.wrong("APPLY_CHANGES_TYPE", message, "1 for the newest rows, 2 for the history")
        yield from self._wrong_history()
        yield from self._wrong_while()
        if not in_region:
            remedy = "feed it from a consistent region"
            yield self.wrong("APPLY_CHANGES_AUTONOMOUS", "no region commits what it remembers", remedy)

    def _wrong_history(self) -> Iterator[Violation]:
        if self.tracked is not None and self.untracked is not None:
            message = "track_history_columns= and track_history_except_columns= exclude each other"
            yield self.wrong("APPLY_CHANGES_HISTORY", message, "leave one out")
        elif self.scd_type == 1 and (self.tracked is not None or self.untracked is not None):
            message = "rows of type 1 have no history to track"
            yield self.wrong("APPLY_CHANGES_HISTORY", message, "stored_as_scd_type=2, or leave the columns out")
        if self.scd_type == 2 and self.apply_as_truncates is not None:
            message = "apply_as_truncates= is for type 1: a history is not truncated"
            yield self.wrong("APPLY_CHANGES_HISTORY", message, "stored_as_scd_type=1, or leave apply_as_truncates= out")

    def _wrong_while(self) -> Iterator[Violation]:
        rule = "APPLY_CHANGES_WITHIN"
        if self.within is None:
            return
        if self.scd_type == 2:
            message = "within= is for type 1: in a history the deletes are the ends of versions"
            yield self.wrong(rule, message, "leave within= out")
        if isinstance(self.within, dt.timedelta):
            if not is_duration(self.within, above=dt.timedelta(0)):
                remedy = f"give a time above zero, and at most {LONGEST.days} days"
                yield self.wrong(rule, f"within={self.within} is no while", remedy)
            if len(self.sequence_by) != 1:
                message = "a duration needs a sequence that is one time"
                yield self.wrong(rule, message, 'give sequence_by="updated_at", or within a number of triggers')
        elif isinstance(self.within, bool) or self.within < 0:
            yield self.wrong(rule, f"within={self.within!r} is no number of triggers", "give 0 or more")

    # --- the changes of a group -------------------------------------------------------------------------------------

    def step(self, frames: OperatorContext) -> StepResult:
        port = self.inputs[0]
        rows = ranked(frames, self, port, () if self.apply_as_truncates else self.keys)
        shape = frames.once_a_run((self.name, "shape"), lambda: self._shape(rows))
        judged = frames.once(self, self._judged(rows, shape), is_cheap=True)
        return GroupChanges(
            operator=self,
            frames=frames,
            shape=shape,
            judged=judged,
            has_truncates=self.apply_as_truncates is not None,
            within=self.within,
        ).applied()

    def _judged(self, rows: DataFrame, shape: ChangeShape) -> DataFrame:
        """Return rows with their sequence, what they do, and `WHY` they are refused: null if they are not."""
        said = rows.selectExpr("*", *self._said(shape.is_float))
        nulls = " or ".join(f"{part.sql} is null" for part in parts_of(BY, shape.by_type))
        by = ", ".join(self.sequence_by)
        cases = [(nulls, f"the sequence, {by}, is null")]
        cases += [(f"not {TRUNCATES} and {quoted_name(key)} is null", f"the key {key} is null") for key in self.keys]
        whens = " ".join(f"when {condition} then {literal(f'{self.name}: {why}')}" for condition, why in cases)
        return said.selectExpr("*", f"case {whens} end as {WHY}")

    def _said(self, is_float: bool) -> list[str]:
        """Return the SQL of what a row says: its sequence, whether it is a delete or a truncate."""
        if self.is_listed:
            named = (f"({part}) as `{_part_name(part, i)}`" for i, part in enumerate(self.sequence_by, 1))
            by = f"struct({', '.join(named)})"
        else:  # there is one zero
            by = f"({self.sequence_by[0]})" + (" + cast(0 as double)" if is_float else "")
        truncates = f"coalesce(({self.apply_as_truncates or 'false'}), false)"
        deletes = f"coalesce(({self.apply_as_deletes or 'false'}), false)"
        return [f"{by} as {BY}", f"{deletes} as {DELETES}", f"{truncates} as {TRUNCATES}"]

    def _shape(self, rows: DataFrame) -> ChangeShape:
        """Return what the types of a stream tell.

        Raises:
            OperatorFailed: a column is missing, or has a name that the output or the state gives to others; or the
                sequence has no order.
        """
        from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

        port, given = self.inputs[0], payload_of(rows)
        named = (self.columns, self.except_columns, self.tracked, self.untracked)
        require_columns(self, port, rows, [*self.keys, *(name for names in named for name in names or ())])
        if self.columns is not None:
            names = [*(key for key in self.keys if key not in self.columns), *self.columns]
        else:
            names = [name for name in given if name not in (*(self.except_columns or ()), SOURCE_FILE)]
        if lacking := [name for name in self.tracked or () if name not in names]:
            message = f"the output has no column {', '.join(lacking)}, by which track_history_columns= tells versions"
            raise self._unfit(message, f"name some of {', '.join(names)}, or have columns= name it, too")
        taken = {GONE, *KEPT_NAMES, *_ON_THE_WAY, *(VALIDITY if self.scd_type == 2 else ())}
        if clashes := sorted(name for name in {*names, *given} if name.lower() in (taken if name in names else _SAID)):
            leave = "" if _SAID & {*map(str.lower, clashes)} else f"leave it out by except_columns={clashes}, or "
            remedy = f"{leave}rename it in a dm.functor before"
            raise self._unfit(f"{port.stream!r} has a column {', '.join(clashes)}, which it makes itself", remedy)
        by_type = rows.selectExpr(*self._said(False)).schema[BY].dataType
        for part in parts_of(self.sequence_by[0], by_type):
            if not is_ordered(part.kind):
                remedy = "name columns of numbers, texts or times"
                raise self._unfit(f"{part.sql} is {part.kind.simpleString()}, by which nothing is ordered", remedy)
        is_float = isinstance(by_type, FloatType | DoubleType)
        if isinstance(self.within, dt.timedelta) and by_type.typeName() not in ("timestamp", "timestamp_ntz", "date"):
            remedy = "give within= as a number of triggers"
            raise self._unfit(f"{self.sequence_by[0]} is {by_type.simpleString()}, and no time", remedy)
        untracked = {*self.keys, *(self.untracked or ())}
        return ChangeShape(
            keys=self.keys,
            columns=StructType([StructField(name, rows.schema[name].dataType) for name in names]),
            by_type=DoubleType() if is_float else by_type,
            is_float=is_float,
            is_history=self.scd_type == 2,
            forgets=self.within is not None,
            tracked=tuple(name for name in names if name not in untracked) if self.tracked is None else self.tracked,
        )

    def _unfit(self, message: str, remedy: str) -> OperatorFailed:
        return OperatorFailed(f"{self.name!r}: {message}", operator=self.name, location=self.location, remedy=remedy)


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _part_name(sql: str, number: int) -> str:
    return sql if sql.isidentifier() else f"part_{number}"


def apply_changes(
    stream: StreamLike,
    *,
    keys: Sequence[str],
    sequence_by: str | Sequence[str],
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    columns: Sequence[str] | None = None,
    except_columns: Sequence[str] | None = None,
    stored_as_scd_type: Literal[1, 2] = 1,
    track_history_columns: Sequence[str] | None = None,
    track_history_except_columns: Sequence[str] | None = None,
    within: int | dt.timedelta | None = None,
    name: str | None = None,
) -> Stream:
    """Declare a table out of its changes: `dm.apply_changes(changes, keys=["id"], sequence_by="lsn")`.

    A row of the stream is an insert or an update of its key, or a delete, or a truncate, which deletes all keys.
    Changes may come in any order, and more than once. Of two changes of a key with one sequence, the later in the
    stream counts. The words are those of Spark's `create_auto_cdc_flow`.

    Type 1 has the newest row of each key. A change with a smaller sequence than the last change of its key changes
    nothing, also if that was a delete: deletes and truncates are remembered. Type 2 has the history of each key: rows
    with `valid_from` and `valid_to`, of the type of the sequence (`valid_to` is null while the row is current), and the
    boolean `is_current`. A late change goes into the past at its place. Rows that follow each other and differ in no
    tracked column are one row, with the newest values.

    The result is a change stream, for `dm.DeltaUpsert` or `dm.DatabaseUpsert` with these keys, and for type 2 with
    `keys=[*keys, "valid_from"]`: its rows have the boolean `_gone`, true in a row that is taken back.

    A row without sequence, or without one of its keys, goes to the region's quarantine (a truncate needs no key).

    Args:
        stream: the changes.
        keys: key columns. They are always in the output.
        sequence_by: column, or SQL, that orders the changes of a key: a number, text, time or bytes, or a struct of
            these. Several are compared one after the other; for type 2 into a table give one, since it is a key of the
            sink.
        apply_as_deletes: condition in SQL: the row is a delete. Null is false.
        apply_as_truncates: condition in SQL: the row deletes all keys with smaller sequences. For type 1.
        columns: columns of the output. By default all but `source_file`.
        except_columns: or the columns that are not in the output.
        stored_as_scd_type: 1: the newest row of each key; 2: the history of each key.
        track_history_columns: for type 2, columns whose change begins a new row; other columns are changed in the row.
            By default all columns of the output but the keys.
        track_history_except_columns: or the columns whose change begins no new row.
        within: for type 1, how long a delete is remembered. By default for ever: the state then holds every key that
            ever was. A number: for the rest of its trigger and that many triggers after it. A `datetime.timedelta`:
            until the newest sequence, a time, is that much later. A change that comes still later is applied.
        name: identity of the state; `<stream>_applied` by default.

    Raises:
        OperatorFailed: the stream lacks a column, or the sequence has no order; raised when a run starts, before its
            claim.

    Example:
        @dm.functor
        def changes(orders):
            return orders.selectExpr("*", "if(amount < 0, 'DELETE', 'UPSERT') as op")

        customers = dm.apply_changes(
            changes,
            keys=["customer"],
            sequence_by="at",
            apply_as_deletes="op = 'DELETE'",
            except_columns=["op"],
        )
        dm.sink(customers, dm.DeltaUpsert("customers_now", keys=["customer"]))
    """
    is_listed = not isinstance(sequence_by, str)
    operator = ApplyChanges(
        name=name or f"{default_name(stream)}_applied",
        inputs=(port_to(stream),),
        keys=names_of(keys),
        sequence_by=names_of(sequence_by),
        is_listed=is_listed,
        apply_as_deletes=apply_as_deletes,
        apply_as_truncates=apply_as_truncates,
        columns=None if columns is None else names_of(columns),
        except_columns=None if except_columns is None else names_of(except_columns),
        scd_type=stored_as_scd_type,
        tracked=None if track_history_columns is None else names_of(track_history_columns),
        untracked=None if track_history_except_columns is None else names_of(track_history_except_columns),
        within=within,
    )
    return declare(operator)
