"""Which attributes an author's function reads, itself or by way of functions of the author's that it names."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from drainmark.jobs.errors import Location
from drainmark.jobs.graph.code_digests import is_own_function, named_by

_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def attributes_used(function: Any) -> Iterator[tuple[str, Location]]:
    """Yield the names of the attributes, and where each is read."""
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
