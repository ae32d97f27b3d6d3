"""`plan`: comparison of the declared code with the last run, and the drop of states that the code cannot continue.

A dropped state begins anew from the next id, in a table of its own. The old state stays. A rewind to before the drop
returns to it; then the code of that time, or another drop, is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.protocol.failure_policy import is_lifted
from drainmark.jobs.protocol.history import Outcome, RegionHistory
from drainmark.jobs.protocol.records.schema_compatibility import TableChange, is_state
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.regions.plan_diff import RegionDifference, TableDifference, difference
from drainmark.jobs.runtime.commit.claim_checks import full_of, other_forms, refusal, states_with_holes
from drainmark.jobs.runtime.messages import halted_error
from drainmark.orchestration.discovery.region_scan import require_same_inputs
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.verbs.removals.table_drops import readers_of_tables
from drainmark.orchestration.workplace.application_identity import code_digest, require_own_file
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, drainmark_version, existing_registry

if TYPE_CHECKING:
    from drainmark.jobs.runtime.region_run import RegionRun


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePlan:
    """The findings of the next run of an application.

    Attributes:
        regions: the declared ones.
        left: regions of the application that ran and are not declared any more: their tables stay unchanged.
        drops: runs with claims that let the dropped states begin anew, in the tables that are shown.
    """

    application: str
    regions: tuple[RegionDifference, ...]
    left: tuple[str, ...]
    drops: tuple[RegionRun, ...] = ()

    @property
    def is_compatible(self) -> bool:
        return all(region.is_compatible for region in self.regions)

    def to_json(self) -> dict[str, Any]:
        """Return the output of `plan --json`; every key is always present."""
        return {
            "application": self.application,
            "is_compatible": self.is_compatible,
            "regions": [region.to_json() for region in self.regions],
            "regions_left": list(self.left),
        }


def plan_upgrade(
    workplace: Workplace,
    opened: Opened,
    regions: Sequence[RegionPlan],
    *,
    drop: Collection[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> UpgradePlan:
    """Compare regions of an application with their checkpoint tables; commits nothing.

    It starts the Spark session unless code, settings and parameters are those of a last run that ended well.

    Args:
        drop: operators with a state that is to begin anew.
        tell: called with a text before each step that takes seconds.

    Raises:
        OperatorFailed, DeclarationError, ForeignTable: a run would fail at its start.
        UsageError: a region is of another application's file.
        UnknownName, UsageError: see `drop_states`.
    """
    _require_stateful(regions, drop)
    found, drops = [], []
    for region in regions:
        require_own_file(workplace, region)
        history = workplace.history(region.name)
        mine = _of(region, drop, history)
        if not mine and _is_as_it_ran(workplace, opened, region, history):
            same = difference(region, history.tables, history)
            refused = _halted(region.name, history, history.code or "") or _scan_refused(workplace, region, history)
            found.append(replace(same, refused=refused))
            continue
        tell(f"analysing {region.name} …")
        run = region_run(workplace, opened, region, drop_states=mine)
        tables = run.blueprint.tables
        unfit, full = states_with_holes(history, tables), other_forms(run.owner.outside.store, history, tables)
        changed = difference(region, tables, history, dropped=mine, unfit=unfit, full=full)
        told = tuple(naming_readers(workplace, each, history, region.name) for each in changed.tables)
        changed = replace(changed, tables=told)
        if changed.is_compatible:
            changed = replace(changed, refused=_refused(run, history) or _scan_refused(workplace, region, history))
        else:
            wrong = {each.table for each in changed.tables if each.change is TableChange.INCOMPATIBLE}
            states = [table.name for table in tables if table.name in wrong and is_state(table, tables)]
            changed = replace(changed, full=tuple(full_of(run.owner.outside.store, history, tables, states)))
        found.append(changed)
        drops += [run] if mine else []
    names = {region.name for region in opened.plan.regions}
    left = (name for name in workplace.known_regions() if name.partition("/")[0] == opened.plan.name)
    return UpgradePlan(
        application=opened.plan.name,
        regions=tuple(found),
        left=tuple(name for name in left if name not in names),
        drops=tuple(drops),
    )


def naming_readers(
    workplace: Workplace, found: TableDifference, history: RegionHistory, region: str
) -> TableDifference:
    """Name the regions that go on reading a table which the code writes no more: nothing comes to them from then on."""
    tables = [table for table in (*history.former, *history.tables) if table.name == found.table]
    readers = readers_of_tables(workplace, region, tables) if found.change is TableChange.DROPPED else []
    return replace(found, why=f"{', '.join(readers)} would get no more rows") if readers else found


def drop_states(workplace: Workplace, opened: Opened, regions: Sequence[RegionPlan], drop: Collection[str]) -> None:
    """Let the state of some operators begin anew from the next id; the claim that records this is the commit.

    Raises:
        UnknownName: there is no such operator.
        UsageError: it keeps no state.
        StateIncompatible: a table shows its state and would keep rows of the old one.
        Owned: a run has the region.
    """
    _require_stateful(regions, drop)
    for region in regions:
        history = workplace.history(region.name)
        mine = _of(region, drop, history)
        if mine:
            carry_out([region_run(workplace, opened, region, drop_states=mine)])


def carry_out(drops: Iterable[RegionRun]) -> None:
    """Claim regions for runs that were analysed with states to begin anew.

    Raises:
        StatesMoved: a state was dropped, or its drop undone, since then.
        Owned: a run has the region.
    """
    for run in drops:
        with owning(run.owner, partial(run.owner.claim, run.blueprint.tables, run.blueprint.code)):
            pass


def _halted(region: str, history: RegionHistory, code: str) -> dict[str, Any] | None:
    """Return the error of a run of a region that is halted; None if other code lifts the halt, or there is none."""
    if history.halt is None or is_lifted(history, code):
        return None
    return halted_error(region, history).to_json()


def _refused(run: RegionRun, history: RegionHistory) -> dict[str, Any] | None:
    """Return the error with which the claim of a run would be refused, as the run would say it."""
    blueprint, region = run.blueprint, run.region
    if (halted := _halted(region, history, run.owner.ledger.identity.code)) is not None:
        return halted
    error = refusal(run.owner.outside, region, blueprint.tables, blueprint.code)
    return error.to_json() if error is not None else None


def _scan_refused(workplace: Workplace, region: RegionPlan, history: RegionHistory) -> dict[str, Any] | None:
    """Return the error with which the first scan of a run would be refused."""
    if history.last_claim is None or existing_registry(workplace) is None:
        return None
    try:
        require_same_inputs(workplace, region)
    except UsageError as error:
        return error.to_json()
    return None


def _is_as_it_ran(workplace: Workplace, opened: Opened, region: RegionPlan, history: RegionHistory) -> bool:
    """Say whether the last run ended well with these files, settings, parameters: then it has the declared tables."""
    claim = history.last_claim
    if claim is None or not history.code or history.last_outcome is not Outcome.CLEAN:
        return False
    code = code_digest(opened.application.origin, workplace.settings.project_root)
    ran = (history.code, claim.graph_fingerprint, claim.params_hash, claim.drainmark_version)
    return ran == (code, region.fingerprint, opened.params.digest(), drainmark_version())


def _of(region: RegionPlan, drop: Collection[str], history: RegionHistory) -> list[str]:
    """Return the operators of a region with states to be dropped; none if the region has never run."""
    names = (operator.name for operator in region.stateful)
    return [name for name in names if name in drop] if history.epoch else []


def _require_stateful(regions: Sequence[RegionPlan], drop: Collection[str]) -> None:
    operators = {operator.name: operator for region in regions for operator in region.operators}
    stateful = [name for name, operator in operators.items() if operator.keeps_state]
    for name in drop:
        if name not in operators:
            msg = f"no region has an operator {name!r}, whose state could be dropped"
            raise UnknownName(msg, remedy=nearest(name, stateful))
        if not operators[name].keeps_state:
            msg = f"{name!r} is a {operators[name].kind} and keeps no state"
            raise UsageError(msg, operator=name, remedy=f"states are kept by: {', '.join(stateful) or 'none'}")
