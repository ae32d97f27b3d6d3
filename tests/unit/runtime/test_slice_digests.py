"""Digests of the bytes of slices: noted when a slice is read, compared when it is read again (V144)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import SliceLost
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.triggers import DIGESTS, Trigger, TriggerStatus
from drainmark.jobs.protocol.withdrawn_ids import identity_of
from drainmark.jobs.runtime.group.backlog import IdAssignment
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.input.slice_inputs import files_of_slices, require_same_bytes
from drainmark.jobs.runtime.input.slices import cut_one
from drainmark.jobs.runtime.messages import full_identity, scanned_identity
from drainmark.orchestration.discovery import state_inputs
from drainmark.orchestration.discovery.state_inputs import lost_slices
from drainmark.orchestration.workplace.declaration import remember
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.settings import Settings

pytestmark = pytest.mark.seed("RT9")

BETWEEN_SAMPLES = 20_000
"""A place in a file of some MiB that the hashes of a `FileSource`'s position do not see."""

MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number:06d}\n" for number in range(200_000)))
    return path


def source_of(log: Path) -> SlicedSource:
    with dm.application("app"):

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.FileSource(path=str(log)))
        def lines(scanned: Any) -> Any:
            return scanned

        operator = lines.operator
    assert isinstance(operator, SlicedSource)
    return operator


def trigger_of(source: SlicedSource, log: Path) -> Trigger:
    access: Any = SimpleNamespace(region="app/lines", path=Path)
    cut = cut_one(source, None, access)
    assert cut is not None
    return Trigger(
        uri=cut.uri, identity=cut.identity, identity_key=cut.identity_key, size_bytes=cut.size_bytes, order_index=7,
        status=TriggerStatus.PENDING, id=1, region="app/lines", discovered_at=MOMENT,
    )  # fmt: skip


def read(source: SlicedSource, trigger: Trigger, target: Path) -> None:
    """Read a slice as a group does, and compare its digest, without its rows."""
    group = Group(members=(Assigned(sequence_id=1, trigger=trigger),), epoch=1, attempt="a")
    outside: Any = SimpleNamespace(
        access=SimpleNamespace(region="app/lines", path=Path), inputs=SimpleNamespace(range_bytes=1 << 27)
    )
    ids, files, inputs = files_of_slices(source, group, outside)
    target.unlink(missing_ok=True)
    inputs.place([(files[0], target)])
    require_same_bytes(source, group, ids, inputs)


def row_of(trigger: Trigger) -> CheckpointRow:
    return CheckpointRow(
        region="app/lines", kind=RowKind.STATE, sequence_id=1, epoch=1, attempt="a", recorded_at=MOMENT, run_id="r",
        drainmark_version="0", graph_fingerprint="", params_hash="", trigger_uri=trigger.uri,
        trigger_identity=full_identity(trigger), trigger_order=trigger.order_index,
    )  # fmt: skip


def assignment_after(withdrawn: CheckpointRow) -> IdAssignment:
    return IdAssignment(SimpleNamespace(history=SimpleNamespace(withdrawn=(withdrawn,))))  # type: ignore[arg-type]


def test_a_slice_gives_what_it_gave_before_a_rewind_or_nothing(log: Path, tmp_path: Path) -> None:
    source = source_of(log)
    first = trigger_of(source, log)
    read(source, first, tmp_path / "copy")
    withdrawn = row_of(first)
    ids = assignment_after(withdrawn)
    again = trigger_of(source, log)
    assert again.digests == {}
    ids.remind([again])
    assert again.digests == first.digests != {}
    read(source, again, tmp_path / "copy")
    with log.open("r+b") as file:
        file.seek(BETWEEN_SAMPLES)
        file.write(b"X")
    with pytest.raises(SliceLost) as lost:
        read(source, again, tmp_path / "copy")
    assert lost.value.facts["trigger"] == first.uri


def test_a_slice_of_an_older_version_is_read_as_it_is_and_noted_from_then_on(log: Path, tmp_path: Path) -> None:
    source = source_of(log)
    old = row_of(trigger_of(source, log))
    assert DIGESTS not in (old.trigger_identity or {})
    trigger = trigger_of(source, log)
    assignment_after(old).remind([trigger])
    read(source, trigger, tmp_path / "copy")
    row = row_of(trigger)
    assert (row.trigger_identity or {})[DIGESTS] == trigger.digests != {}
    assert identity_of(row) == identity_of(old), "it is the same slice"
    assert scanned_identity(row.trigger_identity or {}) == dict(trigger.identity)


APP = """\
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.FileSource(path={log!r}))
def lines(scanned):
    return scanned


dm.sink(lines, dm.DeltaAppend("lines"))
"""


def test_the_plan_of_a_rewind_compares_what_is_not_too_large(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP.format(log=str(log)))
    opened = open_application(str(tmp_path / "app.py"))
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    remember(place, opened, opened.region())
    source = source_of(log)
    trigger = trigger_of(source, log)
    read(source, trigger, tmp_path / "copy")
    row = row_of(trigger)
    assert lost_slices(place, [row]) == ([], [])
    with log.open("r+b") as file:
        file.seek(BETWEEN_SAMPLES)
        file.write(b"X")
    assert lost_slices(place, [row]) == ([], [trigger.uri])
    monkeypatch.setattr(state_inputs, "COMPARED_BYTES", trigger.size_bytes - 1)
    assert lost_slices(place, [row]) == ([], []), "it is compared when it is read"
    place.registry.close()
