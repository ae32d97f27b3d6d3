"""The operator to blame for an error, with function and line, or else the environment of the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Protocol, TypeVar

from drainmark.jobs.errors import DrainmarkError, Location, OperatorFailed
from drainmark.jobs.errors.spark_faults import environment_fault
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.graph.code_digests import UserFunction


class Blamed(Protocol):
    """The name and the place of an operator to blame."""

    @property
    def name(self) -> str: ...
    @property
    def location(self) -> Location: ...


Candidate = TypeVar("Candidate", bound=Blamed)


@contextmanager
def blaming(operator: Blamed) -> Iterator[None]:
    """Blame an operator for an error raised inside, unless the error already names its cause."""
    try:
        yield
    except (DrainmarkError, InjectedFailure, KeyboardInterrupt):
        raise
    except BaseException as error:  # `sys.exit`, too: the author's code must not end the process
        raise environment_fault(error) or failure_of(operator, error) from error


@contextmanager
def naming(operator: Blamed) -> Iterator[None]:
    """Let an error raised inside name an operator, unless it names one."""
    try:
        yield
    except DrainmarkError as error:
        if error.operator is None:
            error.operator, error.location = operator.name, operator.location
        raise


def failed(operator: Blamed, message: str, remedy: str) -> OperatorFailed:
    """Return the error of an operator that cannot do its work with the streams that it reads."""
    text = f"{operator.name!r}: {message}"
    return OperatorFailed(text, operator=operator.name, location=operator.location, remedy=remedy)


def failure_of(operator: Blamed, error: BaseException) -> OperatorFailed:
    """Return the error that blames an operator for an error of its code."""
    remedy = "fix the function, or the input"
    if own := _TAKEN.search(str(error)):
        remedy = f"rename {own.group(1)} in a dm.functor before: the operator has a column of that name; or {remedy}"
    return OperatorFailed(
        f"operator {operator.name!r} failed: {summary_of(error)}",
        operator=operator.name,
        location=operator.location,
        remedy=remedy,
    )


_TAKEN = re.compile(r"\[(?:AMBIGUOUS_REFERENCE\] Reference|COLUMN_ALREADY_EXISTS\] The column) `(_\w+)`")
"""Operators keep their rows with columns such as `_from` and `_place`; existing tables have these names."""


def blamed_operator(error: BaseException, operators: Sequence[Candidate]) -> Candidate | None:
    """Return the operator with the function, or a function that it uses, in the traceback that Spark brought back."""
    raised = set(_RAISED_IN.findall(str(error)))
    candidates = [(operator, code) for operator in reversed(operators) if (code := _code_of(operator)) is not None]
    for names_of in (lambda code: {code.co_name}, _names_in):
        for operator, code in candidates:
            if any((code.co_filename, name) in raised for name in names_of(code)):
                return operator
    return None


_RAISED_IN = re.compile(r'File "([^"]+)", line \d+, in (\w+)')


def _code_of(operator: Blamed) -> CodeType | None:
    function: UserFunction | None = getattr(operator, "function", None)
    return getattr(function.function, "__code__", None) if function else None


def _names_in(code: CodeType) -> set[str]:
    """Return the names that a function uses, and the names of the functions defined inside it."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return {*code.co_names, *(const.co_name for const in inner)}


_RAISED = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)*(.*)((?:\s*\n[ \t]*(?!at |Caused by: )\S.*)?)"
)
"""The line below a traceback, which names the class of the error, whatever it is called, and the next one with text."""


def summary_of(error: BaseException) -> str:
    """Return the telling line of an error: the one below the last Python traceback inside it, else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if (raised := _RAISED.findall(str(error))) and raised[-1][0].strip():
        named, text = (part.strip() for part in raised[-1])
        return (f"{named} {text}".strip() if named.endswith(":") else named)[:500]  # its text began with an empty line
    if lines[0].startswith("An error occurred while calling "):  # py4j's line names the call, not the error
        lines = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")][-1:] or lines[1:]
        return (lines or [type(error).__name__])[0].removeprefix(": ")[:500]
    return f"{type(error).__name__}: {lines[0][:500]}"
