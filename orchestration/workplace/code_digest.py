"""A digest of the files of a project, to tell code that failed from code that was changed since.

Every claim of a run keeps it, so that only attempts of the same code are counted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from drainmark.orchestration.workplace.schema_files import FOLDER, SUFFIX
from drainmark.orchestration.workplace.workplace import drainmark_version

_SUFFIXES = (".py", ".sql", SUFFIX)
_SETTINGS = "drainmark.toml"
_PACKAGE = "__init__.py"
_CODE_BESIDE = ("sql", FOLDER)


def code_digest(origin: str, project_root: Path) -> str:
    """Return a digest of an application's code: Python, SQL and schema files, settings, and the version of Drainmark.

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
