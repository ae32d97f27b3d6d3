"""The one file of a region, and the digest of its project, which tells code that failed from code that was changed.

An application has the name of its file, so two files of one name would be one region.

The registry notes the file that a region was last run from. Another file is refused as long as that file exists: it
would go on with the first one's state and tables, from input of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import UsageError
from drainmark.jobs.graph.application import file_of
from drainmark.orchestration.workplace.schema_files import FOLDER, SUFFIX
from drainmark.orchestration.workplace.workplace import drainmark_version

if TYPE_CHECKING:
    from drainmark.jobs.regions.plan import RegionPlan
    from drainmark.orchestration.workplace.workplace import Opened, Workplace

NOTE = "@declared"
"""Name of the cursor that holds the note of a region's declaration; no operator can have this name."""

PROJECT = "@project"
"""Name of the cursor that holds the root of the project at the time of the note."""

logger = logging.getLogger(__name__)


def require_own_file(workplace: Workplace, region: RegionPlan) -> Path | None:
    """Refuse a region that belongs to the application in another file; return the file that it had before it moved.

    Raises:
        UsageError: the region was last run from another file, which still exists; names both files.
    """
    former = _former(workplace, region)
    if former is not None and former.is_file():
        raise _two_files(region.name, former, Path(region.origin))
    return former


def note_file(workplace: Workplace, region: RegionPlan) -> None:
    """Note the project in which a region is run now, and log a warning if its file was moved.

    Raises:
        UsageError: as `require_own_file`.
    """
    if (former := require_own_file(workplace, region)) is not None:
        logger.warning(f"{region.name}: its application was {former}, which is gone, and is {region.origin} now")
    root = str(workplace.settings.project_root.resolve())
    if workplace.registry.load_cursor(region.name, PROJECT) != root:
        workplace.registry.save_cursor(region.name, PROJECT, root)


def require_distinct(applications: Iterable[Opened]) -> None:
    """Refuse two files of one name among the applications of a project.

    Raises:
        UsageError: two files have one name; names both.
    """
    seen: dict[str, Path] = {}
    for opened in applications:
        name, file = opened.plan.name, Path(opened.application.origin).resolve()
        if seen.setdefault(name, file) != file:
            raise _two_files(name, seen[name], file)


def _two_files(name: str, first: Path, second: Path) -> UsageError:
    msg = f"{name} is of {first}, and {second} has the same name: they would share their state and tables"
    remedy = "rename one of the files, by which an application is called; or give it a home of its own with --home"
    return UsageError(msg, remedy=remedy)


def _former(workplace: Workplace, region: RegionPlan) -> Path | None:
    """Return the file that a region was last run from; None if it is the present file, or unknown.

    In a project that was copied or moved with its home, the file at the same place below the new root is the same.
    """
    from drainmark.orchestration.workplace.workplace import looks

    registry = looks(workplace)
    note = registry.load_cursor(region.name, NOTE) if registry is not None and region.origin else None
    former = file_of(json.loads(note)["reference"]) if note is not None else None
    if registry is None or former is None:
        return None
    here, former = Path(region.origin).resolve(), former.resolve()
    root, kept = workplace.settings.project_root.resolve(), registry.load_cursor(region.name, PROJECT)
    if kept is None:  # noted by 0.3.0: a home inside the project was copied or moved with it
        is_copy = workplace.home.resolve().is_relative_to(root) and not former.is_relative_to(root)
    else:
        is_copy = kept != str(root) and _below(former, Path(kept)) == _below(here, root)
    return None if here == former or is_copy else former


def _below(file: Path, root: Path) -> Path:
    return file.relative_to(root) if file.is_relative_to(root) else file


_SUFFIXES = (".py", ".sql", SUFFIX)
_SETTINGS = "drainmark.toml"
_PACKAGE = "__init__.py"
_CODE_BESIDE = ("sql", FOLDER)


def code_digest(origin: str, project_root: Path) -> str:
    """Return a digest of an application's code: Python, SQL and schema files, settings, and the version of Drainmark.

    Every claim of a run keeps it, so that only attempts of the same code are counted.

    The files are those beside the application and in the root of the project, in packages below either, and in their
    folders `sql` and `schemas`; no other folder is searched, since it may hold a million inputs.

    Args:
        origin: path of the application's file; "" gives "", for an application that no file declares.
    """
    if not origin:
        return ""
    digest = hashlib.sha256(drainmark_version().encode())
    beside = Path(origin).resolve().parent
    for root in dict.fromkeys((beside, project_root)):
        for path in _files(root, is_all=False):
            digest.update(f"\0{path.relative_to(root)}\0".encode(errors="surrogateescape"))
            try:
                digest.update(path.read_bytes())
            except OSError:
                digest.update(b"\0unreadable")
    return digest.hexdigest()[:32]


def _files(folder: Path, *, is_all: bool) -> Iterator[Path]:
    """Yield the files of a folder and of code folders below it, in order; with `is_all`, of all folders below it."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(_SUFFIXES) or entry.name == _SETTINGS:
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith((".", "__")):
            is_code = entry.name in _CODE_BESIDE
            if is_all or is_code or os.path.exists(os.path.join(entry.path, _PACKAGE)):
                yield from _files(Path(entry.path), is_all=is_all or is_code)
