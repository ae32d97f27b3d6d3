"""The author's functions, and their digests, the same in every process; `plan` and states of operators compare them.

`source_digest` uses the source, for functions that compute new rows. `code_digest` uses compiled code, for functions
that merge values into a state: only the function itself counts, also if the statement around a lambda changes.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from drainmark.jobs.errors import Location
from drainmark.jobs.graph.own_modules import files_of
from drainmark.jobs.graph.sessionless import LateFunction

_STANDARD = os.path.join(os.path.dirname(os.__file__), "")
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


def source_digest(function: Callable[..., Any]) -> str:
    """Return a hash of a function's computation: its source without decorators and comments, and the constants and
    functions of the same module, and of modules beside it, that it names."""
    return hashlib.sha256(repr(_meaning(function, set())).encode()).hexdigest()[:16]


def code_digest(*functions: Any) -> str:
    """Return a hash of compiled functions, and of the constants and the author's own functions that they name.

    Lines, comments, names of local variables and docstrings do not count. Another version of Python may give another
    digest. Functions of libraries count by their names.
    """
    digest = _Digest(authors=frozenset(_package_of(function) for function in functions) - {"pyspark"})
    return hashlib.sha256(repr([digest.of(function) for function in functions]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Digest:
    """The behaviour of compiled functions, as nested tuples without addresses.

    Attributes:
        authors: packages that are the author's, also if they are installed.
        seen: functions that are included already.
    """

    authors: frozenset[str]
    seen: set[int] = field(default_factory=set)

    def of(self, value: Any, names: Collection[str] = ()) -> Any:
        """Return the behaviour of a function, a constant or an object; of an object only the members in `names`."""
        if isinstance(value, functools.partial):
            bound = [self.of(each) for each in (*value.args, *value.keywords.values())]
            return self.of(value.func), [*value.keywords], bound
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType):
            return self._function(value)
        constant = _constant(value)
        return constant if constant is not None else self._object(value, names)

    def _function(self, function: FunctionType) -> Any:
        code = function.__code__
        if self._is_library(code.co_filename, _package_of(function)):
            return function.__qualname__
        if id(code) in self.seen:
            return ""
        self.seen.add(id(code))
        around, names = _around(function, code), _names_in(code)
        named = {name: around.get(name, function.__globals__.get(name)) for name in sorted({*names, *around})}
        told = [(name, self.of(value, names)) for name, value in named.items() if value is not None]
        defaults = [self.of(value) for value in function.__defaults__ or ()]
        defaults += [(name, self.of(value)) for name, value in sorted((function.__kwdefaults__ or {}).items())]
        return _bytecode(code, has_doc=function.__doc__ is not None), defaults, told

    def _object(self, value: Any, names: Collection[str]) -> Any:
        """Return the behaviour of a module, a class or another object; "" for a library's. Its full name depends on
        the place of its import, and the function that uses it includes its name already."""
        kind = value if isinstance(value, type | ModuleType) else type(value)
        home = kind if isinstance(kind, ModuleType) else sys.modules.get(kind.__module__)
        if self._is_library(getattr(home, "__file__", None), _package_of(home)):
            return ""
        call = inspect.getattr_static(kind, "__call__", None)
        called = self._function(call) if isinstance(call, FunctionType) else ""
        asked = {*names, *_names_in(call.__code__)} if isinstance(call, FunctionType) else names
        held = getattr(value, "__dict__", {})
        return called, [(name, self.of(held[name])) for name in sorted(asked) if name in held]

    def _is_library(self, file: str | None, package: str) -> bool:
        """Say whether a file is Python's, an installed library's or Drainmark's, and not the author's."""
        if file is None or file.startswith("<frozen"):
            return True
        if file.startswith(_OWN):
            return not file.startswith(os.path.join(_OWN, "jobs", "apps", ""))
        is_installed = any(f"{os.sep}{name}{os.sep}" in file for name in ("site-packages", "dist-packages"))
        return package not in self.authors if is_installed else file.startswith(_STANDARD)


def _package_of(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "").partition(".")[0]


def _meaning(function: Any, seen: set[str]) -> Any:
    """Return a function's syntax tree, the constants and own modules that it names, and the same of own functions."""
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(type(function))
    seen.add(function.__qualname__)
    named: list[tuple[str, Any]] = []
    for name, value in named_by(function):
        constant = _constant(value) if value is not None else None
        if constant is not None:
            named.append((name, constant))
        elif isinstance(value, ModuleType):
            named += _texts_of(name, value, function)
        elif is_own_function(value, function) and value.__qualname__ not in seen:
            named.append((name, _meaning(value, seen)))
    return _tree(function, code), named


