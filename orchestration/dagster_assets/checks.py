"""Asset checks of a region, each on the tables that it judges: evaluated during a run, at its end, and on request.

During a run they are evaluated after its first group, then once a minute if groups were published since. They are an
op of their own, so that a blocking check that fails stops what comes after a table, and not the region.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` itself.
import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from drainmark.jobs.errors import ExpectationUnmet
from drainmark.jobs.operators.row_wise.expect import Expect
from drainmark.jobs.printable import markdown
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.protocol.records.state_generations import first_generation
from drainmark.jobs.protocol.transitions import State
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.messages import halt_remedies, halt_text
from drainmark.orchestration.dagster_assets.assets import (
    TableAsset,
    checkpoint_key,
    checkpoint_key_of,
    table_assets,
    upstream_of,
)
from drainmark.orchestration.dagster_assets.metadata import MAX_RETRIES_TAG, desk_metadata, plain_metadata
from drainmark.orchestration.dagster_assets.translator import Keys, remembered_keys
from drainmark.orchestration.inspection.desk_links import dagster_name
from drainmark.orchestration.inspection.metrics import present_of
from drainmark.orchestration.inspection.status import REPAIR
from drainmark.orchestration.workplace.workplace import Workplace

HORIZON_HOURS = 24.0
"""A rewind horizon that reaches back fewer hours than this is a warning."""

BAD_SHARE = 0.01
"""A larger share of quarantined rows in the newest states than this is a warning."""

BAD_STATES = 1000
"""The number of newest states for this share."""

AT_COMMITTED_ID = "at_committed_id"
NOT_HALTED = "not_halted"
QUARANTINE_RATIO = "quarantine_ratio"
REWIND_HORIZON = "rewind_horizon"
EXPECTATION = "expectation_"
"""Prefix of the name of an expectation's check; the name of the expectation follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of one check; the description is plain text, and the remedies are commands.

    Attributes:
        assets: keys, as Drainmark gives them, of the tables that are judged.
    """

    name: str
    assets: Sequence[dg.AssetKey]
    passed: bool
    description: str
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    metadata: dict[str, Any] = field(default_factory=dict)
    remedies: Sequence[str] = ()


def check_specs(region: RegionPlan, keys: Keys) -> list[dg.AssetCheckSpec]:
    """Return the specifications of the checks of a region.

    Args:
        keys: those that a translator changed.
    """

    def spec(name: str, key: dg.AssetKey, about: str, *, blocking: bool = False) -> dg.AssetCheckSpec:
        return dg.AssetCheckSpec(name, asset=keys.get(key, key), description=about, blocking=blocking)

    checkpoints = checkpoint_key(region)
    found = [
        spec(NOT_HALTED, checkpoints, "The region does not wait for `drainmark resume`."),
        spec(REWIND_HORIZON, checkpoints, "A rewind can go back a day or to the beginning."),
    ]
    for asset in _own_tables(region):
        found.append(spec(AT_COMMITTED_ID, asset.key, "The table shows the last committed state, and no more."))
        if asset.purpose == "quarantine":
            found.append(spec(QUARANTINE_RATIO, asset.key, "Few rows are quarantined, and no whole file."))
    for each in _expectations(region):
        about = markdown(f"{each.expected} ({each.on_fail})")
        found += [spec(_check_name(each), key, about, blocking=each.blocking) for key in _judged_by(each, region)]
    return found


def build_checks(workplace: Workplace, region: RegionPlan, keys: Keys | None = None) -> dg.AssetChecksDefinition:
    """Return a definition by which the checks can be run from the asset's page.

    Args:
        keys: those that a translator changed.
    """
    keys, name = keys or {}, f"{dagster_name(region.name)}__checks"
    specs = check_specs(region, keys)
    blocking = {spec.key for spec in specs if spec.blocking}

    @dg.multi_asset_check(name=name, specs=specs, can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        for judgement in judgements(workplace, region):
            for key, fields in _fields(region.name, judgement, keys):
                if key not in context.selected_asset_check_keys:
                    continue
                if key in blocking and not judgement.passed:  # a retry would find nothing to make, and so succeed
                    context.instance.add_run_tags(context.op_execution_context.run_id, {MAX_RETRIES_TAG: "0"})
                yield dg.AssetCheckResult(**fields)

    return checks


def evaluations(workplace: Workplace, region: RegionPlan) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the results of the checks as events."""
    keys = remembered_keys(workplace, region.name)
    for judgement in judgements(workplace, region):
        yield from evaluations_of(region.name, judgement, keys)


