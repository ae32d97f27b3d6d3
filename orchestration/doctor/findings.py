"""The findings of a check of `doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from drainmark.jobs.errors import DrainmarkError


class Severity(StrEnum):
    """The verdict of a check: `doctor` exits with 1 if any check failed."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of `doctor`.

    Attributes:
        check: name of the check, the same for every region and table that it examines.
        message: a sentence.
        remedy: the next thing to do, None if there is no fault.
    """

    check: str
    verdict: Severity
    message: str
    remedy: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(check: str, message: str) -> Finding:
    return Finding(check=check, verdict=Severity.OK, message=message)


def warn(check: str, message: str, remedy: str) -> Finding:
    return Finding(check=check, verdict=Severity.WARN, message=message, remedy=remedy)


def broken(check: str, error: Exception, *, where: str = "", remedy: str = "see the message") -> Finding:
    """Return the failed finding of a check that raised an error, so that `doctor` can report it and go on."""
    if isinstance(error, DrainmarkError):
        return fail(check, f"{where}{error.message}", error.remedy or remedy)
    said = str(error).strip().partition("\n")[0]
    return fail(check, f"{where}{type(error).__name__}: {said}", remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    return Finding(check=check, verdict=Severity.FAIL, message=message, remedy=remedy)
