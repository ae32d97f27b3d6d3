"""Rules on annotations: members of a region, starts of a region, and merges."""

from __future__ import annotations

from collections.abc import Iterator

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.regions.merging import Draft, Membership, broken, starts_of
from drainmark.jobs.regions.reachability import reachable

_OPTIONAL_NUMBERS = ("linger", "alignment_timeout", "checkpoint_interval")
_EQUAL_OR_MAXIMUM = ("runs", "schedule", "checkpoints", "alignment", "channels", *_OPTIONAL_NUMBERS)


def both_annotations(draft: Draft) -> Iterator[Violation]:
    """One operator carries `@consistent` and `@autonomous`."""
    for operator in draft.application.operators:
        if operator.consistent is not None and operator.autonomous:
            yield broken(
                "BOTH_ANNOTATIONS",
                operator,
                f"{operator.name!r} carries @consistent and @autonomous",
                "keep one of them",
            )


def composite_without_start(draft: Draft) -> Iterator[Violation]:
    """An annotated composite has no start: each operator in it is a lookup, or has an input from inside."""
    for instance in draft.application.composites:
        is_annotated = instance.consistent is not None or instance.autonomous
        if is_annotated and not instance.starts(draft.application.operators):
            yield Violation(
                rule="COMPOSITE_WITHOUT_START",
                message=f"composite {instance.name!r} is annotated, but has no start operator to pass that on to",
                operator=instance.name,
                location=instance.location,
                remedy="put the annotation on the operator or composite that it is meant for",
            )


def start_kind(draft: Draft) -> Iterator[Violation]:
    """`@consistent` is on an operator that cannot replay, so it cannot start a region.

    That is every kind except the replayable sources: a Custom, a Functor or a sink handles tuples and keeps none.
    """
    for operator in draft.application.operators:
        if operator.consistent is None or operator.may_start or not operator.supports_consistent:
            continue
        if operator.is_source:
            why = "is read as it is now" if operator.is_reference else "cannot replay"
            remedy = "put @dm.consistent on a source that replays, such as @dm.source(dm.DirectoryScan(...))"
        else:
            why = "cannot replay: it handles tuples and keeps none"
            remedy = "put @dm.consistent on the source that feeds it"
        yield broken(
            "START_KIND",
            operator,
            f"{operator.name!r} is a {operator.kind}, which cannot start a region: it {why}",
            remedy,
        )


def unsupported_in_region(draft: Draft) -> Iterator[Violation]:
    """An operator that cannot keep the promise is in a region."""
    for operator in draft.application.operators:
        region = draft.region_of(operator.name)
        if region is not None and not operator.supports_consistent:
            why = f": {operator.refused_because}" if operator.refused_because else ""
            yield broken(
                "UNSUPPORTED_IN_REGION",
                operator,
                f"{operator.name!r} is a {operator.kind}, which cannot keep the promise of the region"
                f" that {_listed(region.starts)} starts{why}",
                operator.instead or "replace it, or take it out with @dm.autonomous",
            )


def unsupported_operator(draft: Draft) -> Iterator[Violation]:
    """An operator of a kind that Drainmark does not have, outside of regions; see `unsupported_operators.py`."""
    for operator in draft.application.operators:
        if operator.refused_because and draft.region_of(operator.name) is None:
            yield broken(
                "UNSUPPORTED_OPERATOR",
                operator,
                f"{operator.name!r} is a {operator.kind}, which Drainmark does not have: {operator.refused_because}",
                operator.instead,
            )


def second_start_in_operator_driven(draft: Draft) -> Iterator[Violation]:
    """An operator-driven region has more than one start, or would be merged with another."""
    for region in draft.regions:
        annotated = starts_of(draft.graph, region)
        if len(annotated) < 2 or all(annotation.trigger != TriggerKind.OPERATOR_DRIVEN for _, annotation in annotated):
            continue
        first, second = [operator for name, operator in draft.graph.operators.items() if name in region.starts][:2]
        yield broken(
            "SECOND_START_IN_OPERATOR_DRIVEN",
            second,
            f"{_listed(region.starts)} start one region, for both reach {_shared(draft, region)!r},"
            f" and an operator-driven region has one start",
            f"read {first.name!r} and {second.name!r} as two outputs of one scan, or give both trigger='periodic' and"
            " a period",
        )


def merged_parameters_differ(draft: Draft) -> Iterator[Violation]:
    """Merged regions differ in a parameter that has no maximum.

    It is no number, or one region has a number and the other has none, as with `linger`, which a setting may give.
    """
    for region in draft.regions:
        (first, reference), *others = starts_of(draft.graph, region)
        for start, annotation in others:
            for name in _EQUAL_OR_MAXIMUM:
                ours, theirs = getattr(reference, name), getattr(annotation, name)
                have_maximum = name in _OPTIONAL_NUMBERS and None not in (ours, theirs)
                if ours != theirs and not have_maximum:
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
