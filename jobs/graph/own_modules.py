"""The author's own modules: an application imports those beside its file like a program does.

They are loaded anew with each load of the application. So an edited module, or a module of another application with the
same name, is never taken from an earlier load.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from weakref import WeakSet

from drainmark.jobs.errors import Interrupted, Location, UsageError

_OUR_FOLDER = Path(__file__).parents[2]
"""`drainmark`: in a checkout it may be beside an application, but is not the application's own."""

_folders: list[str] = []
"""Folders that this module put on `sys.path`; the first is that of the application loaded last."""


class _LoadTurn:
    """The turn to load an application: one load at a time. A load that was given up, and may hang, loses its turn."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: object | None = None
        self._given_up: WeakSet[object] = WeakSet()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn inside the block; a thread that loads an application during a load has it already."""
        me = threading.current_thread()
        if self._holder is me:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._holder is None or me in self._given_up)
            if me in self._given_up:
                raise Interrupted("the load was given up before its turn came")
            self._holder = me
        try:
            yield
        finally:
            self._end(me)

    def give_up(self, thread: object) -> None:
        """Take the turn from a thread, or make sure that it never gets one."""
        with self._changed:
            self._given_up.add(thread)
            self._changed.notify_all()
        self._end(thread)

    def _end(self, thread: object) -> None:
        with self._changed:
            if self._holder is thread:
                self._holder = None
                self._changed.notify_all()


_turn = _LoadTurn()


def give_up_load(thread: object) -> None:
    """Let other threads load, though a load by this thread has not ended; its result is no longer used."""
    _turn.give_up(thread)


def own_modules(path: Path, *, root: Path | None = None) -> dict[str, Path]:
    """Return the modules beside an application's file that are imported by it, or by such modules.

    Args:
        path: of the application.
        root: folder of its own modules, if they are not beside it: the folder that has its package.

    Returns:
        file, or folder of a package, by the top-level name of the module.
    """
    folder, found, unread = root or path.resolve().parent, dict[str, Path](), [path.resolve()]
    while unread:
        for name in _imported_by(unread.pop()):
            place = _beside(folder, name)
            if name not in found and place is not None:
                found[name] = place
                unread += files_of(place)
    return found


def files_of(place: Path) -> list[Path]:
    """Return the Python files of a module or package, sorted."""
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


@contextmanager
def own_modules_importable(path: Path) -> Iterator[None]:
    """Let imports inside the block, and later ones inside of functions, find the modules beside an application.

    Raises:
        UsageError: such a module has the name of an installed module, or of one that is loaded already.
    """
    own, folder = own_modules(path), str(path.resolve().parent)
    with _turn.taken():
        stale = {name for name in own if name in sys.modules and _came_from_application(sys.modules[name])}
        for name in [name for name in list(sys.modules) if name.partition(".")[0] in stale]:
            del sys.modules[name]
        for name, place in own.items():
            _require_one_meaning(name, place, path)
            _delete_older_bytecode(place)
        _put_first(folder)
        yield


def _delete_older_bytecode(place: Path) -> None:
    """Delete the bytecode of files that were edited since. Python compares seconds and sizes: it may miss an edit."""
    for file in files_of(place):
        compiled = Path(cache_from_source(str(file)))
        with suppress(OSError):
            if compiled.stat().st_mtime_ns <= file.stat().st_mtime_ns:
                compiled.unlink()


def _imported_by(file: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports, at any place in the file."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the import reports the fault
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _beside(folder: Path, name: str) -> Path | None:
    if name in sys.stdlib_module_names or folder / name == _OUR_FOLDER:
        return None  # a file called json does not hide the module json
    package, file = folder / name, folder / f"{name}.py"
    if (package / "__init__.py").is_file():
        return package
    if file.is_file():
        return file
    return package if package.is_dir() and any(package.glob("*.py")) else None


def _came_from_application(module: ModuleType) -> bool:
    place = None if module.__spec__ is None else _path_of(module.__spec__)
    return place is not None and str(place.parent) in _folders


def _require_one_meaning(name: str, place: Path, path: Path) -> None:
    loaded = sys.modules.get(name)
    spec = _found_elsewhere(name) if loaded is None else loaded.__spec__
    other = None if spec is None else _path_of(spec)
    if other is None or other == place.resolve():
        return
    raise UsageError(
        f"{path.name} imports {name!r}, and there are two of that name: {place} and {other}",
        location=Location(str(path), 1),
        remedy=f"rename {place.name} and its imports",
    )


def _found_elsewhere(name: str) -> ModuleSpec | None:
    """Return the module that an import would find without the folders of applications."""
    entries = [entry for entry in sys.path if entry not in _folders]
    for finder in sys.meta_path:
        spec = PathFinder.find_spec(name, entries) if finder is PathFinder else finder.find_spec(name, None)
        if spec is not None:
            return spec
    return None


def _path_of(spec: ModuleSpec) -> Path | None:
    """Return the file, or the folder of the package; None for a module without one: it gives way to one with a file."""
    if spec.origin is None or not spec.has_location:
        folders = [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
        return folders[0] if len(folders) == 1 and str(folders[0].parent) in _folders else None
    origin = Path(spec.origin).resolve()
    return origin.parent if origin.name == "__init__.py" else origin


def _put_first(folder: str) -> None:
    """Put a folder on the path, behind all installed code and before other applications' folders."""
    if folder in sys.path and folder not in _folders:
        return
    sys.path[:] = [entry for entry in sys.path if entry not in _folders]
    _folders[:] = [folder, *(each for each in _folders if each != folder)]
    sys.path.extend(_folders)


def texts_of(own: Mapping[str, Path]) -> dict[str, bytes]:
    """Return the contents of the files of own modules by path below the application's folder, sorted."""
    files = [(place.parent, file) for _, place in sorted(own.items()) for file in files_of(place)]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for folder, file in files}


_OURS = f"{_OUR_FOLDER}/"
_APPLICATIONS = f"{_OUR_FOLDER / 'jobs' / 'apps'}/"


def authors_line(innermost_first: Iterable[tuple[str, int | None]]) -> Location | None:
    """Return the innermost line of the author's among file names and line numbers; None if there is none.

    Not the author's is what lies in installed code, in Python's, or in this package except its applications.
    """
    others = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")), _OURS)
    for file, line in innermost_first:
        if file.startswith(_APPLICATIONS) or not file.startswith(others):
            return Location(file=file, line=line or 0)
    return None
