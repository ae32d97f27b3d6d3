"""Committed files that have another path now: of a project that was moved or copied, or of a folder with two names.

An input is known by its path. Such a file would be a new one, and count twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.graph.application import file_of
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource, queue_of
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.scan.folder import uri_of
from drainmark.jobs.scan.index import in_batches
from drainmark.orchestration.workplace.application_identity import NOTE, PROJECT
from drainmark.orchestration.workplace.region_sources import is_periodic, shown_folder, source_folder
from drainmark.resources.registry.scan_queries import RegistryScans

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.orchestration.workplace.workplace import Workplace

_FILES_AT_ONCE = 500
_DONE = frozenset({TriggerStatus.COMMITTED, TriggerStatus.REFUSED, TriggerStatus.SKIPPED})


def require_inputs_in_place(workplace: Workplace, region: RegionPlan) -> None:
    """Refuse a region whose committed files would be read again, since they have another path than before.

    Project and folders are noted with each scan that passes, so only the first one after a move looks at all files.

    Raises:
        UsageError: names a file or folder, its path of before, and what to do.
    """
    _require_names_of_before(workplace, region)
    noted, root = _root_of_before(workplace, region), workplace.settings.project_root
    if noted is None or noted == root.resolve():
        return
    for start, here in _folders(workplace, region):
        if not here.is_relative_to(root):
            continue
        there = noted / here.relative_to(root)
        if (file := _first_committed(workplace, _queue(region, start), here, there)) is not None:
            link = f"ln -s {shell_word(str(root))} {shell_word(str(noted))}"
            raise _moved(region.name, here / file, there / file, before=there, link=link)


def _root_of_before(workplace: Workplace, region: RegionPlan) -> Path | None:
    """Return the root of the project at the time of the note; None without one, or if it is of another file.

    0.3.0 noted the application's file alone.
    """
    note = workplace.registry.load_cursor(region.name, NOTE)
    if (noted := workplace.registry.load_cursor(region.name, PROJECT)) is not None:
        return Path(noted)
    former = file_of(json.loads(note)["reference"]) if note is not None and region.origin else None
    here, root = Path(region.origin).resolve(), workplace.settings.project_root.resolve()
    if former is None or not here.is_relative_to(root):
        return None
    below = here.relative_to(root).parts
    return former.parents[len(below) - 1] if former.parts[-len(below) :] == below else None


def _folders(workplace: Workplace, region: RegionPlan) -> Iterator[tuple[DirectorySource, Path]]:
    """Yield the starts that scan a folder on this machine, each with its folder."""
    for start in region.starts:
        if isinstance(start, DirectorySource) and not is_object(start.scan.path):
            yield start, Path(source_folder(workplace, start))


def _queue(region: RegionPlan, start: DirectorySource) -> str:
    return queue_of(region.name, start.name) if is_periodic(region) else region.name


def _require_names_of_before(workplace: Workplace, region: RegionPlan) -> None:
    """Refuse a folder that the last scan knew by another name: by a link, by `..`, or below another mount."""
    note = workplace.registry.load_cursor(region.name, NOTE)
    folder = json.loads(note).get("folder") if note is not None else None
    names = folder.split(", ") if folder is not None and folder != shown_folder(workplace, region) else []
    if len(names) != len(region.starts):  # nothing is noted, or it has other starts, or a name has a comma
        return
    before = {start.name: Path(name) for start, name in zip(region.starts, names, strict=True)}
    for start, here in _folders(workplace, region):
        there = before[start.name]
        is_same = there != here and there.is_dir() and here.is_dir() and there.samefile(here)
        if is_same and workplace.registry.triggers.newest(_queue(region, start)) is not None:
            msg = f"{region.name} knows {here} as {there}: by another path its files would count once more"
            named = shell_word(f"{start.name}={there}")
            raise UsageError(msg, remedy=f'name it as before: --input {named}, or path="{there}"')


def _first_committed(workplace: Workplace, queue: str, here: Path, there: Path) -> str | None:
    """Return a file of a folder, as a path from there, that is committed at the same place of the former folder."""
    memory, triggers = RegistryScans(workplace.registry, queue), workplace.registry.triggers
    for files in in_batches(_files(here), _FILES_AT_ONCE):
        before = {uri_of(os.path.join(there, file)): file for file in files}
        for uri in memory.known(list(before)):
            if any(each.status in _DONE for each in triggers.by_uri(queue, uri)):
                return before[uri]
    return None


def _files(folder: Path) -> Iterator[str]:
    """Yield the paths of the files below a folder, from there."""
    for found, _, names in os.walk(folder):
        yield from (os.path.relpath(os.path.join(found, name), folder) for name in names)


def _moved(region: str, here: Path, there: Path, *, before: Path, link: str) -> UsageError:
    keep = f'to keep the states, declare path="{before}" at its source'
    if there.exists():
        msg = f"{region} has committed {there}, and {here} would count once more: the project was copied with its home"
        return UsageError(msg, remedy=f"begin anew in another home: --home, or `home` in drainmark.toml; or {keep}")
    msg = f"{region} has committed {here} at its old place, {there}, and would count it once more"
    anew = f"drainmark reset {region} --to-initial --accept-loss"
    return UsageError(msg, remedy=f"read all files from their new place: {anew}; or {keep}, and lead there: {link}")
