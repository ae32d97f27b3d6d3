"""The layout of a file that names its columns, where it may have some that are not declared: how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from drainmark.jobs.formats.column_fit import Bare
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.values.text_columns import ddl_of, literal, quoted_name
from drainmark.jobs.frames.tags import CORRUPT, RESCUED, RESERVED

_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "true",
}
_UNREAD = "(not read: Spark has no such type)"
"""Stands in the place of a value that is not read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the columns of a file stand in it.

    Attributes:
        ddl: of those that Spark reads: the declared ones as declared, the others as found.
        unread: names of those that are not declared, and of a type that Spark does not have; `ddl` has most of them,
            as numbers or bytes that say where a value is.
    """

    ddl: str
    unread: tuple[str, ...] = ()


def layout_of(file: BinaryIO, suffix: str, expected: Expected) -> Layout | None:
    """Return the layout of a file.

    None where the declared columns say what the file has to be, and it is refused if it is not: it does not name its
    columns, lacks one, or has two, or one of a source's own, that Spark would not tell apart.

    Args:
        suffix: of a compressed file the ending of its name.

    Raises:
        OSError: it cannot be read.
    """
    declared = {name.casefold(): (name, kind) for name, kind in expected.columns or ()}
    found = [declared.get(name.casefold(), (name, kind)) for name, kind in _found(file, suffix, expected)]
    names = [name for name, _ in found]
    if not are_clear(names) or not declared.keys() <= {name.casefold() for name in names}:
        return None
    read = [(name, kind.kind if isinstance(kind, Bare) else kind) for name, kind in found if kind is not None]
    return Layout(ddl_of(read), tuple(name for name, kind in found if kind is None or isinstance(kind, Bare)))


def are_clear(names: Sequence[str]) -> bool:
    """Say whether Spark can tell columns from each other, and from those that a source adds; each on one line."""
    folded = {name.casefold() for name in names}
    has_line_ends = any(len(name.splitlines()) > 1 or not name.isprintable() for name in names)
    return not has_line_ends and len(folded) == len(names) and not folded & {"", CORRUPT, RESCUED, *RESERVED}


def _found(file: BinaryIO, suffix: str, expected: Expected) -> Sequence[tuple[str, Any]]:
    return expected.reads.columns_in(file, suffix, expected) or ()


def rescued_sql(others: Sequence[str], unread: Sequence[str]) -> str:
    """Return the SQL of what rows have in some columns, as JSON text; null where they are all null.

    Args:
        unread: names of columns, of these or further ones, of whose values the text says that they are not read.
    """
    values = {name: quoted_name(name) for name in others}
    for name in unread:
        values[name] = f"if({values[name]} is null, null, {literal(_UNREAD)})" if name in values else literal(_UNREAD)
    if not values:
        return "cast(null as string)"
    members = ", ".join(f"{literal(name)}, {value}" for name, value in values.items())
    options = ", ".join(literal(text) for option in _JSON.items() for text in option)
    return f"nullif(to_json(named_struct({members}), map({options})), '{{}}')"
