"""Committed files that have another path now: of a project that was moved or copied, or of a folder with two names.

An input is known by its path. Such a file would be a new one, and count twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

FOLDERS = "@folders"
"""Cursor that holds the names of all folders that were scanned, or whose files were found committed, by start."""

_FILES_AT_ONCE = 500
_NAMES = 1000
_DONE = frozenset({TriggerStatus.COMMITTED, TriggerStatus.REFUSED, TriggerStatus.SKIPPED})


def require_inputs_in_place(workplace: Workplace, region: RegionPlan) -> None:
    """Refuse a region whose committed files would be read again, since they have another path than before.

    Project and folders are noted with each scan that passes, so only the first one after a move looks at all files.

    Raises:
        UsageError: names a file or folder, its path of before, and what to do.
    """
    _require_names_of_before(workplace, region)
    root = workplace.settings.project_root
    for former in roots_of_before(workplace, region):
        for start, here in _folders(workplace, region):
            if not here.is_relative_to(root):
                continue
            there = former.root / here.relative_to(root)
            if (file := _first_committed(workplace, _queue(region, start), here, there, former)) is not None:
                link = f"ln -s {shell_word(str(root))} {shell_word(str(former.root))}"
                raise _moved(region.name, here / file, there / file, before=there, link=link)


@dataclass(frozen=True, slots=True)
class FormerRoot:
    """A folder that was the project's root, or that looks like it.

    Attributes:
        is_noted: a run noted it; else it is told by paths of committed files, and may be another project's.
    """

    root: Path
    is_noted: bool = True


def roots_of_before(workplace: Workplace, region: RegionPlan) -> list[FormerRoot]:
    """Return the roots that the project may have had, without the present one; none if it did not move.

    0.3.0 noted the application's file alone. Of a registry that was rebuilt only the folders of files are known.
    """
    root = workplace.settings.project_root.resolve()
    note = workplace.registry.load_cursor(region.name, NOTE)
    if (noted := workplace.registry.load_cursor(region.name, PROJECT)) is not None:
        found = [FormerRoot(Path(noted))]
    elif note is not None:
        found = [FormerRoot(former) for former in _root_of_file(region, json.loads(note)["reference"], root)]
    else:
        found = [FormerRoot(former, is_noted=False) for former in _roots_of_folders(workplace, region)]
    return [former for former in found if former.root != root]


def _root_of_file(region: RegionPlan, reference: str, root: Path) -> Iterator[Path]:
    former, here = file_of(reference) if region.origin else None, Path(region.origin).resolve()
    if former is None or not here.is_relative_to(root):
        return
    below = here.relative_to(root).parts
    if former.parts[-len(below) :] == below:
        yield former.parents[len(below) - 1]


def _roots_of_folders(workplace: Workplace, region: RegionPlan) -> Iterator[Path]:
    """Yield the folders below which noted folders lie as those of the starts do below the root."""
    known, root = _names_of_before(workplace, region), workplace.settings.project_root
    for start, here in _folders(workplace, region):
        names = known.get(start.name, [])
        if not here.is_relative_to(root) or any(name.is_relative_to(here) for name in names):
            continue
        below = here.relative_to(root).parts
        for folder in dict.fromkeys(each for name in names for each in ((name, *name.parents) if below else (name,))):
            if below and folder.parts[-len(below) :] == below:
                yield folder.parents[len(below) - 1]
            elif not below:
                yield folder


def _folders(workplace: Workplace, region: RegionPlan) -> Iterator[tuple[DirectorySource, Path]]:
    """Yield the starts that scan a folder on this machine, each with its folder."""
    for start in region.starts:
        if isinstance(start, DirectorySource) and not is_object(start.scan.path):
            yield start, Path(source_folder(workplace, start))


def _queue(region: RegionPlan, start: DirectorySource) -> str:
    return queue_of(region.name, start.name) if is_periodic(region) else region.name


def _is_as_noted(workplace: Workplace, region: RegionPlan) -> bool:
    """Say whether the folders are those of the last scan."""
    return _noted_folder(workplace, region) == shown_folder(workplace, region)


def _noted_folder(workplace: Workplace, region: RegionPlan) -> str | None:
    note = workplace.registry.load_cursor(region.name, NOTE)
    return json.loads(note).get("folder") if note is not None else None


def note_names(workplace: Workplace, region: RegionPlan) -> None:
    """Note the folders of a region that was scanned, beside those of before."""
    if _is_as_noted(workplace, region):
        return
    names = _names_of_before(workplace, region)
    for start, here in _folders(workplace, region):
        names[start.name] = [*(name for name in names.get(start.name, ()) if name != here), here]
    if names:
        note_folders(workplace, region.name, names)


def _require_names_of_before(workplace: Workplace, region: RegionPlan) -> None:
    """Refuse a folder that an earlier scan knew by another name: by a link, by `..`, or below another mount."""
    if _is_as_noted(workplace, region):
        return
    known = _names_of_before(workplace, region)
    for start, here in _folders(workplace, region):
        there = _other_name(here, known.get(start.name, []), is_recursive=start.scan.recursive)
        if there is not None and workplace.registry.triggers.newest(_queue(region, start)) is not None:
            msg = f"{region.name} knows {here} as {there}: by another path its files would count once more"
            named = shell_word(f"{start.name}={there}")
            raise UsageError(msg, remedy=f'name it as before: --input {named}, or path="{there}"')


def _other_name(here: Path, names: Sequence[Path], *, is_recursive: bool) -> Path | None:
    """Return the name that a folder has in a list, None if it has none but its own.

    Names before its own do not count: it may have been another folder then, or somebody reads on by the newest name.

    Args:
        is_recursive: the files below its folders are read, too; a registry that was rebuilt knows only their folders.
    """
    own = (place for place, name in enumerate(names) if name == here or (is_recursive and name.is_relative_to(here)))
    later = names[max(own, default=-1) + 1 :]
    tried = dict.fromkeys(each for name in later for each in ((name, *name.parents) if is_recursive else (name,)))
    return next((each for each in tried if _is_same(each, here)), None)


def _is_same(there: Path, here: Path) -> bool:
    """Say whether two names are of one folder; one that nobody can look at, as on a mount that is gone, is another."""
    try:
        return there.is_dir() and here.is_dir() and there.samefile(here)
    except OSError:
        return False


def _names_of_before(workplace: Workplace, region: RegionPlan) -> dict[str, list[Path]]:
    """Return, by start, the names of all folders that were scanned for it; of earlier versions only the last one."""
    if (noted := workplace.registry.load_cursor(region.name, FOLDERS)) is not None:
        return {start: [Path(name) for name in names] for start, names in json.loads(noted).items()}
    folder = _noted_folder(workplace, region)
    names = folder.split(", ") if folder is not None else []
    if len(names) != len(region.starts):  # nothing is noted, or it has other starts, or a name has a comma
        return {}
    return {start.name: [Path(name)] for start, name in zip(region.starts, names, strict=True)}


def note_folders(workplace: Workplace, region: str, names: Mapping[str, Iterable[Path]]) -> None:
    """Note, by start, the names of folders with files that a region may have committed; the newest ones come last."""
    kept = {start: [str(name) for name in found][-_NAMES:] for start, found in names.items()}
    workplace.registry.save_cursor(region, FOLDERS, json.dumps(kept))


def _first_committed(workplace: Workplace, queue: str, here: Path, there: Path, former: FormerRoot) -> str | None:
    """Return a file of a folder, as a path from there, that is committed at the same place of the former folder.

    If nobody noted the former place, a file that is still there is another one, unless it is a copy of the same time.
    """
    memory, triggers = RegistryScans(workplace.registry, queue), workplace.registry.triggers
    for files in in_batches(_files(here), _FILES_AT_ONCE):
        before = {uri_of(os.path.join(there, file)): file for file in files}
        for uri in memory.known(list(before)):
            file = before[uri]
            if any(each.status in _DONE for each in triggers.by_uri(queue, uri)) and (
                former.is_noted or _is_moved_or_copied(here / file, there / file)
            ):
                return file
    return None


def _is_moved_or_copied(here: Path, there: Path) -> bool:
    try:
        found, before = here.stat(), there.stat()
    except OSError:  # it is not there any more, or nobody here can look
        return True
    return (found.st_size, found.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


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