def evaluations_of(region: str, judgement: Judgement, keys: Keys) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the result of a region's check as an event for each table that it judges.

    Args:
        keys: those that a translator changed.
    """
    yield from (dg.AssetCheckEvaluation(**fields) for _, fields in _fields(region, judgement, keys))


def _fields(region: str, judgement: Judgement, keys: Keys) -> Iterator[tuple[dg.AssetCheckKey, dict[str, Any]]]:
    for own in judgement.assets:
        asset = keys.get(own, own)
        yield (
            dg.AssetCheckKey(asset, judgement.name),
            {
                "asset_key": asset,
                "check_name": judgement.name,
                "passed": judgement.passed,
                "severity": judgement.severity,
                "description": markdown(judgement.description),
                "metadata": plain_metadata(judgement.metadata) | desk_metadata(region, judgement.remedies),
            },
        )


def judgements(workplace: Workplace, region: RegionPlan) -> Iterator[Judgement]:
    """Yield the result of every check, from the checkpoint table and the tables' statistics, without Spark."""
    moment = present_of(workplace, region.name).moment
    history = moment.history
    yield not_halted(region.name, history, moment.state)
    yield _rewind_horizon(region, history)
    yield from _at_committed_id(workplace, region, history, is_owned=moment.living is not None)
    for asset in _own_tables(region):
        if asset.purpose == "quarantine":
            yield _quarantine_ratio(region, history, asset.key)
    yield from (_met(each, region, history) for each in _expectations(region))


def _own_tables(region: RegionPlan) -> list[TableAsset]:
    """Return the tables whose rows are of the region's states."""
    return [each for each in table_assets(region) if each.purpose not in ("checkpoint", "at-least-once")]


def _at_committed_id(
    workplace: Workplace, region: RegionPlan, history: RegionHistory, *, is_owned: bool
) -> Iterator[Judgement]:
    """Check that tables show the committed state; groups that an owner is about to publish are no fault."""
    known = {first_generation(table.name): table for table in history.tables}
    tables = {asset.key: known.get(asset.table) for asset in _own_tables(region)}
    newest = {key: _newest_id(workplace, region, table) for key, table in tables.items()}
    if is_owned and any(number > history.committed_id for number in newest.values()):
        history = workplace.history(region.name)  # its owner may have committed and published since
    publish, behind = f"drainmark publish {region.name}", len(history.unpublished)
    for key, table in tables.items():
        shown = history.lags.get(table.name) if table is not None else None
        is_above = newest[key] > history.committed_id
        if is_above and table is not None:
            description = f"rows above the committed id {history.committed_id} in {table.name}: {REPAIR}"
        elif behind and is_owned:
            description = f"{behind} committed groups are about to be published"
        elif behind:
            description = f"{behind} committed groups are not published yet: the next run rolls them forward"
        elif shown is not None:
            description = f"at {shown}, behind {history.committed_id}; at once: {publish}"
        elif history.flow.channels:
            count = len(history.flow.batches)
            description = f"{count} batches are in flight: the table may have to catch up with {history.committed_id}"
        else:
            description = f"at {history.committed_id}"
        yield Judgement(
            name=AT_COMMITTED_ID,
            assets=[key],
            passed=not is_above and (is_owned or not behind),
            description=description,
            metadata={
                "drainmark/sequence_id": history.committed_id,
                "drainmark/published_sequence_id": history.shown_id if shown is None else shown,
                "drainmark/newest_sequence_id": newest[key],
            },
            remedies=[REPAIR if is_above else publish] if is_above or (shown is not None and not behind) else (),
        )


def _newest_id(workplace: Workplace, region: RegionPlan, table: RegionTable | None) -> int:
    if table is None:  # no run has made it yet
        return INITIAL_ID
    written = workplace.store(region.name).open(table)
    return written.newest_id() if written.exists() else INITIAL_ID


def not_halted(region: str, history: RegionHistory, state: State) -> Judgement:
    """Check that a region is not halted; if it is, the description has file, operator, cause and remedy."""
    detail = history.halt.detail if history.halt is not None else {}
    facts: dict[str, Any] = {"state": state.value, "attempts": history.attempts}
    facts |= {name: str(detail[name]) for name in ("trigger", "operator") if detail.get(name)}
    return Judgement(
        name=NOT_HALTED,
        assets=[checkpoint_key_of(region)],
        passed=history.halt is None,
        description=f"not halted: {state}" if history.halt is None else f"halted: {halt_text(region, history)}",
        metadata={f"drainmark/{name}": value for name, value in facts.items()},
        remedies=halt_remedies(region, history) if history.halt is not None else (),
    )