def named_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function names in its module and in the function around it, by name; for a result of
    `udf`, the author's function in it."""
    code = function.__code__
    around = _around(function, code)
    for name in sorted({*_names_in(code), *around}):
        value = around[name] if name in around else function.__globals__.get(name)
        yield name, value.func if isinstance(value, LateFunction) else value


def is_own_function(value: Any, function: Any) -> bool:
    """Say whether a value is a function of the same module, or of one beside it."""
    if not inspect.isfunction(value):
        return False
    return value.__module__ == function.__module__ or _is_beside(value.__code__.co_filename, function)


def _is_beside(file: str, function: Any) -> bool:
    """Say whether a file is below the folder of the function's file, and not of an installed package there."""
    folder = os.path.dirname(function.__code__.co_filename)
    is_below = bool(folder) and file.startswith(folder + os.sep)
    return is_below and "site-packages" not in file[len(folder) :] and not file.startswith(_OWN)


def _texts_of(name: str, module: ModuleType, function: Any) -> list[tuple[str, Any]]:
    """Return the hashes of the files of an author's module or package; none for other modules."""
    file = vars(module).get("__file__")
    if not file or not _is_beside(file, function):
        return []
    place = Path(file).parent if hasattr(module, "__path__") else Path(file)
    return [(name, [hashlib.sha256(each.read_bytes()).hexdigest() for each in files_of(place)])]


def _names_in(code: Any) -> set[str]:
    """Return the names that a function uses, and those that the functions defined inside it use."""
    return {*code.co_names}.union(*(_names_in(const) for const in code.co_consts if inspect.iscode(const)))


def _constant(value: Any) -> str | None:
    """Return a text of a value that is the same in every process (a set is sorted); None if it has none: the text of an
    object may be only its address."""
    if value is None or isinstance(value, str | int | float | complex | bytes) or value is ...:
        return repr(value)
    if isinstance(value, tuple | list | set | frozenset):
        items = [_constant(item) for item in value]
    elif isinstance(value, dict):
        items = [_constant(item) for item in value.items()]
    else:
        return None
    told = [item for item in items if item is not None]
    if len(told) < len(items):
        return None
    return f"{type(value).__name__}({', '.join(sorted(told) if isinstance(value, set | frozenset) else told)})"


def _around(function: Any, code: Any) -> dict[str, Any]:
    """Return the values that a function uses of the function around it, such as a composite's, if they are set."""
    found = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is empty: its name is declared further down
            found[name] = cell.cell_contents
    return found


def _tree(function: Any, code: Any) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return repr(_bytecode(code))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.decorator_list = []
    return ast.dump(tree)


def _bytecode(code: CodeType, *, has_doc: bool = False) -> Any:
    """Return the compiled content of a function; its source may be no statement, as of a lambda within a call."""
    found = code.co_consts[1:] if has_doc else code.co_consts
    consts = [_bytecode(const) if inspect.iscode(const) else _constant(const) for const in found]
    return code.co_code, code.co_names, consts


_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def attributes_used(function: Any) -> Iterator[tuple[str, Location]]:
    """Yield name and place of each attribute that a function, or an own function that it names, reads."""
    for code in _codes_of(function, set()):
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = instruction.starts_line or line
            if instruction.opname in _READS:
                yield str(instruction.argval), Location(code.co_filename, line)


def _codes_of(function: Any, seen: set[CodeType]) -> Iterator[CodeType]:
    code = getattr(function, "__code__", None)
    if code is None or code in seen:
        return
    seen.add(code)
    unread = [code]
    while unread:
        found = unread.pop()
        yield found
        unread += [const for const in found.co_consts if inspect.iscode(const)]
    for _, value in named_by(function):
        if is_own_function(value, function):
            yield from _codes_of(value, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunction:
    """A function of the author, with its streams and its parameters.

    Attributes:
        function: callable with one frame per stream parameter, and parameters by annotation.
        streams: parameter names that are streams, in order.
        params: parameter name to the annotated Params class.
    """

    function: Callable[..., Any]
    streams: tuple[str, ...]
    params: Mapping[str, type] = field(default_factory=dict)

    def source_digest(self) -> str:
        """Return a hash of the function's computation: its source without decorators and comments, and the constants
        and functions of the same module, and of modules beside it, that it names."""
        return source_digest(self.function)
