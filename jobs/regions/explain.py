"""A compiled application for people and for machines: text for a terminal, JSON, and a Mermaid flow chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drainmark.jobs.graph.annotations import Checkpoints, Consistent, Runs, TriggerKind
from drainmark.jobs.graph.composite_instance import CompositeInstance
from drainmark.jobs.graph.operator import Operator, Vectorises
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.regions.clocks import Statement, clock_reads
from drainmark.jobs.regions.explain_stages import channels_json, stage_lines, stages_json
from drainmark.jobs.regions.formatting import columns, counted, duration, names, seconds
from drainmark.jobs.regions.plan import ApplicationPlan, AutonomousPlan, RegionPlan, TablePlan
from drainmark.jobs.regions.warnings import notes

VECTORISES = {
    Vectorises.YES: "many triggers at once",
    Vectorises.CHECKED: "checked at first use",
    Vectorises.NO: "one trigger at a time",
}
"""The words for people on whether an operator vectorises."""

_EDGE = {False: "-->", True: "-.->"}


def as_text(plan: ApplicationPlan, statement: Statement | None = None) -> str:
    """Return the plan for a terminal, without colours and without a final line break.

    Args:
        statement: see `clock_reads`.
    """
    lines = [f"{plan.name}: {counted(len(plan.regions), 'region')}, fingerprint {plan.fingerprint}"]
    for region in plan.regions:
        lines += ["", *_region_text(region)]
    for outside in plan.autonomous:
        lines += ["", *_autonomous_text(outside)]
    if plan.application.composites:
        lines += ["", "composites", *_composites_text(plan)]
    noted = notes(plan, statement)
    if noted:
        lines += ["", "notes", *(f"  - {note}" for note in noted)]
    return "\n".join(lines)


def as_json(plan: ApplicationPlan, statement: Statement | None = None) -> dict[str, Any]:
    """Return the plan as JSON; every key is always there.

    - `application`, `origin`, `fingerprint`, `notes`: list of sentences
    - `regions`: list of
        - `region`, `fingerprint`, `starts`, `ends`, `feeds`: names; `forced_single`: names of the operators because of
          which a group holds one trigger
        - `parameters`: `trigger`, `period_seconds` (null unless periodic), `group_timeout_seconds` (and by its
          former name, `drain_timeout_seconds`), `reset_timeout_seconds`, `max_consecutive_reset_attempts`, `runs`,
          `rewind_horizon`, `schedule` (or null), `linger_seconds` (null: as the setting says), `checkpoints`,
          `alignment`, `alignment_timeout_seconds` (or null), `channels` (`memory`, `durable`), `max_inflight_bytes`,
          `checkpoint_interval_seconds` (or null)
        - `stages`: one, if no edge is buffered; upstream first, each with `stage` (its first operator), `starts`,
          `operators`, `followers` (of the autonomous parts that read it), `inputs` and `outputs` (names of channels),
          `checkpoint_interval_seconds` (null: with each commit)
        - `channels`: each with `channel`, `stream`, `from` and `to` (stages), `readers`, `kind`, `batches` and `bytes`
          (its bounds), and `keys` (columns; rows with the same values come together, in order)
        - `operators`: in topological order, feeds among them, each with `name`, `kind`, `location` (`file:line`),
          `is_start`, `is_end`, `is_feed`, `is_stateful`, `vectorises` (`yes`, `checked`, `no`; null in a feed),
          `outputs`, `fingerprint` (of itself alone), `composite` (the innermost that it is in, or null),
          `reads_clock` (the names by which it reads the clock, as in its code) and `ports`: list of `index`, `port`,
          `parameter`, `stream`, `class` (null in a feed), `is_buffered`
        - `tables`: list of `table`, `operator`, `guarantee` (null if it promises none), `why` it holds, and the
          `condition` on which it depends (null: none)
    - `autonomous`: list of `name`, `operators`, `reads` and `feeds` (regions), `tables`, `guarantee` (of the tables)
      and `why`
    - `composites`: list of instances, each with `name`, `kind` (the function), `location`, `inside` (the composite
      around it, or null), `operators`, `starts` (names of its start operators), `is_consistent`, `is_autonomous` (as
      annotated), and `outputs`: name of the output, "" for the only one, to the stream

    Args:
        statement: see `clock_reads`.
    """
    return {
        "application": plan.name,
        "origin": plan.application.origin,
        "fingerprint": plan.fingerprint,
        "notes": list(notes(plan, statement)),
        "regions": [region_json(region, statement) for region in plan.regions],
        "autonomous": [
            {
                "name": outside.name,
                "operators": names(outside.operators),
                "reads": list(outside.reads),
                "feeds": list(outside.feeds),
                "tables": list(outside.tables),
                "guarantee": outside.guarantee.value,
                "why": outside.why,
            }
            for outside in plan.autonomous
        ],
        "composites": [_composite_json(plan, instance) for instance in plan.application.composites],
    }


def as_mermaid(plan: ApplicationPlan) -> str:
    """Return a Mermaid flow chart: a box for each region, in it a box for each composite; starts are stadiums, sinks
    cylinders, edges to control ports dotted, channels thick."""
    numbers = {operator.name: f"n{index}" for index, operator in enumerate(plan.application.operators)}
    lines = ["flowchart LR"]
    for index, region in enumerate(plan.regions):
        lines.append(f'  subgraph r{index}["{region.name}, {region.parameters.trigger}"]')
        lines += [*_stage_boxes(region, numbers, f"r{index}"), "  end"]
    for index, outside in enumerate(plan.autonomous):
        shapes = [(each, f"{numbers[each.name]}{_shape(each)}:::autonomous") for each in outside.operators]
        lines += _boxes(shapes, (), f"a{index}", "  ")
    for operator in plan.application.operators:
        lines += [f"  {_arrow(connection, operator.name, numbers)}" for connection in operator.inputs]
    return "\n".join([*lines, "  classDef autonomous stroke-dasharray: 4 3"])


def _stage_boxes(region: RegionPlan, numbers: dict[str, str], number: str) -> list[str]:
    """Return the shapes of a region; if it has several stages, each has a box of its own."""
    lines = []
    for index, stage in enumerate(region.stages):
        shapes = [(operator, f"{numbers[operator.name]}{_shape(operator)}") for operator in stage.operators]
        if len(region.stages) == 1:
            return _boxes(shapes, (), number, "    ")
        lines.append(f'    subgraph {number}s{index}["stage {stage.name}"]')
        lines += [*_boxes(shapes, (), f"{number}s{index}", "      "), "    end"]
    return lines


def _boxes(shapes: Sequence[tuple[Operator, str]], around: tuple[str, ...], number: str, indent: str) -> list[str]:
    """Return the shapes in one box; the shapes of a composite are in a box of their own."""
    depth = len(around)
    lines = [f"{indent}{shape}" for operator, shape in shapes if operator.composite == around]
    inside = dict.fromkeys(operator.composite[: depth + 1] for operator, _ in shapes if operator.composite != around)
    for index, path in enumerate(inside):
        within = [(operator, shape) for operator, shape in shapes if operator.composite[: depth + 1] == path]
        lines.append(f'{indent}subgraph {number}_{index}["{path[-1]}"]')
        lines += [*_boxes(within, path, f"{number}_{index}", f"{indent}  "), f"{indent}end"]
    return lines


def _composites_text(plan: ApplicationPlan) -> list[str]:
    rows = []
    for instance in plan.application.composites:
        annotations = ["consistent"] * (instance.consistent is not None) + ["autonomous"] * instance.autonomous
        inside = instance.operators(plan.application.operators)
        rows.append((instance.name, instance.kind, ", ".join(annotations), ", ".join(names(inside))))
    return columns(rows, indent=4)


def _composite_json(plan: ApplicationPlan, instance: CompositeInstance) -> dict[str, Any]:
    operators = plan.application.operators
    return {
        "name": instance.name,
        "kind": instance.kind,
        "location": str(instance.location),
        "inside": instance.path[-2] if len(instance.path) > 1 else None,
        "operators": names(instance.operators(operators)),
        "starts": names(instance.starts(operators)),
        "is_consistent": instance.consistent is not None,
        "is_autonomous": instance.autonomous,
        "outputs": {output: stream.stream for output, stream in instance.outputs.items()},
    }


def _region_text(region: RegionPlan) -> list[str]:
    lines = [
        f"region {region.name}",
        f"  trigger     {_trigger_text(region.parameters)}",
        f"  groups      {_grouping_text(region)}",
        f"  checkpoints {_checkpoints_text(region)}",
        f"  starts      {', '.join(names(region.starts))}",
        f"  ends        {', '.join(names(region.ends))}",
        "  operators",
        *columns([_operator_row(region, operator) for operator in region.run_order], indent=4),
    ]
    if region.tables:
        lines.append("  tables")
        lines += columns(
            [(table.name, _promised(table), f"by {table.operator}") for table in region.tables],
            indent=4,
        )
        lines += [f"    {table.name}: {table.condition}" for table in region.tables if table.condition]
        lines += _reasons(region.tables)
    lines += stage_lines(region)
    parameters = region.parameters
    lines += [
        "  parameters",
        f"    a group within {duration(parameters.group_timeout)}, reset within {duration(parameters.reset_timeout)},"
        f" halt after {counted(parameters.max_consecutive_reset_attempts, 'reset')} in a row,"
        f" rewind by {counted(parameters.rewind_horizon, 'id')}",
    ]
    return lines


def _reasons(tables: Sequence[TablePlan]) -> list[str]:
    """Return the reasons for the guarantees of tables; tables with the same reason share a line."""
    of_reason: dict[str, list[str]] = {}
    for table in tables:
        if table.guarantee is not None and table.why:
            of_reason.setdefault(f"{table.guarantee}: {table.why}", []).append(table.name)
    return [f"    {', '.join(listed)} {reason}" for reason, listed in of_reason.items()]


def _promised(table: TablePlan) -> str:
    if table.guarantee is None:
        return "no guarantee"
    return f"{table.guarantee} on condition" if table.condition else str(table.guarantee)


def _forcing(region: RegionPlan) -> list[str]:
    """Return the operators that force groups of one trigger, with the reason if it is not the usual one."""
    found = [region.operator(name) for name in region.forced_single]
    plain = Operator.single_because
    return [one.name if one.single_because == plain else f"{one.name} ({one.single_because})" for one in found]


def _grouping_text(region: RegionPlan) -> str:
    if region.forced_single:
        return f"one trigger each, because of {', '.join(_forcing(region))}"
    checked = [
        operator.name for operator in region.operators if region.vectorisation[operator.name] is Vectorises.CHECKED
    ]
    return f"many triggers each, if the plans of {', '.join(checked)} allow it" if checked else "many triggers each"


def _checkpoints_text(region: RegionPlan) -> str:
    if region.parameters.checkpoints == Checkpoints.BLOCKING:
        return "blocking: a group begins when the last one is published"
    blocking = [operator.name for operator in region.stateful if not operator.non_blocking]
    waits = f", once the state of {', '.join(blocking)} is written" if blocking else ""
    return f"non-blocking: a group is processed while the last one is written and published{waits}"


def _operator_row(region: RegionPlan, operator: Operator) -> tuple[str, ...]:
    classes = {port.index: port.port_class for port in region.ports if port.operator == operator.name}
    read = []
    for index, connection in enumerate(operator.inputs):
        port_class = classes.get(index)
        plain = port_class is None or (port_class.is_consistent and not port_class.is_control)
        marks = ([] if plain else [str(port_class)]) + ["buffered"] * (connection.buffered is not None)
        read.append(f"{connection.stream} ({', '.join(marks)})" if marks else connection.stream)
    roles = [
        role
        for role, holds in (
            ("start", operator in region.starts),
            ("end", operator in region.ends),
            ("autonomous", operator in region.feeds),
            ("keeps state", operator.keeps_state),
        )
        if holds
    ]
    vectorises = "" if operator in region.feeds else VECTORISES[region.vectorisation[operator.name]]
    return operator.name, operator.kind, vectorises, ", ".join(roles), f"← {', '.join(read)}" if read else ""


def _autonomous_text(outside: AutonomousPlan) -> list[str]:
    lines = [f"autonomous {outside.name}"]
    lines += columns([(operator.name, operator.kind) for operator in outside.operators], indent=4)
    if outside.reads:
        lines.append(f"  reads       {', '.join(outside.reads)} (may see rows twice)")
    if outside.feeds:
        lines.append(f"  feeds       {', '.join(outside.feeds)} (at most once)")
    if outside.tables:
        lines.append(f"  tables      {', '.join(outside.tables)} ({outside.guarantee})")
        lines.append(f"  since       {outside.why}")
    return lines


def region_json(region: RegionPlan, statement: Statement | None = None) -> dict[str, Any]:
    """Return an entry of `regions` of `as_json`."""
    return {
        "region": region.name,
        "fingerprint": region.fingerprint,
        "starts": names(region.starts),
        "ends": names(region.ends),
        "feeds": names(region.feeds),
        "forced_single": list(region.forced_single),
        "parameters": _parameters_json(region.parameters),
        "stages": stages_json(region),
        "channels": channels_json(region),
        "operators": [_operator_json(region, operator, statement) for operator in region.run_order],
        "tables": [
            {
                "table": table.name,
                "operator": table.operator,
                "guarantee": table.guarantee and table.guarantee.value,
                "why": table.why,
                "condition": table.condition,
            }
            for table in region.tables
        ],
    }


def _parameters_json(parameters: Consistent) -> dict[str, Any]:
    return {
        "trigger": str(parameters.trigger),
        "period_seconds": parameters.period.total_seconds() if parameters.period else None,
        "drain_timeout_seconds": parameters.group_timeout.total_seconds(),
        "group_timeout_seconds": parameters.group_timeout.total_seconds(),
        "reset_timeout_seconds": parameters.reset_timeout.total_seconds(),
        "max_consecutive_reset_attempts": parameters.max_consecutive_reset_attempts,
        "runs": str(parameters.runs),
        "rewind_horizon": parameters.rewind_horizon,
        "schedule": parameters.schedule,
        "linger_seconds": seconds(parameters.linger),
        "checkpoints": str(parameters.checkpoints),
        "alignment": str(parameters.alignment),
        "alignment_timeout_seconds": seconds(parameters.alignment_timeout),
        "channels": str(parameters.channels),
        "max_inflight_bytes": parameters.inflight_bytes_bound,
        "checkpoint_interval_seconds": seconds(parameters.checkpoint_interval),
    }


def _operator_json(region: RegionPlan, operator: Operator, statement: Statement | None) -> dict[str, Any]:
    planned = {port.index: port for port in region.ports if port.operator == operator.name}
    return {
        "name": operator.name,
        "kind": operator.kind,
        "location": str(operator.location),
        "is_start": operator in region.starts,
        "is_end": operator in region.ends,
        "is_feed": operator in region.feeds,
        "is_stateful": operator.keeps_state,
        "vectorises": None if operator in region.feeds else region.vectorisation[operator.name].value,
        "outputs": list(operator.outputs),
        "fingerprint": region.fingerprints[operator.name],
        "composite": operator.composite[-1] if operator.composite else None,
        "reads_clock": list(clock_reads(operator, statement)),
        "ports": [
            {
                "index": index,
                "port": planned[index].port if index in planned else index,
                "parameter": connection.parameter,
                "stream": connection.stream,
                "class": planned[index].port_class.value if index in planned else None,
                "is_buffered": connection.buffered is not None,
            }
            for index, connection in enumerate(operator.inputs)
        ],
    }


def _trigger_text(parameters: Consistent) -> str:
    if parameters.trigger == TriggerKind.PERIODIC and parameters.period is not None:
        return f"periodic, {duration(parameters.period)} after the last state"
    runs = "a run drains the backlog" if parameters.runs == Runs.BACKLOG else "a run a trigger"
    schedule = f", on schedule {parameters.schedule}" if parameters.schedule else ""
    return f"operator-driven, {runs}{schedule}"


def _shape(operator: Operator) -> str:
    if operator.is_sink:
        adopted = "adopted: " if getattr(operator, "adopt", False) else ""
        promised = f"<br/>{adopted}{operator.guarantee} on condition" if operator.condition else ""
        return f'[("{operator.name}{promised}")]'
    return f'(["{operator.name}"])' if operator.consistent is not None else f'["{operator.name}"]'


def _arrow(connection: Input, target: str, numbers: dict[str, str]) -> str:
    label = f'|"{connection.output}"|' if connection.output else ""
    edge = "==>" if connection.buffered is not None else _EDGE[connection.control]
    return f"{numbers[connection.upstream]} {edge}{label} {numbers[target]}"
