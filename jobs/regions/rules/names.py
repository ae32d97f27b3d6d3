"""Rules on names: a name is identity, folder, Python parameter and Dagster name at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.composite_instance import CompositeInstance
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.merging import Draft, broken

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_LENGTH_MAX = 100
_ALLOWED = f"a letter, then letters, digits and single _, at most {_LENGTH_MAX} in all"


def bad_application_name(draft: Draft) -> Iterator[Violation]:
    """The application's name cannot be the name of a folder and of Dagster objects."""
    name = draft.application.name
    if _is_bad(name):
        yield Violation(
            rule="BAD_APPLICATION_NAME",
            message=f"{name!r} is no name for an application",
            remedy=f"name the module with {_ALLOWED}",
        )


def bad_name(draft: Draft) -> Iterator[Violation]:
    """A name has other characters, or `__`, which separates an output: `landing__orders`.

    If the name of a composite is bad, the operators in it are not reported.
    """
    bad = {instance.name for instance in draft.application.composites if _is_bad(instance.name)}
    for what, named in _named(draft):
        inherited = named.path[:-1] if isinstance(named, CompositeInstance) else named.composite
        if _is_bad(named.name) and bad.isdisjoint(inherited):
            why = "'__' stands between an operator and its output" if "__" in named.name else "not a plain name"
            yield Violation(
                rule="BAD_NAME",
                message=f"{named.name!r} is no name for {what}: {why}",
                operator=named.name,
                location=named.location,
                remedy=f"rename it or give name=: {_ALLOWED}",
            )


def bad_column(draft: Draft) -> Iterator[Violation]:
    """The name of a key column is not a text, or comes twice; Spark does not tell `K` and `k` apart."""
    for operator in draft.application.operators:
        seen: set[str] = set()
        for key in getattr(operator, "keys", ()):
            if not isinstance(key, str):
                message = f"{operator.name}: {key!r} is no name of a column"
                yield broken("BAD_COLUMN", operator, message, 'give names, such as ["customer"]')
            elif key.lower() in seen:
                yield broken("BAD_COLUMN", operator, f"{operator.name} has the key {key!r} twice", "name it once")
            else:
                seen.add(key.lower())


def duplicate_name(draft: Draft) -> Iterator[Violation]:
    """Two operators, or an operator and a composite, have one name; it would not identify a state."""
    first: dict[str, Operator | CompositeInstance] = {}
    twice: set[str] = set()
    for what, named in _named(draft):
        earlier = first.setdefault(named.name, named)
        if isinstance(named, CompositeInstance):
            twice |= {named.name} if earlier is not named else set()
        if earlier is named or (isinstance(named, Operator) and not twice.isdisjoint(named.composite)):
            continue
        yield Violation(
            rule="DUPLICATE_NAME",
            message=f"{named.name!r} is declared twice, now as {what}, first at {earlier.location}",
            operator=named.name,
            location=named.location,
            remedy="rename one of them, or give it name=",
        )


def _named(draft: Draft) -> Iterator[tuple[str, Operator | CompositeInstance]]:
    """Yield all declarations with a name: composites, the outermost first, then operators."""
    for instance in sorted(draft.application.composites, key=lambda instance: len(instance.path)):
        yield "a composite", instance
    for operator in draft.application.operators:
        yield "an operator", operator


def _is_bad(name: str) -> bool:
    return not _NAME.fullmatch(name) or "__" in name or len(name) > _LENGTH_MAX
