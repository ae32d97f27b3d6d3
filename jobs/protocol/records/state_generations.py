"""In which table a keyed state is: dropping a state begins a generation of it, from a sequence id on.

Each generation is a table of its own, `state/<app>/<operator>.<label>`, the first one has no label. So nothing of the
state that was dropped is lost: a rewind to before that returns to it, since what is in force is a matter of the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Generations = Mapping[str, tuple[tuple[int, str], ...]]
"""By operator: the first id that a generation is computed with, and its label, oldest first; none where a rewind went
behind all of them."""


def state_table(application: str, operator: str, part: str = "", *, label: str = "") -> str:
    """Return the name of the table that has a generation of a state, or of one of an operator's several."""
    return f"state/{application}/{operator}{f'-{part}' if part else ''}{f'.{label}' if label else ''}"


def first_generation(table: str) -> str:
    """Return the name of a state's first table; another table's name as it is."""
    is_state = table.startswith("state/")
    return table.partition(".")[0] if is_state else table  # neither applications nor operators nor parts have a dot


def begun(generations: Generations, labels: Mapping[str, str], first_id: int) -> Generations:
    """Return the generations after the states of some operators, by label, begin anew."""
    further = {name: (*generations.get(name, ()), (first_id, label)) for name, label in labels.items()}
    return {**generations, **further}


def rewound(generations: Generations, to: int) -> Generations:
    """Return the generations after a rewind: those that began after the id are none any more."""
    return {
        name: tuple((first_id, label) for first_id, label in known if first_id <= to)
        for name, known in generations.items()
    }


def labels_in_force(generations: Generations) -> dict[str, str]:
    """Return the label by operator, of those whose state is not the first."""
    return {name: known[-1][1] for name, known in generations.items() if known}


def from_json(value: Mapping[str, Iterable[Iterable[object]]]) -> Generations:
    """Return what was written as JSON: lists instead of tuples."""
    return {name: tuple((int(str(first_id)), str(label)) for first_id, label in known) for name, known in value.items()}
