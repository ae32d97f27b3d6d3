"""The files that `init` writes for one kind of project, as texts in Python, so that an installed package has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SETTINGS = """\
# Drainmark's settings. Flags win over DRAINMARK_* variables, and those over this file.
# DRAINMARK_HOME is `.drainmark` beside this file unless said otherwise.
applications = ["app.py"]  # what `drainmark run` and `drainmark dev` process
"""


@dataclass(frozen=True, kw_only=True)
class Template:
    """A project that `init` can write.

    Attributes:
        files: path below the project -> text.
        first_steps: commands to type in the project's folder, in order.
        folders: empty folders that are made, too.
    """

    files: Mapping[str, str]
    first_steps: tuple[str, ...]
    folders: tuple[str, ...] = ()
