"""States that take others back, in the fold of a history and in its digest."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_rows import claim, group, published, rewind, row

from drainmark.jobs.protocol.chains import readings_of
from drainmark.jobs.protocol.digest import digest_of, history_from
from drainmark.jobs.protocol.history import RegionHistory, replaced_in, retracted_by, retracted_uris
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import Manifest, RegionTable, Replaced, StagedFile, TableRole
from drainmark.jobs.protocol.records.schema_compatibility import TableChange, change_of, still_deleting, with_gone

FILE = StagedFile(path="_staged/1-a/rows.parquet", size=10, rows=1, first_id=2, last_id=2)


def retraction(number: int, of: int) -> CheckpointRow:
    replaced = Replaced(ids={of: number}, files={"lake/rows": (FILE,)}, by_nothing=True)
    manifest = Manifest(files={"lake/rows": ()}, upserts=(), replaced=replaced)
    return row(
        RowKind.STATE, number, group_first=number, group_last=number, trigger_uri=f"f{of}", trigger_kind="retraction",
        trigger_identity={"kind": "retraction", "retracts": of}, manifest=manifest.to_json(),
    )  # fmt: skip


ROWS = [claim(1, 1), *group(1, [1, 2, 3]), published(3), retraction(4, 2), published(4)]


class Archive:
    def states(self, first: int, last: int) -> list[CheckpointRow]:
        return [each for each in ROWS if each.kind is RowKind.STATE and first <= each.sequence_id <= last]

    def states_of(self, uris: Any) -> list[CheckpointRow]:
        return [each for each in ROWS if each.kind is RowKind.STATE and each.trigger_uri in uris]

    def refusals(self) -> list[CheckpointRow]:
        return []


@pytest.mark.seed("RC1", "RC6")
@pytest.mark.parametrize("is_digested", [False, True])
def test_a_retraction_has_no_input_and_a_rewind_before_it_takes_it_back(is_digested: bool) -> None:
    history = RegionHistory.from_rows(ROWS)
    if is_digested:
        found = history_from(digest_of(history), Archive())
        assert found is not None
        history = found
    assert (retracted_by(history, 2), history.replaced_by(2), retracted_by(history, 3)) == (4, None, None)
    assert retracted_uris(history) == {"f2": 2}
    assert history.newest_by_uri() == {"f1": 1, "f3": 3}
    assert [each.sequence_id for each in history.triggers_above(1)] == [2, 3]
    assert (replaced_in(history, "lake/rows"), replaced_in(history, "state/counts")) == (frozenset({2}), frozenset())
    assert history.replaced_after(3)[0].files["lake/rows"] == (FILE,)

    back = history.with_rows([rewind(5, 3)])
    assert (retracted_by(back, 2), back.withdrawn, back.committed_id) == (None, (), 3)
    anew = history.with_rows([rewind(5, 1)])
    assert [each.sequence_id for each in anew.withdrawn] == [2, 3]
    assert retracted_uris(anew) == {}


@pytest.mark.seed("RC2")
def test_tables_of_which_keys_were_lost_stay_such_tables_whatever_the_code_says() -> None:
    schema = '{"type": "struct", "fields": [{"name": "k", "type": "string", "nullable": true, "metadata": {}}]}'
    history = RegionTable(
        name="state/counts", role=TableRole.CHANGES, operator="counts", schema_json=schema, keys=("k",)
    )
    shown = RegionTable(name="lake/counts", role=TableRole.UPSERT, operator="sink", schema_json=schema, keys=("k",),
                        history=history.name, columns=("k",))  # fmt: skip
    declared = (history, shown)
    assert still_deleting(declared, declared) == declared
    lost = with_gone(declared, {history.name})
    assert lost[0].column_names == ["k", "_gone"]
    assert lost[0].may_widen
    assert lost[1].deletes
    assert still_deleting(declared, lost) == lost
    assert [change_of(before, after) for before, after in zip(lost, declared, strict=True)] == [TableChange.KEPT] * 2
    assert change_of(declared[0], lost[0]) is TableChange.KEPT


def test_a_region_reads_what_it_read_before_a_retraction() -> None:
    """Who reads a table goes back with it, and keeps it from being dropped."""
    end = {"table": "id of a table", "version": 7, "region": "one/files"}
    read = row(
        RowKind.STATE, 1, group_first=1, group_last=1, trigger_uri="period:app/start#1", trigger_kind="period",
        trigger_identity={"kind": "period", "slices": {"start": {"from": None, "to": end}}},
    )  # fmt: skip
    history = RegionHistory.from_rows([claim(1, 1), read, published(1)])
    after = history.with_rows([retraction(2, 1), published(2)])
    assert [(each.table, each.version) for each in readings_of(after)] == [("id of a table", 7)]
    assert readings_of(after) == readings_of(history)
