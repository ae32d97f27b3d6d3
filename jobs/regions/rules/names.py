"""Rules on names: they are identity, folders, Python parameters and Dagster's names at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobs.errors import Violation
from jobs.graph.operator import Operator
from jobs.regions.rules.draft import Draft, broken

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_LENGTH_MAX = 100
_ALLOWED = f"a letter, then letters, digits and single _, at most {_LENGTH_MAX} in all"


def bad_application_name(draft: Draft) -> Iterator[Violation]:
    """The application's name does not serve as folder and Dagster name."""
    name = draft.application.name
    if _is_bad(name):
        yield Violation(
            rule="BAD_APPLICATION_NAME",
            message=f"{name!r} is no name for an application",
            remedy=f"name the module with {_ALLOWED}",
        )


def bad_name(draft: Draft) -> Iterator[Violation]:
    """An operator's name has other characters, or `__`, which separates an output: `landing__orders`."""
    for operator in draft.application.operators:
        if _is_bad(operator.name):
            why = "'__' stands between an operator and its output" if "__" in operator.name else "not a plain name"
            yield broken(
                "BAD_NAME",
                operator,
                f"{operator.name!r} is no name for an operator: {why}",
                f"rename it or give name=: {_ALLOWED}",
            )


def duplicate_name(draft: Draft) -> Iterator[Violation]:
    """Two operators have one name; state would not know whom to follow."""
    first: dict[str, Operator] = {}
    for operator in draft.application.operators:
        earlier = first.setdefault(operator.name, operator)
        if earlier is not operator:
            yield broken(
                "DUPLICATE_NAME",
                operator,
                f"{operator.name!r} is declared twice, first at {earlier.location}",
                "rename one of them, or give it name=",
            )


def _is_bad(name: str) -> bool:
    return not _NAME.fullmatch(name) or "__" in name or len(name) > _LENGTH_MAX
