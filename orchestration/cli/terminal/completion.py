"""What a shell offers at TAB besides verbs and options: applications, regions and tables, by their names.

Names come from settings, and from registry and tables where these are files of this machine, which stay as they are: no
server is asked. No application is imported, and nothing is said of what fails.
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


def _found(place: Workplace, *sources: _Source) -> list[str]:
    """Return the names of those sources that have some; one that fails keeps no other from being asked."""
    names: list[str] = []
    for source in sources:
        with suppress(Exception):  # the shell's line is no place for an error; the verb itself reports it
            names += source(place)
    return names


def _offered(names: _Source) -> Callable[[typer.Context], list[str]]:
    """Make of a function of the project what typer asks; of what begins otherwise typer offers nothing."""

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
def applications(place: Workplace) -> list[str]:
    """Return the applications of the settings and those that ran here; the shell adds Python files by itself."""
    return _found(place, _configured, _recorded)


@_offered
def regions(place: Workplace) -> list[str]:
    """Return the regions that ran or were scanned, and the applications that did neither."""
    found = _regions(place)
    known = {region.partition("/")[0] for region in found}
    return [*found, *(name for name in _found(place, _configured) if name not in known)]


@_offered
def applications_and_regions(place: Workplace) -> list[str]:
    """Return both, for a verb that takes either."""
    found = _regions(place)
    return [*_found(place, _configured), *(region.partition("/")[0] for region in found), *found]


@_offered
def tables(place: Workplace) -> list[str]:
    """Return the tables that regions write."""
    return [name for region in _found(place, _processed) for name in _found(place, _tables_of(region))]


def _regions(place: Workplace) -> list[str]:
    return _found(place, _processed, _scanned)


# --- sources of names -----------------------------------------------------------------------------------------------


def _configured(place: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.declaration import configured_applications, name_of

    return [name_of(reference) for reference in configured_applications(place.settings)]


def _recorded(place: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.declaration import name_of, recorded_applications

    return [name_of(reference) for reference in recorded_applications(_registry(place))]


def _scanned(place: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.declaration import recorded_regions

    return recorded_regions(_registry(place))


def _processed(place: Workplace) -> Iterable[str]:
    from drainmark.resources.storage.folder import S3

    return () if place.settings.tables_url.startswith(S3) else place.known_regions()


def _tables_of(region: str) -> _Source:
    return lambda place: [table.name.removeprefix("lake/") for table in place.history(region).tables]


def _registry(place: Workplace) -> Looks:
    """Return what answers about the registry.

    Raises:
        LookupError: it is on a server, of another version, or not there.
    """
    from drainmark.orchestration.workplace.workplace import registry_as_it_is

    found = registry_as_it_is(place.settings)
    if found is None:
        raise LookupError
    return found
