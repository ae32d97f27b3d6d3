"""Rules on the tables that operators write below the lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sinks.delta_append import DeltaSink
from drainmark.jobs.regions.merging import Draft, Membership, broken
from drainmark.jobs.regions.reachability import reachable


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


def two_tables_of_a_name(draft: Draft) -> Iterator[Violation]:
    """Two tables are to have one name in a catalogue of Spark's, which ignores case."""
    first: dict[str, Operator] = {}
    for operator in draft.application.operators:
        if not isinstance(operator, DeltaSink) or (name := operator.registered) is None:
            continue
        earlier = first.setdefault(name.casefold(), operator)
        if earlier is not operator:
            yield broken(
                "TWO_TABLES_OF_A_NAME",
                operator,
                f"{operator.name!r} registers its table as {name}, as {earlier.name!r} at {earlier.location} does",
                "write the name of one of them out: register=CATALOGUE.SCHEMA.TABLE",
            )


def table_inside_table(draft: Draft) -> Iterator[Violation]:
    """A table is in the folder of another table; the clean-up of the outer table would look into it."""
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
    """A sink writes the table in which Drainmark keeps the application's bad rows."""
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
    """A region looks up a table that it writes itself: a loop in which the grouping decides which rows it reads."""
    for operator in draft.application.operators:
        if draft.region_of(operator.name) is None:
            for table, writer in _own_tables_read(draft, operator, _readers(draft, operator)):
                yield broken(
                    "LOOKUP_OF_OWN_TABLE",
                    operator,
                    f"{operator.name!r} looks up {table!r}, which {writer.name!r} of the same region writes",
                    "keep the needed values as state: dm.aggregate; or look it up in another region",
                )


def import_of_own_table(draft: Draft) -> Iterator[Violation]:
    """An operator of a region takes in a table that the same region writes: a loop through its start.

    Streams forbids Import in a region and Export from a region, since they join jobs without coordination. Here tables
    join regions and applications: a sink exports exactly once, for any reader; `dm.lookup` imports through an
    autonomous port; a source of tables imports as the start of a region. Only the loop must be forbidden.
    """
    for operator in draft.application.operators:
        region = draft.region_of(operator.name)
        if region is not None:
            for table, writer in _own_tables_read(draft, operator, [region]):
                yield broken(
                    "IMPORT_OF_OWN_TABLE",
                    operator,
                    f"{operator.name!r} takes in {table!r}, which {writer.name!r} of the same region writes",
                    "write to another table, or close the loop on a control port behind the start",
                )


def _readers(draft: Draft, operator: Operator) -> list[Membership]:
    """Return the regions that an autonomous operator feeds, directly or through other autonomous operators."""
    consistent = frozenset().union(*(region.members for region in draft.regions))
    outside = reachable([operator.name], draft.graph.downstream, consistent)
    fed = {name for autonomous in outside for name in draft.graph.downstream[autonomous]}
    return [region for region in draft.regions if not region.members.isdisjoint(fed)]


def _own_tables_read(draft: Draft, operator: Operator, readers: Sequence[Membership]) -> Iterator[tuple[str, Operator]]:
    """Yield the tables that an operator reads and one of these regions writes, with the writer."""
    for table in operator.tables_read:
        for writer, written in _tables(draft):
            if draft.region_of(writer.name) in readers and written.casefold() == table.casefold():
                yield table, writer


def _tables(draft: Draft) -> Iterator[tuple[Operator, str]]:
    for operator in draft.application.operators:
        for table in operator.tables:
            yield operator, table
