"""Rows of a checkpoint table by hand, for the reports of a region: a script of groups, failures and rewinds."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs.graph.application import load_application
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.regions.explain import region_json
from drainmark.jobs.regions.plan import compile_application
from drainmark.orchestration.inspection.region_report import RegionFacts, region_report
from drainmark.resources.checkpoints.newest_rows import GroupSums, NewestRows

REGION = "word_count/lines"
FOLDER = "/srv/inbox"
_TABLES = tuple(
    RegionTable(name=name, role=role, operator=operator, schema_json='{"fields": []}', history=history)
    for name, role, operator, history in (
        ("state/word_count/words_by_word", TableRole.CHANGES, "words_by_word", None),
        ("lake/word_counts", TableRole.UPSERT, "word_counts_sink", "state/word_count/words_by_word"),
        ("lake/word_count_quarantine", TableRole.APPEND, "lines", None),
    )
)


@dataclass
class Script:
    """Rows as a run commits them; a minute passes with each group."""

    rows: list[CheckpointRow] = field(default_factory=list)
    epoch: int = 0
    next_id: int = 1
    now: dt.datetime = dt.datetime(2026, 3, 1, 22, tzinfo=dt.UTC)
    _noted: dict[str, dict[str, float]] = field(default_factory=dict)

    def claim(self, previous: str = "clean", code: str | None = None) -> None:
        self.epoch += 1
        self.add(RowKind.CLAIM, previous=previous, tables=[table.to_json() for table in _TABLES], code=code)

    def group(self, states: int = 1, *, bad: int = 0, files: str = "f{}", rows: int = 10) -> None:
        """Commit a group, with 1 s of process and 0.25 s of drain; the note of the last group is in the same commit."""
        if self._noted:
            self.note()
        first, last = self.next_id, self.next_id + states - 1
        staged = {"path": "x", "size": 100 * states, "rows": 3 * states, "first_id": first, "last_id": last}
        manifest = {"files": {_TABLES[0].name: [staged]}, "upserts": [], "images": [], "lookups": {}}
        for number in range(first, last + 1):
            more = {"manifest": manifest} if number == last else {}
            quarantined = {"rows_quarantined": bad} if bad and number == first else {}
            self.add(
                RowKind.STATE, number, attempt=f"attempt {first}", trigger_uri=f"{FOLDER}/{files.format(number)}",
                trigger_identity={"size": 50, "mtime_ns": int((self.now.timestamp() - 30) * 1e9), "inode": number},
                trigger_kind="file", trigger_order=number, group_first=first, group_last=last, rows_in=rows,
                bytes_in=50, drain_seconds=0.25, process_seconds=1.0, **quarantined, **more,
            )  # fmt: skip
        self._noted = {"commit_seconds": {str(last): 0.05}, "publish_seconds": {str(last): 0.125}}
        self.next_id = last + 1
        self.now += dt.timedelta(minutes=1)

    def note(self, **detail: Any) -> None:
        self.add(RowKind.PUBLISHED, through=self.next_id - 1, versions={"lake/word_counts": 7}, **self._noted, **detail)
        self._noted = {}

    def rewind(self, to: int) -> None:
        self.add(RowKind.REWIND, self.next_id, to=to, tables=[])
        self.next_id += 1
        self.note()

    def add(self, kind: RowKind, number: int | None = None, *, attempt: str | None = None, **values: Any) -> None:
        columns = {name: values.pop(name) for name in list(values) if name in CheckpointRow.__dataclass_fields__}
        number = number if number is not None else self.next_id - (kind is not RowKind.CLAIM)
        self.rows.append(
            CheckpointRow(
                kind=kind,
                region=REGION,
                epoch=self.epoch,
                sequence_id=number,
                attempt=attempt or str(len(self.rows)),
                recorded_at=self.now,
                run_id=f"run{self.epoch}",
                drainmark_version="0.4.0",
                graph_fingerprint="g",
                params_hash="p",
                detail=values,
                **columns,
            )
        )

    def newest(self, skipped: int = 0) -> NewestRows:
        """Return all rows except the first `skipped`, as if those were not read."""
        rows = self.rows[skipped:]
        sums: dict[str, GroupSums] = {}
        for row in rows:
            if row.kind is RowKind.STATE:
                known = sums.get(row.attempt, GroupSums(first_id=row.sequence_id, states=0, rows_in=0, bytes_in=0))
                sums[row.attempt] = GroupSums(
                    first_id=known.first_id, states=known.states + 1, rows_in=known.rows_in + (row.rows_in or 0),
                    bytes_in=known.bytes_in + (row.bytes_in or 0),
                )  # fmt: skip
        return NewestRows(rows=tuple(rows), sums=sums)

    def report(self, *, last: int = 200, skipped: int = 0, **status: Any) -> dict[str, Any]:
        history = RegionHistory.from_rows(self.rows)
        halt = history.halt
        found = {
            "region": REGION, "state": "HALTED" if halt else "STARTED", "lags": {}, "last_error": history.last_error,
            "halt_reason": halt.detail["reason"] if halt else None, "committed_sequence_id": history.committed_id,
            "published_sequence_id": history.shown_id, "pending_triggers": 3, "consecutive_reset_attempts": 0,
            "max_consecutive_reset_attempts": 5, "stages": [], "channels": [], "home": "/srv/.drainmark",
            "remedies": [f"drainmark resume {REGION}"] if halt else [], "epoch": history.epoch, "reads": [], **status,
        }  # fmt: skip
        facts = RegionFacts(
            status=found, history=history, newest=self.newest(skipped), graph=graph(), folder=FOLDER, now=self.now,
            last=last,
        )  # fmt: skip
        return region_report(facts)


def graph() -> dict[str, Any]:
    """Return the graph of the smallest shipped application."""
    return region_json(compile_application(load_application("word_count")).regions[0])


def eventful() -> Script:
    """Return a script with every event that a report marks."""
    script = Script()
    script.claim("none", code="3f" * 16)
    script.group()
    script.group(3, bad=4)
    blamed = {"id": "OPERATOR_FAILED", "message": "ValueError: no", "operator": "words", "location": "app.py:7",
              "remedy": "mend it", "trigger": f"{FOLDER}/f5"}  # fmt: skip
    script.note(outcome="failed", error=blamed)
    script.claim("failed")
    script.claim("crashed")
    script.group(2)
    script.note(outcome="interrupted")
    script.claim(code="a9" * 16)
    script.rewind(4)
    script.group()
    script.add(RowKind.HALT, reason="stock-taking")
    script.add(RowKind.RESUME, reason="counted")
    script.add(RowKind.SKIP, script.next_id, reason="cut off", trigger_uri=f"{FOLDER}/f9", trigger_order=9)
    script.next_id += 1
    script.add(RowKind.REFUSED, reason="a link", trigger_uri=f"{FOLDER}/f10", trigger_identity={"size": 1})
    script.group()
    script.note(outcome="clean")
    return script
