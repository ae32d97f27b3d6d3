"""What the code of a region says about its lineage, as a file in home: `lineage/<app>/<start>.json`.

A run writes it when it has claimed the region. A process without the code, such as a verb, reads what the last run
wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import TypeAdapter

from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.orchestration.exporters.datasets import Dataset, input_of, output_of
from drainmark.resources.storage.folder import write_whole

if TYPE_CHECKING:
    from drainmark.jobs.runtime.analysis.blueprint import Blueprint
    from drainmark.orchestration.workplace.workplace import Workplace


class Origin(NamedTuple):
    """A column of the input that a column comes from, and how; see `column_lineage`."""

    operator: str
    column: str
    derivation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A table that readers see.

    Attributes:
        columns: by column its origins; None of the table of bad rows, whose columns say what was wrong.
    """

    dataset: Dataset
    table: RegionTable
    columns: Mapping[str, Sequence[Origin]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLineage:
    """The lineage of a region's code.

    Attributes:
        inputs: datasets by the names of the sources and lookups that read them.
        lookups: by a table that a lookup reads, the name of the lookup.
        starts: names of the sources that make triggers.
        outputs: the tables that readers see, with that of bad rows.
        expectations: condition by name.
    """

    inputs: Mapping[str, Dataset] = field(default_factory=dict)
    lookups: Mapping[str, str] = field(default_factory=dict)
    starts: Sequence[str] = ()
    outputs: Sequence[Output] = ()
    expectations: Mapping[str, str] = field(default_factory=dict)


def known_lineage(workplace: Workplace, blueprint: Blueprint) -> KnownLineage:
    """Return the lineage of an analysed region; this asks Spark for plans, some milliseconds an operator."""
    from drainmark.jobs.operators.row_wise.expect import Expect
    from drainmark.jobs.runtime.analysis.column_lineage import column_lineage
    from drainmark.jobs.runtime.input.quarantine_rows import quarantine_table

    region, tables = blueprint.region, {table.name: table for table in blueprint.tables}
    readers = [operator for operator in region.run_order if not operator.inputs or operator.tables_read]
    outputs = [
        Output(
            dataset=output_of(workplace, tables[name]),
            table=tables[name],
            columns={
                column: [Origin(each.operator, each.column, kind.name) for each, kind in sorted(origins.items())]
                for column, origins in columns.items()
            },
        )
        for name, columns in column_lineage(blueprint).items()
    ]
    bad = quarantine_table(region)
    if bad.name in tables:
        outputs.append(Output(dataset=output_of(workplace, bad), table=tables[bad.name], columns=None))
    return KnownLineage(
        inputs={operator.name: input_of(workplace, region.name, operator) for operator in readers},
        lookups={operator.tables_read[0]: operator.name for operator in readers if operator.tables_read},
        starts=[operator.name for operator in region.starts],
        outputs=outputs,
        expectations={each.name: each.expected for each in region.operators if isinstance(each, Expect)},
    )


def read_lineage(home: Path, region: str) -> KnownLineage:
    """Return what the last run wrote; nothing is known if none did."""
    with suppress(OSError, ValueError):
        return _as_json().validate_json(_path(home, region).read_bytes())
    return KnownLineage()


def write_lineage(home: Path, region: str, known: KnownLineage) -> None:
    """Write the file if it has other facts."""
    path, text = _path(home, region), _as_json().dump_json(known).decode()
    with suppress(OSError):
        if path.read_text("utf-8") == text:
            return
    write_whole(path, text)


@cache
def _as_json() -> TypeAdapter[KnownLineage]:
    return TypeAdapter(KnownLineage)


def _path(home: Path, region: str) -> Path:
    return home / "lineage" / f"{region}.json"
