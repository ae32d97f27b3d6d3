"""A windowed aggregate without a region: its step processes one group after another, with its states in memory."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from window_cases import SCHEMA, Case

from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.graph.context import ABOVE, UPTO, Due, Fit, OperatorContext
from drainmark.jobs.graph.operator import StepResult
from drainmark.jobs.graph.params import Params
from drainmark.jobs.runtime.input.executors import InMemory
from drainmark.jobs.state.due_rows import DueSpan
from drainmark.jobs.state.keyed_rows import last_per_key, last_rows_per_key, rows_of_keys

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """The emitted and the late rows, by number of the file; the number of windows kept, and the watermark."""

    emitted: dict[int, list[Row]]
    late: dict[int, list[Row]]
    open: int
    watermark: list[Row]


class Bench:
    """A bench for one configuration of the library's own operator."""

    def __init__(self, session: Any, case: Case, *, is_local: bool = False, tied: random.Random | None = None,
                 schema: str = SCHEMA) -> None:  # fmt: skip
        """Create a bench. `is_local`: this process computes all that it may; `tied`: four rows share each position, and
        come in any order."""
        self.session, self.case, self.is_local, self.tied, self.schema = session, case, is_local, tied, schema
        self.operator = case.operator()
        self.states: dict[str, pa.Table] = {}
        self.changes: dict[str, list[pa.Table]] = defaultdict(list)

    def run(self, files: Sequence[Sequence[Row]], parts: Sequence[int]) -> Found:
        """Process the files with ids 1, 2, 3 … in groups of these sizes."""
        self.states, self.changes = {}, defaultdict(list)
        return self.go_on(files, 1, parts)

    def go_on(self, files: Sequence[Sequence[Row]], first_id: int, parts: Sequence[int] = ()) -> Found:
        """Go on from the present states, in one group unless sizes are given."""
        emitted: dict[int, list[Row]] = defaultdict(list)
        late: dict[int, list[Row]] = defaultdict(list)
        begin = 0
        for size in parts or [len(files)]:
            result = self._step(files[begin : begin + size], first_id + begin)
            for output, into in (("", emitted), ("late", late)):
                if output in self.operator.outputs:
                    for row in result.of(output).toArrow().to_pylist():
                        into[row[SEQUENCE_ID] - 1].append(row)
            begin += size
        watermark = self.states.get("watermark")
        kept = self.states.get("")
        return Found(emitted, late, kept.num_rows if kept else 0, watermark.to_pylist() if watermark else [])

    def _step(self, files: Sequence[Sequence[Row]], first_id: int) -> StepResult:
        tagged = [
            {**row, SEQUENCE_ID: first_id + number, POSITION: {"block": place // 4, "row": place % 4}}
            for number, rows in enumerate(files)
            for place, row in enumerate(rows)
        ]
        if self.tied is not None:
            tagged = [{**row, POSITION: {"block": 0, "row": row[POSITION]["block"]}} for row in tagged]
            self.tied.shuffle(tagged)
        schema = f"{self.schema}, {SEQUENCE_ID} bigint, {POSITION} struct<block: bigint, row: bigint>"
        executor = InMemory(session=self.session)
        frames = OperatorContext(
            session=self.session, params=Params(), first_id=first_id, last_id=first_id + len(files) - 1,
            scanned_frames={}, read_state=self._before, read_lookup=lambda operator: None,
            read_statement=lambda name: "", read_kept=self._kept, few=lambda operator: True, is_run=self.is_local,
            materialise=lambda operator, frame: executor.once(frame),
            own_places=() if self.tied is not None else ("events",),
            streams={"events": self.session.createDataFrame(tagged[::-1], schema)},
        )  # fmt: skip
        result = self.operator.step(frames)
        if self.operator.output_state is not None:
            rows = result.output.toArrow()
            self._fold("", rows)
            return StepResult(self.operator.output_state.seen(self.session.createDataFrame(rows)))
        for kept in self.operator.kept:
            self._fold(kept.part, result.changes[kept.part].toArrow())
        return result

    def _before(self, operator: Any, partials: Any) -> tuple[Any, Any]:
        kept = self.states.get("")
        if kept is None or not kept.num_rows:
            return partials, None
        return partials, frame_of(self.session, kept.select(partials.columns))

    def _kept(self, operator: Any, part: str, changed: Any, due: Due | None, fit: Fit) -> Any:
        """Return only the part of a state that the operator asks for."""
        kept = self.states.get(part)
        if kept is not None and due is not None and changed is not None:
            by = next(each.looked_up_by for each in operator.kept if each.part == part)
            (span,) = due.span().toArrow().to_pylist()
            is_due = DueSpan(due.column, span.get(ABOVE), span[UPTO]).of(kept)
            own = rows_of_keys(kept, changed.select(*by).toArrow(), by) if by else kept
            kept = last_per_key(pa.concat_tables([own, is_due]), self._kept_by(part)[0])
        return frame_of(self.session, kept) if kept is not None and kept.num_rows else None

    def state_at(self, number: int) -> list[Row]:
        """Return the state of the values as a rewind to an id finds it: the changes up to that id, inclusive."""
        keys, depth = self._kept_by("")
        changes = [rows.filter(pc.less_equal(rows[SEQUENCE_ID], number)) for rows in self.changes[""]]
        return self._last(pa.concat_tables(changes), keys, depth).to_pylist()

    def _kept_by(self, part: str) -> tuple[Sequence[str], int]:
        if self.operator.output_state is not None:
            return self.operator.output_state.keys, self.operator.output_state.depth
        return next((kept.keys, kept.depth) for kept in self.operator.kept if kept.part == part)

    def _fold(self, part: str, changes: pa.Table) -> None:
        keys, depth = self._kept_by(part)
        numbered = changes.group_by([*keys, SEQUENCE_ID]).aggregate([([], "count_all")])["count_all"]
        assert pc.max(numbered).as_py() in (None, *range(1, depth + 1)), "more rows of a key and id than are kept"
        self.changes[part].append(changes)
        self.states[part] = self._last(
            pa.concat_tables(
                [*([self.states[part]] if part in self.states else []), changes], promote_options="permissive"
            ),
            keys,
            depth,
        )

    @staticmethod
    def _last(rows: pa.Table, keys: Sequence[str], depth: int) -> pa.Table:
        last = last_per_key(rows, keys) if depth == 1 else last_rows_per_key(rows, keys, depth)
        return last.filter(pc.invert(last[GONE].fill_null(False))) if GONE in last.column_names else last
