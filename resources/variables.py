"""Variables of the environment, each of which may be a file instead: `NAME_FILE` names the file with its value.

Secrets that a container engine mounts as files so stay out of the environment, which others may inspect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from drainmark.jobs.errors import UsageError

_FILE = "_FILE"


def read_variable(name: str) -> str | None:
    """Return the value of a variable, without the line feed at the end of its file; None if there is neither.

    Raises:
        UsageError: both are set, or the file cannot be read.
    """
    path, value = os.environ.get(name + _FILE), os.environ.get(name)
    if not path:
        return value
    if value is not None:
        raise UsageError(f"{name} and {name}{_FILE} are both set", remedy=f"unset one of them: unset {name}")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"  # whose error quotes the content
        msg = f"the file {path}, which {name}{_FILE} names, cannot be read: {why}"
        raise UsageError(msg, remedy=f"let {name}{_FILE} name a file that this user can read", path=path) from None


def named_by_files(prefix: str) -> Iterator[str]:
    """Yield the names that begin with a prefix and have a file; an empty `NAME_FILE` is as good as none."""
    for name, path in os.environ.items():
        if path and name.startswith(prefix) and name.endswith(_FILE):
            yield name.removesuffix(_FILE)


def with_values(environment: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a child process in which variables have values, also those that had a file."""
    files = {name + _FILE for name in values}
    return {name: value for name, value in {**environment, **values}.items() if name not in files}
