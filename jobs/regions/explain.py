"""A compiled application for people and for machines: text for a terminal, JSON, and a Mermaid flow chart."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from jobs.graph.annotations import Checkpoints, Consistent, Runs, Trigger
from jobs.graph.operator import Input, Operator, Vectorises
from jobs.regions.notes import notes
from jobs.regions.plan import ApplicationPlan, AutonomousPlan, RegionPlan, TablePlan

_VECTORISES = {
    Vectorises.YES: "many triggers at once",
    Vectorises.CHECKED: "checked at first use",
    Vectorises.NO: "one trigger at a time",
}
_EDGE = {False: "-->", True: "-.->"}


def as_text(plan: ApplicationPlan) -> str:
    """Return the plan for a terminal, without colours and without a final line break."""
    lines = [f"{plan.name}: {_counted(len(plan.regions), 'region')}, fingerprint {plan.fingerprint}"]
    for region in plan.regions:
        lines += ["", *_region_text(region)]
    for outside in plan.autonomous:
        lines += ["", *_autonomous_text(outside)]
    noted = notes(plan)
    if noted:
        lines += ["", "notes", *(f"  - {note}" for note in noted)]
    return "\n".join(lines)


def as_json(plan: ApplicationPlan) -> dict[str, Any]:
    """Return the plan as JSON; every key is always there.

    - `application`, `origin`, `fingerprint`, `notes`: list of sentences
    - `regions`: list of
        - `region`, `fingerprint`, `starts`, `ends`, `feeds`: names; `forced_single`: names of the operators because of
          which a group holds one trigger
        - `parameters`: `trigger`, `period_seconds` (null unless periodic), `drain_timeout_seconds`,
          `reset_timeout_seconds`, `max_consecutive_reset_attempts`, `runs`, `rewind_horizon`, `schedule` (or null),
          `checkpoints`
        - `operators`: in topological order, feeds among them, each with `name`, `kind`, `location` (`file:line`),
          `is_start`, `is_end`, `is_feed`, `is_stateful`, `vectorises` (`yes`, `checked`, `no`; null in a feed),
          `outputs`, `fingerprint` (of itself alone) and `ports`: list of `index`, `port`, `parameter`, `stream`,
          `class` (null in a feed)
        - `tables`: list of `table`, `operator`, `guarantee` (null if it promises none) and `condition`: what the
          guarantee depends on (null: on nothing)
    - `autonomous`: list of `name`, `operators`, `reads` and `feeds` (regions), `tables`, `guarantee` (of the tables)
    """
    return {
        "application": plan.name,
        "origin": plan.application.origin,
        "fingerprint": plan.fingerprint,
        "notes": list(notes(plan)),
        "regions": [_region_json(region) for region in plan.regions],
        "autonomous": [
            {
                "name": outside.name,
                "operators": _names(outside.operators),
                "reads": list(outside.reads),
                "feeds": list(outside.feeds),
                "tables": list(outside.tables),
                "guarantee": outside.guarantee.value,
            }
            for outside in plan.autonomous
        ],
    }


def as_mermaid(plan: ApplicationPlan) -> str:
    """Return a Mermaid flow chart: a box a region, starts as stadiums, sinks as cylinders, control ports dotted."""
    numbers = {operator.name: f"n{index}" for index, operator in enumerate(plan.application.operators)}
    lines = ["flowchart LR"]
    for index, region in enumerate(plan.regions):
        lines.append(f'  subgraph r{index}["{region.name}, {region.parameters.trigger}"]')
        lines += [f"    {numbers[operator.name]}{_shape(operator)}" for operator in region.operators]
        lines.append("  end")
    for outside in plan.autonomous:
        lines += [f"  {numbers[operator.name]}{_shape(operator)}:::autonomous" for operator in outside.operators]
    for operator in plan.application.operators:
        lines += [f"  {_arrow(connection, operator.name, numbers)}" for connection in operator.inputs]
    return "\n".join([*lines, "  classDef autonomous stroke-dasharray: 4 3"])


def _region_text(region: RegionPlan) -> list[str]:
    lines = [
        f"region {region.name}",
        f"  trigger     {_trigger_text(region.parameters)}",
        f"  groups      {_grouping_text(region)}",
        f"  checkpoints {_checkpoints_text(region)}",
        f"  starts      {', '.join(_names(region.starts))}",
        f"  ends        {', '.join(_names(region.ends))}",
        "  operators",
        *_columns([_operator_row(region, operator) for operator in region.run_order], indent=4),
    ]
    if region.tables:
        lines.append("  tables")
        lines += _columns(
            [(table.name, _promised(table), f"by {table.operator}") for table in region.tables],
            indent=4,
        )
        lines += [f"    {table.name}: {table.condition}" for table in region.tables if table.condition]
    parameters = region.parameters
    lines += [
        "  parameters",
        f"    drain within {_duration(parameters.drain_timeout)}, reset within {_duration(parameters.reset_timeout)},"
        f" halt after {_counted(parameters.max_consecutive_reset_attempts, 'reset')} in a row,"
        f" rewind by {_counted(parameters.rewind_horizon, 'id')}",
    ]
    return lines


def _promised(table: TablePlan) -> str:
    if table.guarantee is None:
        return "no guarantee"
    return f"{table.guarantee} on condition" if table.condition else str(table.guarantee)


def _grouping_text(region: RegionPlan) -> str:
    if region.forced_single:
        return f"one trigger each, because of {', '.join(region.forced_single)}"
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
        read.append(connection.stream if plain else f"{connection.stream} ({port_class})")
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
    vectorises = "" if operator in region.feeds else _VECTORISES[region.vectorisation[operator.name]]
    return operator.name, operator.kind, vectorises, ", ".join(roles), f"← {', '.join(read)}" if read else ""


def _autonomous_text(outside: AutonomousPlan) -> list[str]:
    lines = [f"autonomous {outside.name}"]
    lines += _columns([(operator.name, operator.kind) for operator in outside.operators], indent=4)
    if outside.reads:
        lines.append(f"  reads       {', '.join(outside.reads)} (may see rows twice)")
    if outside.feeds:
        lines.append(f"  feeds       {', '.join(outside.feeds)} (at most once)")
    if outside.tables:
        lines.append(f"  tables      {', '.join(outside.tables)} ({outside.guarantee})")
    return lines


def _region_json(region: RegionPlan) -> dict[str, Any]:
    return {
        "region": region.name,
        "fingerprint": region.fingerprint,
        "starts": _names(region.starts),
        "ends": _names(region.ends),
        "feeds": _names(region.feeds),
        "forced_single": list(region.forced_single),
        "parameters": _parameters_json(region.parameters),
        "operators": [_operator_json(region, operator) for operator in region.run_order],
        "tables": [
            {
                "table": table.name,
                "operator": table.operator,
                "guarantee": table.guarantee and table.guarantee.value,
                "condition": table.condition,
            }
            for table in region.tables
        ],
    }


def _parameters_json(parameters: Consistent) -> dict[str, Any]:
    return {
        "trigger": str(parameters.trigger),
        "period_seconds": parameters.period.total_seconds() if parameters.period else None,
        "drain_timeout_seconds": parameters.drain_timeout.total_seconds(),
        "reset_timeout_seconds": parameters.reset_timeout.total_seconds(),
        "max_consecutive_reset_attempts": parameters.max_consecutive_reset_attempts,
        "runs": str(parameters.runs),
        "rewind_horizon": parameters.rewind_horizon,
        "schedule": parameters.schedule,
        "checkpoints": str(parameters.checkpoints),
    }


def _operator_json(region: RegionPlan, operator: Operator) -> dict[str, Any]:
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
        "ports": [
            {
                "index": index,
                "port": planned[index].port if index in planned else index,
                "parameter": connection.parameter,
                "stream": connection.stream,
                "class": planned[index].port_class.value if index in planned else None,
            }
            for index, connection in enumerate(operator.inputs)
        ],
    }


def _trigger_text(parameters: Consistent) -> str:
    if parameters.trigger == Trigger.PERIODIC and parameters.period is not None:
        return f"periodic, {_duration(parameters.period)} after the last state"
    runs = "a run drains the backlog" if parameters.runs == Runs.BACKLOG else "a run a trigger"
    schedule = f", on schedule {parameters.schedule}" if parameters.schedule else ""
    return f"operator-driven, {runs}{schedule}"


def _columns(rows: Sequence[Sequence[str]], *, indent: int) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [index for index, width in enumerate(widths) if width]
    return [(" " * indent + "  ".join(row[i].ljust(widths[i]) for i in shown)).rstrip() for row in rows]


def _shape(operator: Operator) -> str:
    if operator.is_sink:
        adopted = f"<br/>adopted: {operator.guarantee} on condition" if operator.condition else ""
        return f'[("{operator.name}{adopted}")]'
    return f'(["{operator.name}"])' if operator.consistent is not None else f'["{operator.name}"]'


def _arrow(connection: Input, target: str, numbers: dict[str, str]) -> str:
    label = f'|"{connection.output}"|' if connection.output else ""
    return f"{numbers[connection.upstream]} {_EDGE[connection.control]}{label} {numbers[target]}"


def _names(operators: Sequence[Operator]) -> list[str]:
    return [operator.name for operator in operators]


def _duration(duration: dt.timedelta) -> str:
    return f"{duration.total_seconds():g} s"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
