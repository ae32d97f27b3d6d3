"""A Spark that is gone, told apart from a query that failed: no input and no operator is to blame for it."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.errors import DrainmarkError, OperatorFailed, SparkLost

_GONE = ("UNAVAILABLE", "UNAUTHENTICATED")
"""gRPC's codes of a server that died, and of one that was started anew, with another token."""

_SESSION_GONE = ("INVALID_HANDLE.SESSION_", "INVALID_HANDLE.OPERATION_NOT_FOUND", "NO_ACTIVE_SESSION")
_JVM_GONE = ("Py4JNetworkError",)


def lost_engine(error: BaseException) -> SparkLost | None:
    """Return the error as `SparkLost` if the server or the JVM died under it, else None.

    Judged by names and codes: neither gRPC nor py4j need be installed, or loaded, to look.
    """
    if isinstance(error, SparkLost):
        return error
    if isinstance(error, DrainmarkError) and not isinstance(error, OperatorFailed):
        return None
    if not any(_says_so(link) for link in _chain(error)):
        return None
    remedy = "nothing is lost: the next attempt gets a new one; see drainmark doctor"
    lost = SparkLost(f"Spark is gone: {_telling(error)}", remedy=remedy)
    lost.__cause__ = error
    return lost


def _says_so(error: BaseException) -> bool:
    if type(error).__name__ in _JVM_GONE:
        return True
    module = type(error).__module__.partition(".")[0]
    if module == "grpc":
        code = getattr(error, "code", lambda: None)()
        return getattr(code, "name", "") in _GONE
    if module != "pyspark":
        return False
    status = getattr(error, "_grpc_status_code", None)
    text = str(error)
    return getattr(status, "name", "") in _GONE or any(name in text for name in _SESSION_GONE)


def _telling(error: BaseException) -> str:
    """Return what gRPC says in its details, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    details = (line for line in lines if line.startswith("details = "))
    return next(details, lines[0] if lines else type(error).__name__).removeprefix("details = ")[:300]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
