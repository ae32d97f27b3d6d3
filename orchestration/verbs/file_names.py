"""Files as users name them to a verb: by a uri, by a path from here, or by the end of a path."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.jobs.printable import shell_word
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry

if TYPE_CHECKING:
    from drainmark.jobs.protocol.records.triggers import Trigger


def names_file(uri: str | None, name: str) -> bool:
    """Say whether a name means a uri: it is the uri, a path from here, or the end of its path, as bytes or encoded."""
    from drainmark.jobs.scan.folder import path_of, uri_of

    if uri is None:
        return False
    here, end = uri_of(os.path.abspath(name)), f"/{name.lstrip('/')}"
    return uri in (name, here) or uri.endswith(end) or path_of(uri).endswith(end)


def require_one_file(
    name: str, uris: Collection[str], what: str = "files", error: type[DrainmarkError] = UsageError
) -> None:
    """Raise an error, UsageError by default, if a name means several files."""
    if len(uris) > 1:
        whole = f"give the whole path, e.g. {shell_word(min(uris))}"
        raise error(f"{name!r} names {len(uris)} {what}", remedy=whole)


def triggers_named(workplace: Workplace, region: str, name: str) -> list[Trigger]:
    """Return the triggers that the registry knows of the files of a region that a name means."""
    registry = existing_registry(workplace)
    if registry is None:
        return []
    uris = [uri for uri in registry.triggers.known(region) if names_file(uri, name)]
    return [trigger for uri in uris for trigger in registry.triggers.by_uri(region, uri)]
