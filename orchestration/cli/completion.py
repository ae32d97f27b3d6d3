"""What a shell offers at TAB besides verbs and options: applications, regions and tables, by their names.

Names come from settings, registry and checkpoint tables: no application is imported, and nothing is said of what fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from drainmark.orchestration.workplace.workplace import Workplace


def _offered(names: Callable[[Workplace], Iterable[str]]) -> Callable[[typer.Context], list[str]]:
    """Make of a function of the project what typer asks; of what begins otherwise typer offers nothing."""

    def offered(ctx: typer.Context) -> list[str]:
        from drainmark.orchestration.workplace.workplace import Workplace
        from drainmark.resources.settings import load_settings

        home = ctx.params.get("home")
        with suppress(Exception):  # the shell's line is no place for an error; the verb itself reports it
            return sorted(set(names(Workplace(load_settings(home=Path(home) if home else None)))))
        return []

    return offered


@_offered
def applications(place: Workplace) -> list[str]:
    """Return the applications of the settings and those that ran here; the shell adds Python files by itself."""
    from drainmark.orchestration.workplace.declaration import name_of, own_applications

    return [name_of(reference) for reference in own_applications(place)]


@_offered
def regions(place: Workplace) -> list[str]:
    """Return the regions that ran or were scanned, and the applications that did neither."""
    found = _regions(place)
    known = {region.partition("/")[0] for region in found}
    return [*found, *(name for name in _configured(place) if name not in known)]


@_offered
def applications_and_regions(place: Workplace) -> list[str]:
    """Return both, for a verb that takes either."""
    return [*_configured(place), *(region.partition("/")[0] for region in _regions(place)), *_regions(place)]


@_offered
def tables(place: Workplace) -> list[str]:
    """Return the tables that regions write."""
    histories = (place.history(region) for region in place.known_regions())
    return [table.name.removeprefix("lake/") for history in histories for table in history.tables]


def _configured(place: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.declaration import configured_applications, name_of

    return [name_of(reference) for reference in configured_applications(place.settings)]


def _regions(place: Workplace) -> list[str]:
    from drainmark.orchestration.workplace.workplace import looks
    from drainmark.resources.registry.queries import is_cursor

    registry = looks(place)
    recorded = registry.regions() if registry is not None else ()
    return [*place.known_regions(), *(region for region in recorded if not is_cursor(region))]
