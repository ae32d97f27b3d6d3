"""The tables of a keyed state: each time a state is dropped, a new generation of it begins at a sequence id.

Each generation is a table of its own, `state/<app>/<operator>.<label>`; the first one has no label. So a dropped state
is not lost: the id decides which generation is in force, and a rewind to an id before the drop returns to the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Generations = Mapping[str, tuple[tuple[int, str], ...]]
"""By operator: (first id, label) of each generation after the first one, oldest first; () if a rewind went back behind
all of them."""


def state_table(application: str, operator: str, part: str = "", *, label: str = "") -> str:
    """Return the name of the table of one generation of a state; `part` names one of several states of an operator."""
    return f"state/{application}/{operator}{f'-{part}' if part else ''}{f'.{label}' if label else ''}"


def first_generation(table: str) -> str:
    """Return the name of a state's first table; the name of any other table unchanged."""
    is_state = table.startswith("state/")
    return table.partition(".")[0] if is_state else table  # neither applications nor operators nor parts have a dot


def begun(generations: Generations, labels: Mapping[str, str], first_id: int) -> Generations:
    """Return the generations after some states begin anew at an id; `labels` holds the new labels by operator."""
    further = {name: (*generations.get(name, ()), (first_id, label)) for name, label in labels.items()}
    return {**generations, **further}


def rewound(generations: Generations, to: int) -> Generations:
    """Return the generations after a rewind, without those that began after the id."""
    return {
        name: tuple((first_id, label) for first_id, label in known if first_id <= to)
        for name, known in generations.items()
    }


def labels_in_force(generations: Generations) -> dict[str, str]:
    """Return the label in force by operator, for operators with a state that is not the first generation."""
    return {name: known[-1][1] for name, known in generations.items() if known}


def from_json(value: Mapping[str, Iterable[Iterable[object]]]) -> Generations:
    """Return generations from JSON, which has lists instead of tuples."""
    return {name: tuple((int(str(first_id)), str(label)) for first_id, label in known) for name, known in value.items()}
