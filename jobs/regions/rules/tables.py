"""Rules on the tables that operators write below the lake."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.errors import Violation
from jobs.graph.operator import Operator
from jobs.regions.rules.draft import Draft, broken


def two_writers_of_a_table(draft: Draft) -> Iterator[Violation]:
    """Two operators write one table; upper and lower case are one folder on some file systems."""
    first: dict[str, tuple[Operator, str]] = {}
    for operator, table in _tables(draft):
        earlier, earlier_table = first.setdefault(table.casefold(), (operator, table))
        if earlier is not operator:
            spelled = "" if earlier_table == table else f" (as {earlier_table!r})"
            yield broken(
                "TWO_WRITERS_OF_A_TABLE",
                operator,
                f"{operator.name!r} writes table {table!r}, which {earlier.name!r} at {earlier.location}"
                f" writes too{spelled}",
                "give each a table of its own",
            )


def table_inside_table(draft: Draft) -> Iterator[Violation]:
    """A table lies in the folder of another one, whose clean-up would look into it."""
    tables = list(_tables(draft))
    for operator, table in tables:
        for outer_operator, outer in tables:
            if table.casefold().startswith(f"{outer.casefold()}/"):
                yield broken(
                    "TABLE_INSIDE_TABLE",
                    operator,
                    f"{operator.name!r} writes table {table!r} inside {outer!r}, the table of {outer_operator.name!r}",
                    "put one of them into another folder",
                )


def reserved_table(draft: Draft) -> Iterator[Violation]:
    """A sink writes the table in which Drainmark keeps the application's bad rows (design.md §6)."""
    application = draft.application.name
    reserved = {f"{application}_quarantine".casefold()}
    reserved |= {f"{application}_{region.starts[0]}_quarantine".casefold() for region in draft.regions}
    for operator, table in _tables(draft):
        if table.casefold() in reserved:
            yield broken(
                "RESERVED_TABLE",
                operator,
                f"{operator.name!r} writes {table!r}, where the rows that could not be read are kept",
                "choose another table",
            )


def lookup_of_own_table(draft: Draft) -> Iterator[Violation]:
    """A region looks up what it writes itself: a loop through a table, in which the grouping decides what is read."""
    for operator in draft.application.operators:
        readers = [draft.region_of(name) for name in draft.graph.downstream.get(operator.name, ())]
        for table in operator.tables_read:
            for writer, written in _tables(draft):
                region = draft.region_of(writer.name)
                if region is not None and region in readers and written.casefold() == table.casefold():
                    yield broken(
                        "LOOKUP_OF_OWN_TABLE",
                        operator,
                        f"{operator.name!r} looks up {table!r}, which {writer.name!r} of the same region writes",
                        "keep what is needed as state: dm.aggregate; or look it up in another region",
                    )


def _tables(draft: Draft) -> Iterator[tuple[Operator, str]]:
    for operator in draft.application.operators:
        for table in operator.tables:
            yield operator, table
