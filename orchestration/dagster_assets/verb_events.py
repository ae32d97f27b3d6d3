"""Events of an operator's verbs, and of halts, on the asset pages.

A rewind is a materialisation of every table that it took back, so the newest state in Dagster is the state in force.
Stored events cannot be changed, so the runs whose states are withdrawn get a tag that says it. Dagster has no run for a
`drainmark run`, and so no tags: the event of the rewind lists it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import dagster as dg

from drainmark.jobs.printable import markdown
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.state_generations import first_generation
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.messages import halt_remedies, halt_text
from drainmark.orchestration.dagster_assets.assets import (
    checkpoint_key_of,
    source_keys,
    table_assets,
)
from drainmark.orchestration.dagster_assets.checks import evaluations
from drainmark.orchestration.dagster_assets.metadata import (
    WITHDRAWN_TAG,
    data_version,
    desk_metadata,
    plain_metadata,
    runs_table,
    standing_metadata,
)
from drainmark.orchestration.dagster_assets.translator import remembered_keys, renamed
from drainmark.orchestration.inspection.metrics import present_of
from drainmark.orchestration.workplace.workplace import Workplace

Event = dg.AssetMaterialization | dg.AssetObservation

_KEPT = ("reason", "trigger", "file", "to", "requeued", "was_halted", "is_resumed", "queued")
"""Facts of a verb that go into its event, if the verb has them."""

_OF_FILES = ("skip", "backfill", "redrive")


def show_verb(
    workplace: Workplace,
    region: str,
    plan: RegionPlan | None,
    done: tuple[str, Mapping[str, Any], str],
    *,
    instance: dg.DagsterInstance,
    log: Callable[[Any], object],
) -> None:
    """Report the effect of a verb to the asset pages, and evaluate the checks again.

    Args:
        plan: of the region; None without its code: then only the page of its checkpoint table gets an event.
        done: the verb, its facts, and a sentence with the outcome.
        log: stores an event, of a run or without a run.
    """
    verb, facts, _ = done
    present = present_of(workplace, region)
    history, standing = present.moment.history, standing_metadata(present)
    made: Iterable[Event] = ()
    if verb == "reset" and facts["to"] is not None:
        runs = _tag_withdrawn(instance, history, facts["withdrawn"])
        made = _rewound(workplace, history, plan, done, standing=standing, runs=runs)
    elif verb != "halt":  # the process that halts the region calls `report_halt`
        made = _observed(history, plan, done, standing=standing)
    keys = remembered_keys(workplace, region)
    for event in made:
        log(renamed(event, keys))
    for evaluation in evaluations(workplace, plan) if plan is not None else ():
        log(evaluation)


def told_of(
    region: str, verb: str, facts: Mapping[str, Any], lines: Sequence[str]
) -> list[tuple[str, tuple[str, Mapping[str, Any], str]]]:
    """Return the regions that a verb changed, each with what `show_verb` needs: a reset may take a chain along.

    Args:
        facts, lines: the outcome of the verb.
    """
    chain = facts.get("chain") or ()
    if not chain:
        return [(region, (verb, facts, lines[-1]))]
    return [(each["region"], (verb, each, line)) for each, line in zip((facts, *chain), lines, strict=False)]


def halted(region: str, history: RegionHistory) -> dg.AssetObservation:
    """Return the event of a halt, on the page of the region's checkpoint table."""
    detail = history.halt.detail if history.halt is not None else {}
    said = f"{region} is halted: {halt_text(region, history)}"
    facts = {name: detail[name] for name in ("reason", "trigger", "operator") if detail.get(name)}
    about = _about("halt", facts, history) | _named(facts) | desk_metadata(region, halt_remedies(region, history))
    return dg.AssetObservation(checkpoint_key_of(region), description=markdown(said), metadata=about)


def _about(verb: str, facts: Mapping[str, Any], history: RegionHistory) -> dict[str, Any]:
    return {
        "drainmark/event": verb,
        "drainmark/sequence_id": history.committed_id,
        "drainmark/epoch": history.epoch,
        "drainmark/attempts": history.attempts,
        **_named({name: facts[name] for name in _KEPT if facts.get(name) is not None}),
    }


