"""A function of the author in a graph: its streams and parameters, its digest, and the attributes that it reads."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from drainmark.jobs.errors import Location
from drainmark.jobs.graph.code_digests import is_own_function, named_by, source_digest

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
