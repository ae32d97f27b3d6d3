"""Completions in a shell besides verbs and options: names of applications, regions and tables.

Names come from the settings, and from the registry and the tables if they are files of this machine. It changes no
file, asks no server and imports no application; errors are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace
    from drainmark.resources.registry.queries import Looks

_Source = Callable[["Workplace"], Iterable[str]]


def _found(workplace: Workplace, *sources: _Source) -> list[str]:
    """Return the names of all sources; skip a source that fails."""
    names: list[str] = []
    for source in sources:
        with suppress(Exception):  # an error must not appear in the shell's line; the verb itself reports it
            names += source(workplace)
    return names


def _offered(names: _Source) -> Callable[[typer.Context], list[str]]:
    """Return a completion callback for typer from a function of the project; typer itself filters by prefix."""

    def project(ctx: typer.Context) -> Workplace:
        from drainmark.orchestration.workplace.workplace import Workplace
        from drainmark.resources.settings import load_settings

        home = ctx.params.get("home")
        return Workplace(load_settings(home=Path(home) if home else None))

    def offered(ctx: typer.Context) -> list[str]:
        with suppress(Exception):
            return sorted(set(names(project(ctx))))
        return []

    return offered


@_offered
def applications(workplace: Workplace) -> list[str]:
    """Return the applications of the settings and those that ran here; the shell itself adds Python files."""
    return _found(workplace, _configured, _recorded)


@_offered
def regions(workplace: Workplace) -> list[str]:
    """Return the regions that ran or were scanned, and the applications without such regions."""
    found = _regions(workplace)
    known = {region.partition("/")[0] for region in found}
    return [*found, *(name for name in _found(workplace, _configured) if name not in known)]


@_offered
def applications_and_regions(workplace: Workplace) -> list[str]:
    """Return applications and regions, for a verb that takes either."""
    found = _regions(workplace)
    return [*_found(workplace, _configured), *(region.partition("/")[0] for region in found), *found]


@_offered
def tables(workplace: Workplace) -> list[str]:
    """Return the tables that regions write."""
    return [name for region in _found(workplace, _processed) for name in _found(workplace, _tables_of(region))]


@_offered
def former_tables(workplace: Workplace) -> list[str]:
    """Return the tables that left the code."""
    return [
        table.name.removeprefix("lake/")
        for region in _found(workplace, _processed)
        for table in workplace.history(region).former
    ]


def _regions(workplace: Workplace) -> list[str]:
    return _found(workplace, _processed, _scanned)


# --- sources of names -----------------------------------------------------------------------------------------------


def _configured(workplace: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.declaration import configured_applications, name_of

    return [name_of(reference) for reference in configured_applications(workplace.settings)]


def _recorded(workplace: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.declaration import name_of, recorded_applications

    return [name_of(reference) for reference in recorded_applications(workplace, _registry(workplace))]


def _scanned(workplace: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.declaration import recorded_regions

    return recorded_regions(_registry(workplace))


def _processed(workplace: Workplace) -> Iterable[str]:
    from drainmark.jobs.protocol.records.addresses import is_object

    return () if is_object(workplace.settings.tables_url) else workplace.known_regions()


def _tables_of(region: str) -> _Source:
    return lambda workplace: [table.name.removeprefix("lake/") for table in workplace.history(region).tables]


def _registry(workplace: Workplace) -> Looks:
    """Return the read access to the registry.

    Raises:
        LookupError: the registry is on a server, has another version, or does not exist.
    """
    from drainmark.orchestration.workplace.workplace import registry_as_it_is

    found = registry_as_it_is(workplace.settings)
    if found is None:
        raise LookupError
    return found