def _quarantine_ratio(region: RegionPlan, history: RegionHistory, key: dg.AssetKey) -> Judgement:
    """Check that the newest states have few quarantined rows, and no whole file that was not processed again since."""
    states = [row for row in history.states.newest(BAD_STATES).values() if row.kind is RowKind.STATE]
    read = sum(row.rows_in or 0 for row in states)
    bad = sum(row.detail.get("rows_quarantined") or 0 for row in states)
    newest = {row.trigger_uri: row for row in states}
    concerned = [row for row in newest.values() if row.detail.get("rows_quarantined")]  # slices have other remarks, too
    files = [row.trigger_uri for row in concerned if row.detail.get("reason")]
    share = bad / read if read else 0.0
    last = max(concerned, key=lambda row: row.sequence_id, default=None)
    return Judgement(
        name=QUARANTINE_RATIO,
        assets=[key],
        passed=share <= BAD_SHARE and not files,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{bad} of {read} rows and {len(files)} whole files of the last {len(states)} are quarantined"
        + (f", the newest in {last.trigger_uri}: drainmark quarantine list {region.name}" if last is not None else ""),
        metadata={"drainmark/rows_quarantined": bad, "drainmark/files_quarantined": len(files)},
    )


def _expectations(region: RegionPlan) -> Iterator[Expect]:
    yield from (operator for operator in region.operators if isinstance(operator, Expect))


def _check_name(expectation: Expect) -> str:
    return f"{EXPECTATION}{dagster_name(expectation.name)}"


def _judged_by(expectation: Expect, region: RegionPlan) -> list[dg.AssetKey]:
    """Return the keys of the visible tables downstream of an expectation; of the checkpoint table without one."""
    found = [
        asset.key
        for asset in _own_tables(region)
        if asset.purpose == "sink" and expectation.name in upstream_of(region, asset.operator)
    ]
    return found or [checkpoint_key(region)]


def _met(expectation: Expect, region: RegionPlan, history: RegionHistory) -> Judgement:
    """Check that the newest states meet the expectation, and that it did not halt the region."""
    states = [row for row in history.states.newest(BAD_STATES).values() if row.kind is RowKind.STATE]
    unmet = {
        row.trigger_uri: rows
        for row in states
        if row.sequence_id not in history.replaced  # by the file's next state, or by a retraction
        and (rows := (row.detail.get("unmet") or {}).get(expectation.name))
    }
    halt = history.halt.detail if history.halt else {}
    error = halt.get("error") or {}
    is_halted = error.get("id") == ExpectationUnmet.id and error.get("operator") == expectation.name
    found = f"{sum(unmet.values())} rows of {len(unmet)} of the last {len(states)} files do not meet it"
    return Judgement(
        name=_check_name(expectation),
        assets=_judged_by(expectation, region),
        passed=not unmet and not is_halted,
        severity=dg.AssetCheckSeverity.ERROR if is_halted or expectation.blocking else dg.AssetCheckSeverity.WARN,
        description=f"{expectation.expected}: {error['message'] if is_halted else found}",
        metadata={"drainmark/rows_unmet": sum(unmet.values()), "drainmark/files_unmet": len(unmet)}
        | ({"drainmark/newest_file_unmet": list(unmet)[-1] or ""} if unmet else {}),
    )


def _rewind_horizon(region: RegionPlan, history: RegionHistory) -> Judgement:
    horizon = region.parameters.rewind_horizon
    access = history.oldest_target(horizon)
    oldest = history.state_at_least(access)
    is_short, said = False, "to the beginning"
    facts: dict[str, Any] = {"drainmark/oldest_sequence_id": INITIAL_ID}
    if access != INITIAL_ID and oldest is not None:
        hours = (dt.datetime.now(dt.UTC) - history.states[oldest].recorded_at).total_seconds() / 3600
        is_short = hours < HORIZON_HOURS
        remedy = f"; to keep more than {horizon} ids, raise rewind_horizon in @dm.consistent" if is_short else ""
        said = f"{hours:.1f} hours, to id {oldest}{remedy}"
        facts = {"drainmark/oldest_sequence_id": oldest, "drainmark/horizon_hours": round(hours, 2)}
    return Judgement(
        name=REWIND_HORIZON,
        assets=[checkpoint_key(region)],
        passed=not is_short,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"a rewind can go back {said}",
        metadata=facts,
    )
