"""How a table is merged, as it is declared: `merge` of `DeltaUpsert`."""

from __future__ import annotations

from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import DeclarationError
from drainmark.jobs.regions.plan import compile_application


def declared(target: Any, *, in_region: bool = True) -> Any:
    with dm.application("merged") as found:

        def lines(scanned: Any) -> Any:
            return scanned

        scan = dm.DirectoryScan(path="unused", format="csv", schema="k string", settle=0)
        stream = dm.source(scan)(lines)
        if in_region:
            stream = dm.consistent(trigger="operator-driven")(stream)
        dm.sink(stream, target)
    return dm.build_application(found)


@pytest.mark.parametrize(
    ("rule", "in_region", "more"),
    [
        ("MERGE", True, {"merge": "sometimes"}),
        ("ADOPTED_MERGE", True, {"merge": "on-read", "adopt": True}),
        ("AUTONOMOUS_MERGE", False, {"merge": "on-read"}),
    ],
)
def test_what_cannot_be_merged_on_read_is_refused_by_name(rule: str, in_region: bool, more: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as refused:
        compile_application(declared(dm.DeltaUpsert("t", keys=["k"], **more), in_region=in_region))
    assert {violation.rule for violation in refused.value.violations} == {rule}


def test_tables_of_regions_are_merged_as_they_say() -> None:
    for merge, options in (("on-write", {}), ("on-read", {"merge": "on-read"})):
        compiled = declared(dm.DeltaUpsert("t", keys=["k"], merge=merge))  # type: ignore[arg-type]
        compile_application(compiled)
        (sink,) = (each for each in compiled.operators if each.kind == "delta-upsert")
        table = sink.visible('{"fields": []}')
        assert dict(table.options) == options
        assert table.is_merged_on_read == (merge == "on-read")
