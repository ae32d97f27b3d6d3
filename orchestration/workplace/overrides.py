"""`--input [NAME=]PATH`: sources that read another folder, or another prefix of a bucket, than they declare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.graph.application import Application, nearest
from drainmark.jobs.protocol.records.addresses import address_of, is_object

if TYPE_CHECKING:
    from drainmark.jobs.graph.operator import Operator


def overrides_of(items: Sequence[str]) -> dict[str, str]:
    """Return the path by name of the source; the name is "" for the only source."""
    return dict(_override(item) for item in items)


def _override(item: str) -> tuple[str, str]:
    name, separator, path = item.partition("=")
    return (name, path) if separator and name.isidentifier() else ("", item)


def _absolute(path: str) -> str:
    if is_object(path):
        address_of(path)
        return path
    return str(Path(path).absolute())


def with_inputs(application: Application, overrides: Mapping[str, str]) -> Application:
    """Return the application with sources that read the given paths, which count from the working directory.

    Raises:
        UnknownName, UsageError: there is no such source, several are possible, or an address is not valid.
    """
    from drainmark.jobs.operators.sources.files.directory_source import DirectorySource

    sources = [operator for operator in application.operators if isinstance(operator, DirectorySource)]
    if "" in overrides and len(sources) != 1:
        msg = f"application {application.name!r} has {len(sources)} sources: say which one"
        raise UsageError(msg, remedy="--input NAME=PATH")
    for name in overrides:
        if name and name not in {source.name for source in sources}:
            raise UnknownName(f"there is no source {name!r}", remedy=nearest(name, [s.name for s in sources]))
    operators: list[Operator] = []
    for operator in application.operators:
        path = overrides.get(operator.name, overrides.get("")) if isinstance(operator, DirectorySource) else None
        if path is not None and isinstance(operator, DirectorySource):
            operators.append(replace(operator, scan=replace(operator.scan, path=_absolute(path))))
        else:
            operators.append(operator)
    return replace(application, operators=tuple(operators))
