"""An application that can be cut into four stages, and the same one uncut; a test can make one operator wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from waiting import SOON

import drainmark as dm
from drainmark import F
from drainmark.jobs.graph.application import Application

REGION = "staged/lines"
FILES = {
    "0.txt": "to be or not to be\n",
    "1.txt": "to do\nis to be\n",
    "2.txt": "",
    "3.txt": "be kind to all\n",
    "4.txt": "all is well\nthat ends well\n",
    "5.txt": "well to be\n",
}


@dataclass
class Gate:
    """A gate in the operator `numbered`: the id from which it waits, the errors that it raises, the ids that came."""

    held_from: int | None = None
    raises: dict[int, list[Any]] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def hold_from(self, number: int | None) -> None:
        """Hold all ids from this one on, inclusive; None lets all ids pass."""
        with self._changed:
            self.held_from = number
            self._changed.notify_all()

    def passing(self, number: int) -> None:
        with self._changed:
            self.seen.append(number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.held_from is None or number < self.held_from, SOON)
            errors = self.raises.get(number)
            if errors:
                raise errors.pop(0)

    def await_id(self, number: int) -> None:
        """Wait until an id has come to the gate."""
        with self._changed:
            assert self._changed.wait_for(lambda: number in self.seen, SOON), self.seen


def staged(
    gate: Gate | None = None, *, cut: bool = True, batches: int = 8, interval: float | None = None, **region: Any
) -> Application:
    """Return the application: lines, the counts of their words, and a number for each word and each change of a count.

    If it is cut, its stages are those of `lines`, `counts` (reads `lines`), `numbered` (reads both, so two channels
    come together), and `long` (reads `numbered`).
    """
    gate = gate or Gate()

    class Numbered(dm.StateHandler):
        n = 0

        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            gate.passing(context.sequence_id)
            rows = rows.sort_by("word")  # the words of a line have the same position
            first, self.n = self.n, self.n + rows.num_rows
            return pa.table({"n": pa.array(range(first, self.n), pa.int64()), "word": rows["word"]})

        def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
            checkpoint.write(self.n)

        def reset(self, checkpoint: dm.Checkpoint) -> None:
            self.n = checkpoint.read(int)

        def reset_to_initial_state(self) -> None:
            self.n = 0

    def through(stream: Any) -> Any:
        return dm.buffered(stream, batches=batches, checkpoint_interval=interval) if cut else stream

    with dm.application("staged") as declared:
        declare(Numbered, through, region)
    return dm.build_application(declared)


def declare(numbered: type[dm.StateHandler], through: Callable[[Any], Any], region: dict[str, Any]) -> None:
    @dm.consistent(trigger="operator-driven", **region)
    @dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text", settle=0))
    def lines(scanned: Any) -> Any:
        return scanned

    @dm.functor
    def words(lines: Any) -> Any:
        return dm.select(lines, F.explode(F.regexp_extract_all(F.lower("value"), F.lit("[a-z]+"), 0)).alias("word"))

    counts = dm.aggregate(through(words), name="counts", keys=["word"], values={"count": dm.count()})
    dm.sink(counts, dm.DeltaUpsert("word_counts", keys=["word"]))
    dm.sink(counts, dm.DeltaAppend("count_changes"))

    @dm.functor(inputs=[through(counts)])
    def changed(counts: Any) -> Any:
        return dm.select(counts, F.concat("word", F.lit("="), F.col("count").cast("string")).alias("word"))

    @dm.functor(inputs=[through(words)])
    def plain(words: Any) -> Any:
        return dm.select(words, "word")

    both = dm.union(changed, plain, name="both")
    last = dm.operator(numbered, output="n bigint, word string", name="numbered", inputs=[both])
    dm.sink(last, dm.DeltaAppend("numbered_words"))

    @dm.filter(inputs=[through(last)])
    def long(numbered: Any) -> Any:
        return F.length("word") > 3

    dm.sink(long, dm.DeltaAppend("long_words"))


def refusing(gate: Gate) -> Application:
    """Return an application of lines; its second stage refuses lines that begin with `be`, once the gate is open."""

    class Passed(dm.StateHandler):
        def process(self, rows: pa.Table, context: Any) -> pa.Table:
            gate.passing(context.sequence_id)
            return rows.select(["value"])

        def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
            checkpoint.write(0)

        def reset(self, checkpoint: dm.Checkpoint) -> None:
            checkpoint.read(int)

        def reset_to_initial_state(self) -> None: ...

    with dm.application("staged") as declared:

        @dm.consistent(trigger="operator-driven", alignment="unaligned")
        @dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text", settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        passed = dm.operator(Passed, output="value string", name="passed", inputs=[dm.buffered(lines)])

        @dm.filter(inputs=[passed])
        def refused(passed: Any) -> Any:
            return F.col("value").startswith("be")

        dm.quarantine(refused, reason="it begins with be")
        dm.sink(passed, dm.DeltaAppend("passed_lines"))
    return dm.build_application(declared)


TABLES = ("word_counts", "count_changes", "numbered_words", "long_words")
