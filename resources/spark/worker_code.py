"""The transfer of an author's functions to Spark's Python workers, which cannot import an application's file.

Functions are pickled by value, with everything that they use from the application's module and from its own modules. So
workers run the code that this process has loaded, even if the files have changed since. Modules that a function imports
when it runs on a worker are in an archive that is added to the session.
"""

from __future__ import annotations

import functools
import hashlib
import io
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from drainmark.jobs.graph.code_digests import UserFunction
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.own_modules import own_modules, texts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANY_DATE = (1980, 1, 1, 0, 0, 0)
_shipped: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def ship(operators: Iterable[Operator], session: SparkSession) -> None:
    """Send workers the operators' functions from modules that they cannot import, and the imports of these modules."""
    from pyspark.cloudpickle import register_pickle_by_value

    own: dict[str, Path] = {}
    for module in _modules_of(operators):
        register_pickle_by_value(module)
        own.update(own_modules(Path(str(module.__file__)), root=_root_of(module)))
    for name in own.keys() & sys.modules.keys():
        register_pickle_by_value(sys.modules[name])
    if own:
        ship_modules("own-modules", texts_of(own), session)


def _modules_of(operators: Iterable[Operator]) -> Iterator[ModuleType]:
    """Yield the modules of functions that a worker cannot import, each once."""
    functions: list[UserFunction | None] = [getattr(operator, "function", None) for operator in operators]
    names = {getattr(function.function, "__module__", None): None for function in functions if function is not None}
    for name in names:
        if name in sys.modules and name != "__main__" and not _can_be_imported(name):
            yield sys.modules[name]


def _root_of(module: ModuleType) -> Path:
    """Return the folder that contains a module's top-level package or file."""
    is_package = hasattr(module, "__path__")
    return Path(str(module.__file__)).resolve().parents[module.__name__.count(".") + is_package]


def ship_modules(name: str, texts: Mapping[str, bytes], session: SparkSession) -> str:
    """Make modules importable for the session's workers, once per session; return the name of their archive.

    Args:
        name: the beginning of the archive's name.
        texts: contents of the files by path below the folder that they are imported from.
    """
    packed = archive_of(texts)
    archive = f"{name}-{hashlib.sha256(packed).hexdigest()[:16]}.zip"
    if archive in _shipped.setdefault(session, set()):
        return archive
    path = Path(_archives().name, archive)
    path.write_bytes(packed)
    path_before = list(sys.path)
    session.addArtifacts(str(path), pyfile=True)
    sys.path[:] = path_before  # classic Spark adds the archive to the import path of this process, too
    _shipped[session].add(archive)
    return archive


def archive_of(texts: Mapping[str, bytes]) -> bytes:
    """Return files as a zip archive. Same files give the same bytes: a session refuses other bytes of the same name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(texts.items()):
            archive.writestr(zipfile.ZipInfo(name, _ANY_DATE), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@functools.cache
def _archives() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that lasts as long as this process: a classic executor fetches archives with its first task."""
    return tempfile.TemporaryDirectory(prefix="drainmark-")


def _can_be_imported(name: str) -> bool:
    """Say whether a worker can import the module: it has installed modules, not others on the path of this process."""
    top = name.partition(".")[0]
    installed = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    if top in sys.builtin_module_names or PathFinder.find_spec(top, installed) is not None:
        return True
    editable = (finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("__editable__"))
    return any(finder.find_spec(top, None) is not None for finder in editable)
