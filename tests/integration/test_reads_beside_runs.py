"""Rows that are read while a run publishes and compacts: each committed row once."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import HandFed

from drainmark.jobs.protocol.row_conditions import Condition
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.settings import Settings


@pytest.mark.parametrize("compacts", [False, True])
def test_a_group_that_is_published_after_the_history_was_read_counts_once(tmp_path: Path, *, compacts: bool) -> None:
    """In the history the group is not published; by now its staged file is visible, or compacted away."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    fed = HandFed(place, tmp_path / "inbox")
    for name in "abc":
        fed.write(name, [f"{name}1", f"{name}2"])
        fed.add(name)
    with fed.owning() as owner:
        fed.process(1)
        fed.process(1)
        row = owner.groups.commit(fed.group(1))
        reader = RegionReader(place.settings, fed.region)
        traced = Tracer.of(place, fed.region)
        assert [row.sequence_id for row in reader.history.unpublished][-1] == 3
        owner.groups.publish(row)
        if compacts:
            table = fed.workplace.store(fed.region).table("lake/kept")
            version = table.txn_version()
            assert version is not None
            staging = fed.workplace.store(fed.region).staging(fed.tables[0], owner.epoch, "compaction")
            assert table.upkeep.compact(version, staging, files_at_least=2)
        rows = reader.as_of("kept", 3).to_pylist()
        assert sorted(row["value"] for row in rows) == ["a1", "a2", "b1", "b2", "c1", "c2"]
        assert traced.tables.meant(fed.tables[0], [Condition("value", ("c1",))]).num_rows == 1
        latest = RegionReader(place.settings, fed.region)  # the note of the publish comes with the next commit
        assert latest.as_of("kept", 3).num_rows == 6
    place.registry.close()
