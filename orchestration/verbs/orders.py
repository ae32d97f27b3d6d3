"""Orders of an operator to one region: the plan of a verb, shown before it is carried out, and then its outcome.

The command line and the jobs of Dagster's launchpad use the same orders, so both say and do the same. An order is made
once; making it changes nothing. `act` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from drainmark.jobs.errors import RewindRefused, UsageError
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.regions.formatting import counted, said_of
from drainmark.jobs.runtime.messages import halt_text
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.inputs import accept_loss as losses
from drainmark.orchestration.verbs.inputs import quarantine
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.rewinds import retract as retractions
from drainmark.orchestration.verbs.rewinds.reset_plan import ResetPlan, RewindTarget, plan_reset
from drainmark.orchestration.workplace.declaration import declared
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry, living_owner

_SHOWN = 10

Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the history.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The outcome of an order.

    Attributes:
        facts: the output of the verb's `--json`.
        lines: the same for people; the first line sums it up.
        remarks: further facts for people, such as files that were left out.
    """

    facts: Mapping[str, Any]
    lines: tuple[str, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The plan of a verb for a region.

    Attributes:
        facts, plan: like `facts` and `lines` of `Done`, before the order is carried out.
        bound: what the order withdraws or changes, and what the region must still be like for that: a plan with other
            values is another plan. What merely arrives, such as pending files, is not part of it: else no plan would
            hold on a busy region for as long as it takes to read it.
        act: carries it out, once.
        notice: what to say before that, if it takes a while.
    """

    verb: str
    region: str
    facts: Mapping[str, Any]
    plan: tuple[str, ...]
    bound: Mapping[str, Any]
    act: Callable[[], Done]
    remarks: tuple[str, ...] = ()
    notice: str = ""


# --- reset --------------------------------------------------------------------------------------------------------


def reset(
    workplace: Workplace, region: str, target: RewindTarget, *, accept_loss: bool = False, cascade: bool = False
) -> Order:
    """Return the order to drop the work in flight and, with a target, to rewind.

    Args:
        cascade: whether regions that read rows which leave go back as well; without it, they make `act` raise
            RewindRefused.

    Raises:
        UsageError, RewindRefused: see `plan_reset`.
    """
    plan = plan_reset(workplace, region, target)
    chain = plan.chain if cascade else ()

    def act() -> Done:
        hurt = [each.region for each in plan.chain if each.to is not None]
        if hurt and not cascade:
            raise _refused(plan, hurt)
        done = interventions.reset(workplace, plan, accept_loss=accept_loss, cascade=bool(chain))
        lines = [_done_line(each, facts) for each, facts in zip(chain, done.get("chain", ()), strict=True)]
        halted = [each.region for each in (*chain, plan) if each.halt == "stays"]
        still = [f"{name} is halted; go on with: drainmark resume {name}" for name in halted]
        return Done(facts=done, lines=(_done_line(plan, done), *lines, *still))

    bound = {**_bound(workplace, plan), "chain": [_bound(workplace, each) for each in plan.chain]}
    lines = (*_reset_lines(plan), *(line for each in plan.chain for line in _chain_lines(each)))
    return Order(verb="reset", region=region, facts=plan.to_json(), plan=lines, bound=bound, act=act)


def _bound(workplace: Workplace, plan: ResetPlan) -> dict[str, Any]:
    # A rewind drops the ids that it names, whoever owns the region; a bare reset drops what this epoch has in flight.
    left_out = {"epoch", "unpublished", "horizon"} if plan.to is not None else {"committed_sequence_id", "unpublished"}
    facts = {name: value for name, value in plan.to_json().items() if name not in left_out}
    return {**facts, **_interventions(workplace.history(plan.region))}


def _refused(plan: ResetPlan, readers: Sequence[str]) -> RewindRefused:
    """Return the error for a rewind that would leave readers wrong."""
    reads = "reads" if len(readers) == 1 else "read"
    return RewindRefused(
        f"{_some(readers)} {reads} rows that leave {plan.region}, and would be wrong without going back as well",
        remedy=f"take the chain back together: drainmark reset {plan.region} --to {plan.to} --cascade",
        readers=tuple(readers),
    )


def _done_line(plan: ResetPlan, done: Mapping[str, Any]) -> str:
    if plan.to is None:
        return f"{plan.region}: reset to {done['committed_sequence_id']} under epoch {done['epoch']}"
    withdrawn, again = counted(len(plan.withdrawn), "id"), counted(done["requeued"], "file")
    return f"{plan.region}: rewound to {plan.to}; {withdrawn} withdrawn, {again} pending again"


def _chain_lines(plan: ResetPlan) -> list[str]:
    """Return the lines about a region that goes back because it read what leaves."""
    if plan.to is None:
        return [
            f"{plan.region}: finish the rewind to {plan.committed_sequence_id}, which died before all tables had it"
        ]
    above = ", ".join(f"{region} above {stays} at {source!r}" for source, region, stays in plan.reads)
    anew = "  its last right state is beyond its rewind horizon: it begins anew"
    first, *others = _reset_lines(plan)
    return [f"{first}, because it read rows of {above}", *([anew] if plan.is_anew else []), *others]


def _reset_lines(plan: ResetPlan) -> list[str]:
    halt = {
        "stays": [f"  the region stays halted; go on with: drainmark resume {plan.region}"],
        "ends": ["  this ends the halt"],
        None: [],
    }[plan.halt]
    if plan.to is None:
        return [f"{plan.region}: drop what is in flight and stay at {plan.committed_sequence_id}", *halt]
    lines = [
        f"{plan.region}: rewind from {plan.committed_sequence_id} to {plan.to}",
        f"  {said_of(len(plan.withdrawn), 'id', 'are', 'is')} withdrawn: {_some(plan.withdrawn)}",
    ]
    changed = "was changed by others, and is put right: see drainmark doctor --repair"
    lines += [f"  {repair.table} {changed}" for repair in plan.repairs]
    lines += _leaving(plan.rows)
    becoming = said_of(len(plan.pending), "file", "become", "becomes")
    lines.append(f"  {becoming} pending: {_some(plan.pending)}")
    if plan.unskipped:
        lines.append(f"  no longer skipped, so a run processes it again: {_some(plan.unskipped)}")
    lines += halt
    return lines + [
        f"  {len(uris)} of them are {label}, which needs --accept-loss: {_some(uris)}"
        for label, uris in (("gone", plan.gone), ("changed", plan.changed))
        if uris
    ]


def _leaving(rows: Mapping[str, int]) -> list[str]:
    """Return a line for each table with the number of its rows that leave or change."""
    said = {table: said_of(count, "row", "leave or change", "leaves or changes") for table, count in rows.items()}
    return [f"  {table}: {text}" for table, text in said.items()]


def _some(values: Sequence[Any]) -> str:
    listed = ", ".join(str(value) for value in values[:_SHOWN])
    return f"{listed} …" if len(values) > _SHOWN else listed or "none"


# --- retract ------------------------------------------------------------------------------------------------------


def retract(
    workplace: Workplace,
    region: str,
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="Committed files: paths or the ends of them.")],
    reason: Reason = "",
) -> Order:
    """Return the order to take committed files back out of the tables.

    Raises:
        UsageError: no file is given; else see `plan_retract`.
        UnknownName, RetractRefused: see there.
    """
    if not files:  # as the desk may be asked
        raise UsageError("the list of files is empty; nothing was changed", remedy="give a file")
    plan = retractions.plan_retract(workplace, region, files)

    def act() -> Done:
        done = retractions.carry_out(workplace, plan, reason)
        lines = [f"{region}: {each['file']} is retracted, {each['sequence_id']} by {each['retracted_by']}"
                 for each in done["retracted"]]  # fmt: skip
        return Done(facts=done, lines=(*lines, *_retracted_before(plan)))

    facts = {**plan.facts, "reason": reason}
    lines = (*_retract_lines(plan), *_retracted_before(plan))
    return Order(verb="retract", region=region, facts=facts, plan=lines, bound={"ids": list(plan.states)}, act=act)


def _retract_lines(plan: retractions.RetractPlan) -> list[str]:
    lines = []
    for entry in plan.facts["files"]:
        code = f", made by code {entry['code'][:8]}" if entry["code"] else ""
        lines.append(f"{plan.region}: {entry['file']} leaves, which is {entry['sequence_id']}{code}")
    if plan.states:
        lines += _leaving({table: rows for table, rows in plan.facts["rows"].items() if rows})
        lines.append("  no later file is read again")
    for reader in plan.facts["readers"]:
        does = "gets them as deletes" if reader["region"] in plan.told else "keeps them"
        lines.append(f"  {reader['region']} has read rows that leave, as {reader['sequence_id']}, and {does}")
    if not plan.states and plan.unpublished:
        lines.append(f"{plan.region}: finish what was committed and is not in all tables yet")
    return lines


def _retracted_before(plan: retractions.RetractPlan) -> list[str]:
    return [f"{plan.region}: {uri} was retracted before, by {number}" for uri, number in plan.done.items()]


# --- halt, resume, skip, publish ----------------------------------------------------------------------------------


def halt(workplace: Workplace, region: str, reason: Reason) -> Order:
    """Return the order to halt a region.

    Raises:
        UsageError: no reason is given.
    """
    _require("reason", reason)
    history = workplace.history(region)
    owner = living_owner(workplace, region)
    lines = [f"{region}: halt until it is resumed: {reason}"]
    if history.halt is not None:
        ends = "" if history.is_halt_asked else "; a rewind ends it"
        lines.append(f"  it is halted already, which stays as it is{ends}: {halt_text(region, history)}")
    elif owner is not None:
        lines.append(f"  pid {owner.pid} on {owner.host} (run {owner.run_id}) works on it, and ends after its group")

    def act() -> Done:
        done = interventions.halt(workplace, region, reason)
        return Done(facts=done, lines=(f"{region} is halted; go on with: drainmark resume {region}",))

    return Order(
        verb="halt",
        region=region,
        facts={**_standing(workplace, region, history), "reason": reason},
        plan=tuple(lines),
        bound=_interventions(history),
        act=act,
    )


def resume(
    workplace: Workplace,
    region: str,
    reason: Reason = "resumed by hand",
    *,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on although the source has lost input; the history keeps that.")
    ] = False,
) -> Order:
    """Return the order to let a halted region go on; its attempts then count from 0 again.

    Raises:
        UsageError: no reason is given; with `accept_loss`, see `accept_loss.plan_loss`.
        UnknownName: see there.
    """
    _require("reason", reason)
    history = workplace.history(region)
    planned = losses.plan_loss(workplace, region) if accept_loss else None
    facts = {**_standing(workplace, region, history), "reason": reason, "accept_loss": accept_loss}
    was = f"take back the halt: {halt_text(region, history)}" if history.halt is not None else "it is not halted"
    used, allowed = history.attempts, declared(workplace, region).max_consecutive_reset_attempts
    lines = [
        f"{region}: {was}",
        f"  attempts count from 0 again: {used} of {allowed} are used",
        f"  {said_of(facts['pending_triggers'], 'file', 'are', 'is')} pending; the next run takes them",
    ]
    if planned is not None:
        facts["lost"] = losses.lost_in(planned)
        lines.append(f"  input that its sources have lost is skipped; the history records it: {facts['lost']}")

    def act() -> Done:
        said = f"{region} may go on; its attempts count from 0 again"
        if planned is None:
            return Done(facts=interventions.resume(workplace, region, reason), lines=(said,))
        done = losses.accept_loss(workplace, region, reason, planned)
        passed = f"{region}: {done['trigger']} stands for the lost input; the next run commits it"
        return Done(facts=done, lines=(passed, said))

    # Where no halt ends, nothing but the claim tells a resume from a later one of as many attempts.
    epoch = history.epoch if history.halt is None else None
    passed = planned.identity if planned is not None else None
    bound = {**_interventions(history), "attempts": used, "epoch": epoch, "passed": passed}
    return Order(verb="resume", region=region, facts=facts, plan=tuple(lines), bound=bound, act=act)


def skip(
    workplace: Workplace,
    region: str,
    files: Annotated[
        list[str], typer.Option("--file", help="A pending file: its path or the end of it; once for each file.")
    ],
    reason: Reason,
) -> Order:
    """Return the order to skip pending files.

    Raises:
        UsageError: no file or no reason is given; else see `interventions.to_skip`.
        UnknownName: see there.
    """
    for file in files or [""]:
        _require("file", file)
    _require("reason", reason)
    history = workplace.history(region)
    found, before = interventions.to_skip(workplace, region, files, history)
    goes_on = interventions.blamed_trigger(history) in (*found, *before)
    facts = {**_standing(workplace, region, history), "triggers": [*found], "reason": reason, "is_resumed": goes_on}
    lines = [f"{region}: skip {uri}, for which an empty state stands: {reason}" for uri in found]
    passed = tuple(f"{region}: {uri} is skipped already, as {number}" for uri, number in before.items())
    lines += passed
    is_one = len(found) + len(before) == 1
    if goes_on:
        lines.append(f"  the region failed on {'it' if is_one else 'one of them'}, and may go on then")
    elif history.halt is not None:
        which = "this file" if is_one else "these files"
        lines.append(f"  the region stays halted, not because of {which}: {halt_text(region, history)}")
    others = said_of(max(0, facts["pending_triggers"] - len(found)), "other file", "are", "is")
    lines.append(f"  {others} pending")

    def act() -> Done:
        done = interventions.skip(workplace, region, [*found, *before], reason)
        then = "; the region may go on" if done["is_resumed"] else ""
        skipped = done["skipped"] or done["skipped_before"]
        said = ", ".join(f"{each['trigger']} is skipped as {each['sequence_id']}" for each in skipped)
        return Done(facts=done, lines=(*(passed if found else ()), f"{region}: {said}{then}"))

    identities = [each.identity_key for each in found.values()]
    bound = {**_interventions(history), "triggers": [*found], "is_resumed": goes_on, "identities": identities}
    bound["skipped_before"] = before
    return Order(verb="skip", region=region, facts=facts, plan=tuple(lines), bound=bound, act=act)


def publish(workplace: Workplace, region: str) -> Order:
    """Return the order to bring tables that lag behind up to the last committed state."""
    history = workplace.history(region)
    upto = history.committed_id
    behind = [f"  {table}: from {shown} to {upto}" for table, shown in sorted(history.lags.items())]
    lines = [f"{region}: bring up {said_of(len(behind), 'table', 'that lag', 'that lags')} behind {upto}", *behind]

    def act() -> Done:
        done = interventions.publish(workplace, region)
        tables = ", ".join(done["brought_up"]) or "all tables"
        return Done(facts=done, lines=(f"{region}: {tables} at {done['committed_sequence_id']}",))

    facts = {**_standing(workplace, region, history), "lags": dict(history.lags)}
    bound = {**_interventions(history), "lags": dict(history.lags)}
    return Order(verb="publish", region=region, facts=facts, plan=tuple(lines), bound=bound, act=act)


def _require(what: str, text: str) -> None:
    if not text.strip():
        raise UsageError(
            f"--{what} is empty; nothing was changed", remedy=f"give {'an' if what == 'input' else 'a'} {what}"
        )


def _standing(workplace: Workplace, region: str, history: RegionHistory) -> dict[str, Any]:
    """Return the facts of a region before an order."""
    registry = existing_registry(workplace)
    return {
        "region": region,
        "is_halted": history.halt is not None,
        "committed_sequence_id": history.committed_id,
        "epoch": history.epoch,
        "consecutive_reset_attempts": history.attempts,
        "pending_triggers": registry.pending_count(region) if registry is not None else 0,
    }


def _interventions(history: RegionHistory) -> dict[str, Any]:
    """Return what interventions change for ever: so a plan that was carried out is never made a second time."""
    counts = history.totals.counts
    halt = history.halt.attempt if history.halt is not None else None
    return {
        "interventions": {name: int(counts.get(name, 0)) for name in ("halt", "rewind", "skip")},
        "halt_in_force": halt,
    }


# --- backfill, redrive --------------------------------------------------------------------------------------------


def backfill(workplace: Workplace, region: str, wanted: Wanted) -> Order:
    """Return the order to queue files that the scan would not take.

    Raises:
        ReplaceRefused, UsageError, RegistryLost: see `plan_queue`.
    """
    if not wanted.files:
        _require("input", wanted.pattern)
    queueing = plan_queue(workplace, region, wanted)
    planned = _queued(queueing.facts)
    return Order(
        verb="backfill",
        region=region,
        facts=planned.facts,
        plan=planned.lines,
        remarks=planned.remarks,
        bound={
            **_interventions(workplace.history(region)),
            "queued": [(trigger.uri, trigger.identity_key) for trigger in queueing.triggers],
            "replaces": queueing.facts["replaces"],
        },
        act=lambda: _queued(queueing.carry_out(workplace)),
        notice=queueing.notice,
    )


def _queued(done: Mapping[str, Any]) -> Done:
    region, is_plan = done["region"], done["dry_run"]
    counts = (
        f"already committed: {done['committed']}, already pending: {done['pending']}, "
        f"skipped, refused or retracted earlier: {done['passed']}"
    )
    verb = "would be queued" if is_plan else "queued"
    would = "would be " if is_plan else ""
    return Done(
        facts=done,
        lines=(
            f"{region}: {said_of(done['matched'], 'file', 'match', 'matches')}, {done['queued']} {verb}; {counts}",
            *(
                f"  {replaced['file']} {would}processed anew; its new state replaces {replaced['sequence_id']}"
                for replaced in done["replaces"]
            ),
            *(
                f"  {kept['file']} changed since {kept['sequence_id']}, whose rows stay unless --again replaces them"
                for kept in done["beside"]
            ),
            *(
                f"  {kept['file']} changed since {kept['sequence_id']} and is left out; --again replaces its rows"
                for kept in done["ignored"]
            ),
        ),
        remarks=tuple(f"{region}: left out {each['file']}: {each['reason']}" for each in done["refused"]),
    )


def redrive(
    workplace: Workplace,
    region: str,
    file: Annotated[
        str, typer.Option("--file", help="A file that was quarantined whole and is fixed: its path or the end of it.")
    ],
) -> Order:
    """Return the order to queue again a fixed file that was quarantined whole.

    Raises:
        UsageError: no file is given; else see `quarantine.plan_redrive`.
        UnknownName: see there.
    """
    _require("file", file)
    queueing = quarantine.plan_redrive(workplace, region, file)
    planned = queueing.facts
    waiting = "it waits already" if not planned["queued"] else "it becomes pending"
    was = f"which was quarantined whole as {planned['quarantined_as']}"
    line = f"{region}: take {planned['file']} in anew, {was}: {waiting}"

    def act() -> Done:
        done = quarantine.carry_out(workplace, queueing)
        waiting = said_of(done["pending_triggers"], "file", "wait", "waits")
        said = f"{region}: {done['file']} is pending again; {waiting}"
        return Done(facts=done, lines=(said,))

    bound = {
        **_interventions(workplace.history(region)),
        **{name: planned[name] for name in ("file", "quarantined_as", "queued")},
        "identities": [trigger.identity_key for trigger in queueing.triggers],
    }
    return Order(
        verb="redrive", region=region, facts=planned, plan=(line,), bound=bound, act=act, notice=queueing.notice
    )