def _named(facts: Mapping[str, Any]) -> dict[str, Any]:
    return plain_metadata({f"drainmark/{name}": value for name, value in facts.items()})


def _observed(
    history: RegionHistory,
    plan: RegionPlan | None,
    done: tuple[str, Mapping[str, Any], str],
    *,
    standing: Mapping[str, Any],
) -> Iterator[Event]:
    """Yield an observation of the checkpoint table, and of the sources if the verb concerns files."""
    verb, facts, told = done
    said = markdown(told)
    about = _about(verb, facts, history)
    yield dg.AssetObservation(checkpoint_key_of(facts["region"]), description=said, metadata={**about, **standing})
    if verb in _OF_FILES and plan is not None:
        yield from (dg.AssetObservation(key, description=said, metadata=about) for key in source_keys(plan))


def _rewound(
    workplace: Workplace,
    history: RegionHistory,
    plan: RegionPlan | None,
    done: tuple[str, Mapping[str, Any], str],
    *,
    standing: Mapping[str, Any],
    runs: Sequence[tuple[str, str, str]],
) -> Iterator[Event]:
    """Yield a materialisation of each table that was rewound, at the id that it shows now.

    Args:
        runs: the runs of the withdrawn states; see `runs_table`.
    """
    _, facts, told = done
    said = markdown(told)
    region, withdrawn = facts["region"], facts["withdrawn"]
    about = _about("rewind", facts, history) | {
        "drainmark/sequence_id": facts["to"],
        "drainmark/withdrawn": len(withdrawn),
        "drainmark/withdrawn_ids": ranges(withdrawn),
        **({"drainmark/withdrawn_runs": dg.MetadataValue.md(runs_table(runs))} if runs else {}),
    }
    version = data_version(history.epoch, facts["to"])
    key = checkpoint_key_of(region)
    yield dg.AssetMaterialization(key, description=said, metadata={**about, **standing}, tags=version)
    if plan is None:
        return
    store = workplace.store(region)
    tables = {first_generation(table.name): table for table in history.tables}
    for asset in table_assets(plan):
        table = tables.get(asset.table)
        if table is None or asset.key == key:  # tables outside of the region are not rewound
            continue
        count = store.open(table).row_count()
        counted = {"dagster/row_count": count} if count is not None else {}
        yield dg.AssetMaterialization(asset.key, description=said, metadata={**counted, **about}, tags=version)
    yield from (dg.AssetObservation(key, description=said, metadata=about) for key in source_keys(plan))


def _tag_withdrawn(
    instance: dg.DagsterInstance, history: RegionHistory, withdrawn: Collection[int]
) -> list[tuple[str, str, str]]:
    """Tag the runs whose states are withdrawn: their materialisations have a link to the run, and so to the tag.

    Returns:
        oldest first, for each run: its id, its withdrawn sequence ids, and the place where they are marked.
    """
    gone, of_run = set(withdrawn), defaultdict(list)
    for row in history.withdrawn:
        if row.sequence_id in gone:
            of_run[row.run_id].append(row.sequence_id)
    found = []
    for run_id, numbers in sorted(of_run.items(), key=lambda each: min(each[1])):
        run = instance.get_run_by_id(run_id)
        if run is not None:
            before = [run.tags[WITHDRAWN_TAG]] if run.tags.get(WITHDRAWN_TAG) else []
            instance.add_run_tags(run_id, {WITHDRAWN_TAG: ", ".join([*before, ranges(numbers)])})
        where = "a tag of the run" if run is not None else "this event alone: Dagster has no such run"
        found.append((run_id, ranges(numbers), where))
    return found


def ranges(numbers: Collection[int]) -> str:
    """Return ids as ranges: `3, 5..9`."""
    ordered = sorted(numbers)
    if not ordered:
        return ""
    starts = [ordered[0], *(after for before, after in pairwise(ordered) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ordered) if after != before + 1), ordered[-1]]
    return ", ".join(f"{a}..{b}" if a != b else str(a) for a, b in zip(starts, ends, strict=True))
