"""Helpers that run files through a region that only copies them, and return the outcome for each file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import rows, run_once, settle

import drainmark as dm
from drainmark.jobs.graph.params import bind_params
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.regions.plan import compile_application
from drainmark.jobs.scan.folder import path_of
from drainmark.orchestration.workplace.workplace import Opened, Workplace

APP = "copying"
REGION = f"{APP}/read"
QUARANTINE = f"{APP}_quarantine"


@dataclass(slots=True)
class Fate:
    """The outcome for one file: its rows in the sink, and its rows in the quarantine."""

    rows_in: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    bad: list[dict[str, Any]] = field(default_factory=list)

    @property
    def refused(self) -> str | None:
        """Return the reason why the whole file was quarantined; None if it was not."""
        return self.bad[0]["reason"] if self.bad and self.bad[0]["position"] is None else None

    @property
    def lines(self) -> dict[int, str]:
        return {row["position"]: row["reason"] for row in self.bad}


def copying(inbox: Path | str, trigger: str = "operator-driven", **scan: Any) -> Opened:
    """Return an application that has one sink for each output of its source."""
    with dm.application(APP) as declared:

        @dm.consistent(trigger=trigger, **({"period": 0} if trigger == "periodic" else {}))
        @dm.source(dm.DirectoryScan(path=str(inbox), settle=0, **scan))
        def read(scanned: Any) -> Any:
            return scanned

        for output in scan.get("outputs") or ("",):
            dm.sink(read[output] if output else read, dm.DeltaAppend(output or "copied"))
    application = dm.build_application(declared)
    return Opened(
        reference=APP, plan=compile_application(application), params=bind_params(application.params_class, {}),
    )  # fmt: skip


def write(inbox: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = inbox / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    settle(inbox)


def fates(workplace: Workplace, inbox: Path, outputs: Mapping[str, str] | None = None) -> dict[str, Fate]:
    """Return the outcome for each file in the states in force, by its path below the inbox.

    It asserts two things that hold for all files: for each id, rows in are rows out plus quarantined rows, and the
    checkpoint table says the same as the tables.
    """
    states = workplace.history(REGION).states
    found: dict[int, Fate] = {number: Fate(rows_in=row.rows_in or 0) for number, row in states.items()}
    for output in outputs or ("copied",):
        for row in rows(workplace, REGION, output):
            found[row.pop("_sequence_id")].rows.append(row)
    quarantined = rows(workplace, REGION, QUARANTINE)
    for row in sorted(quarantined, key=lambda row: (row["_sequence_id"], row["position"] or 0)):
        found[row["_sequence_id"]].bad.append(row)
    for number, fate in found.items():
        detail = states[number].detail
        assert states[number].kind is RowKind.STATE
        assert fate.rows_in == len(fate.rows) + len(fate.bad), states[number].trigger_uri
        assert detail.get("rows_quarantined", 0) == len(fate.bad)
        assert detail.get("reason") == fate.refused
        assert all(row["source_file"] == states[number].trigger_uri for row in fate.bad)
    return {
        str(Path(path_of(row.trigger_uri or "")).relative_to(inbox)): found[number] for number, row in states.items()
    }


def run(workplace: Workplace, inbox: Path, **scan: Any) -> dict[str, Fate]:
    """Scan and process the inbox in one group, and return the outcome for each file."""
    reports = run_once(workplace, copying(inbox, **scan))
    assert len(reports) == 1, "bad files do not split a group"
    return fates(workplace, inbox, scan.get("outputs"))
