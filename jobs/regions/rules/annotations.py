"""Rules on who may be in a region, who may start one, and what may be merged (V41, V55, V60, E3, E5, E6, E8)."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.errors import Violation
from jobs.graph.annotations import Trigger
from jobs.regions.merging import Membership, starts_of
from jobs.regions.reachability import reachable
from jobs.regions.rules.draft import Draft, broken


def both_annotations(draft: Draft) -> Iterator[Violation]:
    """One operator carries `@consistent` and `@autonomous` (E5)."""
    for operator in draft.application.operators:
        if operator.consistent is not None and operator.autonomous:
            yield broken(
                "BOTH_ANNOTATIONS",
                operator,
                f"{operator.name!r} carries @consistent and @autonomous",
                "keep one of them",
            )


def start_kind(draft: Draft) -> Iterator[Violation]:
    """`@consistent` is on an operator that cannot replay, so it cannot start a region (E6, E8)."""
    for operator in draft.application.operators:
        if operator.consistent is not None and not operator.may_start:
            yield broken(
                "START_KIND",
                operator,
                f"{operator.name!r} is a {operator.kind}, which cannot start a region: it cannot replay",
                "put @dm.consistent on the source that feeds it",
            )


def unsupported_in_region(draft: Draft) -> Iterator[Violation]:
    """An operator that cannot keep the promise is in a region (V55, V60)."""
    for operator in draft.application.operators:
        region = draft.region_of(operator.name)
        if region is not None and not operator.supports_consistent:
            yield broken(
                "UNSUPPORTED_IN_REGION",
                operator,
                f"{operator.name!r} is a {operator.kind}, which cannot keep the promise of the region"
                f" that {_listed(region.starts)} starts",
                "replace it, or take it out with @dm.autonomous",
            )


def second_start_in_operator_driven(draft: Draft) -> Iterator[Violation]:
    """An operator-driven region has more than one start (V41), or would be merged with another (E3)."""
    for region in draft.regions:
        annotated = starts_of(draft.graph, region)
        if len(annotated) < 2 or all(annotation.trigger != Trigger.OPERATOR_DRIVEN for _, annotation in annotated):
            continue
        first, second = [operator for name, operator in draft.graph.operators.items() if name in region.starts][:2]
        yield broken(
            "SECOND_START_IN_OPERATOR_DRIVEN",
            second,
            f"{_listed(region.starts)} start one region, for both reach {_shared(draft, region)!r},"
            f" and an operator-driven region has one start",
            f"keep @dm.consistent on one, e.g. one scan with two outputs instead of {first.name!r} and {second.name!r}",
        )


def merged_parameters_differ(draft: Draft) -> Iterator[Violation]:
    """Regions are merged, and a parameter that is no number differs: there is no maximum to take (E3)."""
    for region in draft.regions:
        (first, reference), *others = starts_of(draft.graph, region)
        for start, annotation in others:
            for name in ("runs", "schedule", "checkpoints"):
                ours, theirs = getattr(reference, name), getattr(annotation, name)
                if ours != theirs:
                    yield broken(
                        "MERGED_PARAMETERS_DIFFER",
                        start,
                        f"{first.name!r} and {start.name!r} start one region, but one says {name}={ours!r}"
                        f" and the other {theirs!r}",
                        f"give both the same {name}",
                    )


def _shared(draft: Draft, region: Membership) -> str:
    """Return the first operator that two starts of a region reach."""
    stops = draft.graph.carved_out | frozenset(draft.graph.starts)
    reached = [reachable([name], draft.graph.downstream, stops) for name in region.starts]
    return next(
        operator.name
        for operator in draft.graph.ordered(region.members)
        if sum(operator.name in names for names in reached) > 1
    )


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(map(repr, names))
