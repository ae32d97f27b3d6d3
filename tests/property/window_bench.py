"""A windowed aggregate without a region: its step over one group after another, its states in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from window_cases import SCHEMA, Case

from jobs.arrow_frames import frame_of
from jobs.graph.operator import GONE, POSITION, SEQUENCE_ID, Result, Vectorises
from jobs.graph.params import Params
from jobs.operators.aggregate import Aggregate
from jobs.runtime.frames import GroupFrames
from jobs.runtime.materialising import Materialiser
from jobs.state.keyed_rows import last_per_key, last_rows_per_key

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What was emitted at each id and was late, by number of the file; the windows that are kept, the watermark."""

    emitted: dict[int, list[Row]]
    late: dict[int, list[Row]]
    open: int
    watermark: list[Row]


class Bench:
    """One configuration, of the library's own operator."""

    def __init__(self, session: Any, case: Case) -> None:
        self.session, self.case = session, case
        self.operator = case.operator()
        self.states: dict[str, pa.Table] = {}

    @property
    def is_single(self) -> bool:
        return self.operator.vectorisation() is Vectorises.NO

    def run(self, files: Sequence[Sequence[Row]], parts: Sequence[int]) -> Found:
        """Go through the files, ids 1, 2, 3 …, in groups of these sizes."""
        self.states = {}
        emitted: dict[int, list[Row]] = defaultdict(list)
        late: dict[int, list[Row]] = defaultdict(list)
        begin = 0
        for size in parts:
            result = self._step(files[begin : begin + size], begin + 1)
            for output, into in (("", emitted), ("late", late)):
                if output in self.operator.outputs:
                    for row in result.of(output).toArrow().to_pylist():
                        into[row[SEQUENCE_ID] - 1].append(row)
            begin += size
        watermark = self.states.get("watermark")
        kept = self.states.get("")
        return Found(emitted, late, kept.num_rows if kept else 0, watermark.to_pylist() if watermark else [])

    def _step(self, files: Sequence[Sequence[Row]], first_id: int) -> Result:
        tagged = [
            {**row, SEQUENCE_ID: first_id + number, POSITION: {"block": place // 4, "row": place % 4}}
            for number, rows in enumerate(files)
            for place, row in enumerate(rows)
        ]
        schema = f"{SCHEMA}, {SEQUENCE_ID} bigint, {POSITION} struct<block: bigint, row: bigint>"
        materialiser = Materialiser(session=self.session, small=True)
        frames = GroupFrames(
            session=self.session, params=Params(), first_id=first_id, last_id=first_id + len(files) - 1,
            scanned_frames={}, read_state=self._before, read_lookup=lambda operator: None,
            read_statement=lambda name: "", read_kept=self._kept, small=True,
            materialise=lambda operator, frame: materialiser.once(frame),
            streams={"events": self.session.createDataFrame(tagged[::-1], schema)},
        )  # fmt: skip
        result = self.operator.step(frames)
        if isinstance(self.operator, Aggregate):
            rows = result.output.toArrow()
            self._fold("", rows, self.operator.all_keys, self.operator.depth)
            return Result(self.operator.seen(self.session.createDataFrame(rows)))
        for kept in self.operator.kept:
            self._fold(kept.part, result.changes[kept.part].toArrow(), kept.keys, kept.depth)
        return result

    def _before(self, operator: Aggregate, partials: Any) -> tuple[Any, Any]:
        kept = self.states.get("")
        if kept is None or not kept.num_rows:
            return partials, None
        return partials, frame_of(self.session, kept.select(partials.columns))

    def _kept(self, operator: Any, part: str, changed: Any) -> Any:
        kept = self.states.get(part)
        return frame_of(self.session, kept) if kept is not None and kept.num_rows else None

    def _fold(self, part: str, changes: pa.Table, keys: Sequence[str], depth: int) -> None:
        numbered = changes.group_by([*keys, SEQUENCE_ID]).aggregate([([], "count_all")])["count_all"]
        assert pc.max(numbered).as_py() in (None, *range(1, depth + 1)), "more rows of a key and id than are kept"
        rows = pa.concat_tables([*([self.states[part]] if part in self.states else []), changes])
        last = last_per_key(rows, keys) if depth == 1 else last_rows_per_key(rows, keys, depth)
        if GONE in last.column_names:
            last = last.filter(pc.invert(last[GONE].fill_null(False)))
        self.states[part] = last
