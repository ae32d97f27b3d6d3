"""The columns that a table would get, and the changes that are refused (I19)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drainmark.jobs.errors import SchemaMismatch
from drainmark.resources.delta.schema_evolution import added_columns


def schema(**columns: Any) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.seed("I19")
def test_further_columns_in_any_place_are_added_in_the_order_of_the_code() -> None:
    struct = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}]}
    found = added_columns(schema(a="string", b="long"), schema(z=struct, b="long", y="date", a="string"), where="t")
    assert [column["name"] for column in found] == ["z", "y"]
    assert found[0]["type"]["fields"][0]["nullable"]
    assert added_columns(schema(a="string"), schema(a="string"), where="t") == []


@pytest.mark.seed("I19")
@pytest.mark.parametrize(
    ("wanted", "columns"),
    [(schema(b="long"), ("a",)), (schema(a="long", b="long"), ("a",)), (schema(c="long", a="date"), ("b", "a"))],
)
def test_a_column_that_went_or_has_another_type_is_named(wanted: str, columns: tuple[str, ...]) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        added_columns(schema(a="string", b="long"), wanted, where="t")
    assert refused.value.facts["columns"] == columns
    assert refused.value.remedy
