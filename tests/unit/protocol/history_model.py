"""A simple model of a region's history, built in steps; the fold of its rows must agree with its facts."""

from __future__ import annotations

import dataclasses
from typing import Any

from checkpoint_rows import claim, group, input_of, published, rewind, row, skip
from hypothesis import strategies as st

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind


@dataclasses.dataclass
class Model:
    """The facts in a simple form: files by id, and the set of files that a rewind made pending."""

    rows: list[CheckpointRow] = dataclasses.field(default_factory=list)
    states: dict[int, int] = dataclasses.field(default_factory=dict)
    withdrawn: set[int] = dataclasses.field(default_factory=set)
    seen: int = 0
    next_id: int = 1
    epoch: int = 0
    attempts: int = 0
    outcome: str = "none"
    code: str | None = None
    halted: str = ""

    def claim(self, burnt: int) -> None:
        self.epoch += 1
        self.next_id += burnt
        self.attempts += self.outcome in ("crashed", "failed")
        self.rows.append(claim(self.next_id, self.epoch, self.outcome))
        self.outcome = "crashed"

    def drop(self, number: int) -> None:
        """Append a claim of code that begins a state anew."""
        self.claim(0)
        dropped = {f"op{number % 2}": f"{self.epoch:08x}"}
        self.rows[-1] = claim(
            self.next_id, self.epoch, self.rows[-1].detail["previous"],
            operators={"op0": f"{number}", "op1": "x"}, dropped_states=dropped, code=f"code{number % 2}",
        )  # fmt: skip
        if self.code not in (None, f"code{number % 2}"):
            self.attempts = 0
        self.code = f"code{number % 2}"

    def group(self, fresh: int, **detail: Any) -> None:
        again = sorted(self.withdrawn)[: fresh + 1]
        taken = again or list(range(self.seen + 1, self.seen + 2 + fresh))
        self.seen = max(self.seen, *taken)
        self.rows += group(self.next_id, taken, epoch=self.epoch, **detail)
        self.states.update({self.next_id + index: file for index, file in enumerate(taken)})
        self.withdrawn -= set(taken)
        self.next_id += len(taken)
        self.attempts = 0

    def rewind(self, part: int) -> None:
        targets = [0, *self.states]
        to = targets[part % len(targets)]
        self.rows.append(rewind(self.next_id, to, self.epoch))
        self.next_id += 1
        self.withdrawn |= {file for number, file in self.states.items() if number > to}
        self.states = {number: file for number, file in self.states.items() if number <= to}
        self.attempts, self.halted = 0, "asked" if self.halted == "asked" else ""

    def end(self, which: int) -> None:
        self.outcome = ("clean", "interrupted", "failed")[which % 3]
        self.rows.append(published(self.next_id - 1, self.epoch, outcome=self.outcome))

    def halt(self, _: int) -> None:
        self.rows.append(row(RowKind.HALT, 0, epoch=self.epoch, reason="x"))
        self.halted = "failed"

    def ask(self, _: int) -> None:
        self.rows.append(row(RowKind.HALT, 0, epoch=self.epoch, reason="x", asked=True))
        self.halted = "asked"

    def resume(self, _: int) -> None:
        self.rows.append(row(RowKind.RESUME, 0, epoch=self.epoch, reason="x"))
        self.halted, self.attempts = "", 0

    def image(self, fresh: int) -> None:
        """Append a group that wrote a whole state."""
        last = self.next_id + max(fresh, len(self.withdrawn)) + 1
        images = [{"table": "state/app/words", "at": last, "files": []}]
        self.group(fresh, manifest={"files": {}, "upserts": [], "images": images, "lookups": {}})

    def skip(self, _: int) -> None:
        file = min(self.withdrawn, default=self.seen + 1)
        self.seen = max(self.seen, file)
        self.rows.append(skip(self.next_id, file, self.epoch))
        self.states[self.next_id] = file
        self.withdrawn -= {file}
        self.next_id += 1

    def refuse(self, _: int) -> None:
        file = min(self.withdrawn, default=self.seen + 1)
        self.seen = max(self.seen, file)
        self.rows.append(row(RowKind.REFUSED, 0, epoch=self.epoch, reason="gone", **input_of(file)))
        self.withdrawn -= {file}

    def note(self, _: int) -> None:
        """Append the note of the last group with the seconds of its commit, unless a rewind withdrew the group."""
        groups = [row.group_last for row in self.rows if row.kind is RowKind.STATE]
        seconds = {str(groups[-1]): 0.25} if groups and groups[-1] in self.states else {}
        self.rows.append(published(self.next_id - 1, self.epoch, commit_seconds=seconds, versions={"lake/a": 1}))


VERBS = ["claim", "drop", "group", "group", "image", "skip", "refuse", "rewind", "note", "end", "halt", "ask", "resume"]
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 4)), max_size=25)


def rows_of(steps: list[tuple[str, int]]) -> Model:
    """Return the model after a claim and the given steps."""
    model = Model()
    model.claim(0)
    for verb, number in steps:
        getattr(model, verb)(number)
    return model
