"""Manifests and tables survive the conversion to JSON, in which the checkpoint table stores them."""

from __future__ import annotations

import json
from dataclasses import replace

from checkpoint_rows import group
from hypothesis import given
from hypothesis import strategies as st

from drainmark.jobs.protocol.history import RegionHistory, manifest_of
from drainmark.jobs.protocol.records.manifest import Image, Manifest, RegionTable, StagedFile, TableRole
from drainmark.jobs.protocol.records.schema_compatibility import other_form, with_states_noted

NAMES = st.text(min_size=1, max_size=12)
NUMBERS = st.integers(0, 2**32 - 1)
FILES = st.builds(
    StagedFile, path=NAMES, size=NUMBERS, rows=NUMBERS, first_id=st.none() | NUMBERS, last_id=st.none() | NUMBERS
)
IMAGES = st.builds(Image, table=NAMES, at=NUMBERS, files=st.lists(FILES, max_size=3).map(tuple))
MANIFESTS = st.builds(
    Manifest,
    files=st.dictionaries(NAMES, st.lists(FILES, max_size=3).map(tuple), max_size=3),
    upserts=st.lists(NAMES, max_size=3).map(tuple),
    images=st.lists(IMAGES, max_size=2).map(tuple),
    lookups=st.dictionaries(NAMES, NUMBERS, max_size=2),
)
TABLES = st.builds(
    RegionTable, name=NAMES, role=st.sampled_from(TableRole), operator=NAMES, schema_json=NAMES,
    keys=st.lists(NAMES, max_size=3).map(tuple), history=st.none() | NAMES, columns=st.lists(NAMES).map(tuple),
    adopted=st.booleans(), evolves=st.booleans(), external=st.sampled_from(["", "database", "file"]),
    withdrawn_by=st.lists(NAMES).map(tuple),
    options=st.dictionaries(NAMES, NAMES, max_size=2),
)  # fmt: skip


@given(MANIFESTS)
def test_a_manifest_survives_json(manifest: Manifest) -> None:
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


@given(TABLES)
def test_a_table_survives_json(table: RegionTable) -> None:
    assert RegionTable.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_a_table_of_a_row_without_flags_is_managed_and_fixed() -> None:
    plain = RegionTable(name="lake/t", role=TableRole.APPEND, operator="t_sink", schema_json="{}")
    assert not {"adopted", "evolves"} & set(plain.to_json())
    assert not RegionTable.from_json(plain.to_json()).adopted


def test_only_the_last_row_of_a_group_carries_the_manifest() -> None:
    manifest = Manifest(files={"lake/t": ()}, lookups={})
    rows = group(1, [1, 2, 3], manifest=manifest.to_json())
    assert [manifest_of(row) for row in rows] == [None, None, manifest]
    assert RegionHistory.from_rows(rows).unpublished == (rows[-1],)


def test_rows_of_changes_that_an_earlier_version_wrote_belong_to_the_states_that_were_there() -> None:
    """It did not note which states know them; a state that is new knows none."""
    schema = '{"type":"struct","fields":[]}'
    state, role = "state/app/applied", TableRole.UPSERT
    before = RegionTable(name="lake/t", role=role, operator="t", schema_json=schema, history=state, deletes=True)
    after = replace(before, withdrawn_by=(state,))
    assert other_form(before, after) != ""
    assert other_form(with_states_noted(before, after, {"lake/t", state}), after) == ""
    assert other_form(with_states_noted(before, after, {"lake/t"}), after) != ""
    plain = replace(before, deletes=False)
    assert other_form(with_states_noted(plain, after, {"lake/t", state}), after) != ""
    other = replace(before, withdrawn_by=("state/app/other",))
    assert other_form(with_states_noted(other, after, {"lake/t", state}), after) != ""
