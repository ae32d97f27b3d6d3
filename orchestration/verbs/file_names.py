"""Files as users name them to a verb: by a uri, by a path from here, or by the end of a path."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, UsageError
from drainmark.jobs.printable import shell_word
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry

if TYPE_CHECKING:
    from drainmark.jobs.protocol.records.triggers import Trigger


def files_named(name: str, uris: Iterable[str | None]) -> list[str]:
    """Return the uris that a name means, sorted: that which it is, or that of the path from here; or else those whose
    paths end so, as bytes or encoded."""
    from drainmark.jobs.scan.folder import path_of, uri_of

    known = {uri for uri in uris if uri is not None}
    for whole in (name, uri_of(os.path.abspath(name))):
        if whole in known:
            return [whole]
    end = f"/{name.lstrip('/')}"
    return sorted(uri for uri in known if uri.endswith(end) or path_of(uri).endswith(end))


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
    uris = files_named(name, registry.triggers.known(region))
    return [trigger for uri in uris for trigger in registry.triggers.by_uri(region, uri)]
