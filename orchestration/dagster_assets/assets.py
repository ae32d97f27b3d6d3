"""The assets of a region: its source folder, its checkpoint table, its state tables, its sinks.

Keys are `[app, table]`; the group is the region. The tables are known from the plan, so that the code location opens no
tables and starts no Spark session when it loads.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sinks.delta_append import DeltaSink
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.printable import markdown_code, printable
from drainmark.jobs.protocol.records.state_generations import first_generation, state_table
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.analysis.blueprint import shares_history
from drainmark.jobs.runtime.region_run import GroupReport
from drainmark.orchestration.dagster_assets.metadata import (
    column_schema,
    data_version,
    group_metadata,
    role_metadata,
    role_tags,
)
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.workplace.region_sources import tables_read
from drainmark.resources.storage.folder import Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAsset:
    """One table of a region as an asset.

    Attributes:
        table: path below DRAINMARK_HOME, as in a group's report.
        output: name of the op's output; it is never yielded, because the events come once for each group.
        kinds: the labels below its box in the graph: the format, and the purpose of the table.
        upstream: keys of the assets from which it is made.
        operator: name of the operator that writes it, "" if the region writes it.
    """

    table: str
    key: dg.AssetKey
    output: str
    description: str
    kinds: tuple[str, ...]
    upstream: tuple[dg.AssetKey, ...]
    operator: str = ""

    @property
    def purpose(self) -> str:
        """Return what the table is for: `checkpoint`, `state`, `history`, `sink`, `quarantine` or `at-least-once`."""
        return self.kinds[-1]


def source_key(region: RegionPlan, source: Source) -> dg.AssetKey:
    return dg.AssetKey([_application(region), "source", source.name])


def source_keys(region: RegionPlan) -> tuple[dg.AssetKey, ...]:
    return tuple(source_key(region, source) for source in _sources(region))


def checkpoint_table(region: RegionPlan) -> str:
    return f"checkpoints/{region.name}"


def checkpoint_key(region: RegionPlan) -> dg.AssetKey:
    return checkpoint_key_of(region.name)


def checkpoint_key_of(region: str) -> dg.AssetKey:
    """Return the key of a region's checkpoint table by the region's name; this does not need the code."""
    application, _, start = region.partition("/")
    return dg.AssetKey([application, "checkpoints", start])


def source_assets(
    region: RegionPlan, folders: Mapping[str, str], made: Mapping[str, dg.AssetKey]
) -> list[dg.AssetSpec]:
    """Return the sources of a region as external assets; one that reads a table of another region comes after it.

    Args:
        made: the keys of the tables that regions make, by path.
        folders: by name of the source: an absolute path, an address in a bucket, or for other sources `kind:name`.
    """
    return [
        dg.AssetSpec(
            key=source_key(region, source),
            group_name=dagster_name(region.name),
            description=_description(region, source, folders[source.name]),
            kinds=_kinds(source),
            tags=role_tags(region, source.name),
            metadata={"dagster/uri": printable(folders[source.name]), **role_metadata(region, source.name)},
            deps=[made[table] for table in tables_read(source) if table in made],
        )
        for source in _sources(region)
    ]


def _description(region: RegionPlan, source: Source, place: str) -> str:
    shown = markdown_code(place)
    what = f"Files of {shown}." if isinstance(source, DirectorySource) else f"What {shown} gives."
    if region.parameters.trigger == TriggerKind.PERIODIC:
        return f"{what} What is there at the end of a period gets one consistent state, with all other sources'."
    return f"{what} Each is a trigger: it gets one consistent state."


def _kinds(source: Source) -> set[str]:
    if isinstance(source, DirectorySource):
        return {"file", source.scan.format, "source"}
    return {source.reads.kind, "source"} if isinstance(source, SlicedSource) else {"source"}


def table_assets(region: RegionPlan) -> tuple[TableAsset, ...]:
    """Return the checkpoint table, the state tables and the sinks of a region."""
    sources = source_keys(region)
    checkpoint = TableAsset(
        table=checkpoint_table(region),
        key=checkpoint_key(region),
        output="checkpoints",
        description="The region's truth: one row for each consistent state, which is one for each file. "
        f"What it lists is committed. {markdown_code(f'drainmark history {region.name}')} prints it.",
        kinds=("delta", "checkpoint"),
        upstream=sources,
    )
    found = {asset.table: asset for asset in _tables(region, sources)}
    if sources:
        found[f"lake/{region.quarantine}"] = _asset(
            f"lake/{region.quarantine}",
            dg.AssetKey([_application(region), region.quarantine]),
            "Rows and files that could not be read, with line, text and reason. "
            f"{markdown_code(f'drainmark quarantine list {region.name}')} sums them up.",
            "quarantine",
            sources,
        )
    found |= {asset.table: asset for asset in _outside_tables(region, sources)}
    return tuple(_with_own_outputs((checkpoint, *found.values())))


def _with_own_outputs(assets: Iterable[TableAsset]) -> Iterator[TableAsset]:
    """Give each table an output of its own: `orders/eu` and `orders_eu` have the same name in Dagster."""
    taken: set[str] = set()
    for asset in assets:
        name = next(name for name in _numbered(asset.output) if name not in taken)
        taken.add(name)
        yield replace(asset, output=name)


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in itertools.count(2))


def _outside_tables(region: RegionPlan, sources: tuple[dg.AssetKey, ...]) -> Iterator[TableAsset]:
    for operator in region.followers:
        for table in operator.tables:
            key = dg.AssetKey([_application(region), *table.split("/")])
            description = (
                f"Written by {markdown_code(operator.name)}, outside of the region: every row at least once. What a"
                " region replays comes again, under another sequence id, and no rewind takes it back."
            )
            yield _asset(f"lake/{table}", key, description, "at-least-once", sources)


def _tables(region: RegionPlan, sources: tuple[dg.AssetKey, ...]) -> Iterator[TableAsset]:
    application = _application(region)
    for operator in region.operators:
        upstream = _state_keys(region, operator.name) or sources
        has_history = isinstance(operator, Sink) and operator.has_history and not shares_history(operator, region)
        if operator.output_state is not None or has_history:
            yield _asset(
                state_table(application, operator.name),
                _state_key(application, operator.name),
                _state_description(operator),
                "history" if has_history else "state",
                upstream,
                operator=operator.name,
            )
        for kept in operator.kept:
            yield _asset(
                state_table(application, operator.name, kept.part),
                _state_key(application, operator.name, kept.part),
                f"State of {markdown_code(operator.name)}: rows for each key that a sequence id changed.",
                "state",
                upstream,
                operator=operator.name,
            )
        if isinstance(operator, Sink):
            own = (_state_key(application, operator.name),) if has_history else upstream
            for table, name in zip(operator.tables, operator.published, strict=True):
                key = dg.AssetKey([application, *filter(None, re.split(r"[/.]", table))])
                about = _sink_description(operator, table)
                yield _asset(name, key, about, "sink", own, operator=operator.name, format_=operator.format)


def shown_name(region: RegionPlan, asset: TableAsset) -> str:
    """Return the name of a table in its catalogue; its path below the home if it is in none."""
    operator = region.operator(asset.operator) if asset.purpose == "sink" else None
    return (operator.registered if isinstance(operator, DeltaSink) else None) or asset.table


def _state_description(operator: Operator) -> str:
    what = f"State of the aggregate {markdown_code(operator.name)}"
    if isinstance(operator, Sink):
        what = f"History of {markdown_code(operator.tables[0])}, from which it is rewound"
    if isinstance(operator, Sink) and not operator.keys:
        return f"{what}: every row of the stream."
    return f"{what}: a row for each key that a sequence id changed."


def _sink_description(operator: Sink, table: str) -> str:
    show = markdown_code(f"drainmark show {table}")
    return f"{operator.described()} {show} prints it, with `--at N` as it was at sequence id N."


def _asset(
    table: str,
    key: dg.AssetKey,
    description: str,
    purpose: str,
    upstream: tuple[dg.AssetKey, ...],
    *,
    operator: str = "",
    format_: str = "delta",
) -> TableAsset:
    return TableAsset(
        table=table,
        key=key,
        output=re.sub(r"[^A-Za-z0-9_]", "_", table),
        description=description,
        kinds=(format_, purpose),
        upstream=upstream,
        operator=operator,
    )


def upstream_of(region: RegionPlan, name: str) -> frozenset[str]:
    """Return the names of an operator and of all operators of the region from which its rows come."""
    found, waiting = set(), [name]
    own = {operator.name: operator for operator in region.operators}
    while waiting:
        current = waiting.pop()
        if current in own and current not in found:
            found.add(current)
            waiting += (port.upstream for port in own[current].inputs)
    return frozenset(found)


def _state_keys(region: RegionPlan, name: str) -> tuple[dg.AssetKey, ...]:
    """Return the nearest states upstream of an operator."""
    keys: dict[dg.AssetKey, None] = {}
    waiting = [port.upstream for port in region.operator(name).inputs]
    seen: set[str] = set()
    while waiting:
        upstream = waiting.pop()
        if upstream in seen or all(operator.name != upstream for operator in region.operators):
            continue
        seen.add(upstream)
        operator = region.operator(upstream)
        own = [kept.part for kept in (operator.output_state, *operator.kept) if kept is not None]
        for part in own:
            keys[_state_key(_application(region), operator.name, part)] = None
        if not own:
            waiting.extend(port.upstream for port in operator.inputs)
    return tuple(keys)


def _state_key(application: str, operator: str, part: str = "") -> dg.AssetKey:
    return dg.AssetKey([application, "state", operator, *([part] if part else [])])


def _sources(region: RegionPlan) -> list[Source]:
    return [operator for operator in region.operators if isinstance(operator, Source)]


def _application(region: RegionPlan) -> str:
    return region.name.partition("/")[0]


# --- events ------------------------------------------------------------------------------------------------------


def materializations(
    report: GroupReport,
    region: RegionPlan,
    *,
    tables: Folder,
    row_counts: Mapping[str, int] | None = None,
    schemas: Mapping[str, str] | None = None,
    lineages: Mapping[str, dg.TableColumnLineage] | None = None,
    tags: Callable[[dg.AssetKey, int, int], dict[str, str]] | None = None,
    standing: Mapping[str, Any] | None = None,
) -> Iterator[dg.AssetMaterialization]:
    """Yield one event for each table of the region, for one group.

    Args:
        tables: the folder of all tables.
        row_counts: by table, the number of rows after the group.
        schemas: by table, Spark's JSON of the columns; shown for the tables that have one.
        lineages: by table, the lineage of its columns.
        tags: returns the tags of an event from key, epoch and id; by default the version of the data alone.
        standing: metadata of the whole region, for its checkpoint table.
    """
    named = {first_generation(name): name for name in (*report.rows_out, *report.versions, *(row_counts or ()))}
    for asset in table_assets(region):
        table = named.get(asset.table, asset.table)  # after a state is dropped, it continues in a table of another name
        metadata: dict[str, Any] = {}  # shown in this order: the metadata of the table itself is first
        if row_counts and table in row_counts:
            metadata["dagster/row_count"] = row_counts[table]
        if table in report.rows_out:
            metadata["drainmark/rows"] = report.rows_out[table]
        is_delta = "delta" in asset.kinds
        if table in report.versions and is_delta:
            metadata["drainmark/delta_version"] = report.versions[table]
        if table in report.lags:
            metadata["drainmark/lag_states"] = report.last_id - report.lags[table]
        metadata |= group_metadata(report)
        if asset.key == checkpoint_key(region):
            metadata |= standing or {}
        if is_delta:
            metadata["dagster/uri"] = (tables / table).uri
        if schemas and table in schemas:
            metadata["dagster/column_schema"] = column_schema(schemas[table])
        if lineages and asset.table in lineages:
            metadata["dagster/column_lineage"] = lineages[asset.table]
        version = tags(asset.key, report.epoch, report.last_id) if tags else data_version(report.epoch, report.last_id)
        yield dg.AssetMaterialization(asset_key=asset.key, metadata=metadata, tags=version)


def observations(report: GroupReport, region: RegionPlan) -> Iterator[dg.AssetObservation]:
    """Yield one event for each source of the region, for one group."""
    for source in _sources(region):
        yield dg.AssetObservation(asset_key=source_key(region, source), metadata=group_metadata(report))
