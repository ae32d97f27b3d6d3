"""An interval join without a region: its step processes one group after another, with its states in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from join_oracle import Files, Join, Row, Told, shown
from window_bench import Bench

import drainmark as dm
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.params import Params
from drainmark.jobs.runtime.input.executors import GroupExecutor, InMemory, InTasks

SCHEMA = "user string, x double, {side}n bigint, {side}at timestamp"


def operator_of(join: Join) -> Any:
    """Return the library's own operator for a join."""
    with dm.application("bench"):
        return join.declare("lefts", "rights").operator


class JoinBench(Bench):
    """A bench for the library's own operator; `small`: as in small groups, else as Spark persists large ones."""

    def __init__(self, session: Any, join: Join, *, small: bool = True) -> None:
        self.session, self.small = session, small
        self.keys, self.operator = join.keys, operator_of(join)
        self.states: dict[str, pa.Table] = {}
        self.changes: dict[str, list[pa.Table]] = defaultdict(list)

    def join(self, files: Files, parts: Sequence[int], first_id: int = 1) -> Told:
        """Process the files in groups of these sizes, with ids from `first_id` on, starting from the present states."""
        told, begin = Told(), 0
        for size in parts:
            result = self._group(files[begin : begin + size], first_id + begin)
            for output, found in (("", told.emitted), ("late_left", told.late["l"]), ("late_right", told.late["r"])):
                for row in result.of(output).toArrow().to_pylist():
                    found[row.pop(SEQUENCE_ID) - first_id].append(row)
            for kept in self.operator.kept:
                self._fold(kept.part, result.changes[kept.part].toArrow())
            begin += size
        told.kept.update(l=self.states["left"].num_rows, r=self.states["right"].num_rows)
        return told

    def _group(self, files: Files, first_id: int) -> Any:
        executor: GroupExecutor = InMemory(session=self.session)
        if not self.small:
            executor = InTasks(session=self.session, place=executor.place, keeps_rows=True)
        frames = OperatorContext(
            session=self.session, params=Params(), first_id=first_id, last_id=first_id + len(files) - 1,
            scanned_frames={}, read_state=lambda *_: (_[1], None), read_lookup=lambda operator: None,
            read_statement=lambda name: "", read_kept=self._kept, few=lambda operator: self.small, is_run=True,
            materialise=lambda operator, frame: executor.once(frame),
            streams={"lefts": self._rows(files, first_id, "l"), "rights": self._rows(files, first_id, "r")},
        )  # fmt: skip
        return self.operator.step(frames)

    def _rows(self, files: Files, first_id: int, side: str) -> Any:
        tagged = [
            {**shown(row, self.keys), SEQUENCE_ID: first_id + number, POSITION: {"block": 0, "row": place}}
            for number, rows in enumerate(files)
            for place, row in enumerate(rows)
            if row["side"] == side
        ]
        tags = f"{SEQUENCE_ID} bigint, {POSITION} struct<block: bigint, row: bigint>"
        return self.session.createDataFrame(tagged[::-1], f"{SCHEMA.format(side=side)}, {tags}")

    def at(self, number: int) -> dict[str, list[Row]]:
        """Return the states of both sides as a rewind to an id finds them."""
        found = {}
        for part in ("left", "right"):
            keys, _ = self._kept_by(part)
            changes = pa.concat_tables(self.changes[part])
            upto = changes.filter(pc.less_equal(changes[SEQUENCE_ID], number))
            found[part] = [
                {name: value for name, value in row.items() if name not in (GONE, SEQUENCE_ID)}
                for row in self._last(upto, keys, 1).to_pylist()
            ]
        return found

    def late_rows(self) -> dict[str, int]:
        marks = {side: self.states.get(f"{part}-watermark") for side, part in (("l", "left"), ("r", "right"))}
        return {side: mark.to_pylist()[0]["late_rows"] if mark and mark.num_rows else 0 for side, mark in marks.items()}
