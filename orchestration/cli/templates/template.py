"""The files that `init` writes for one kind of project; text in Python, so that an installed package has it."""

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
    """A project as `init` writes it.

    Attributes:
        files: path below the project -> text.
        first_steps: commands to type in the project's folder, in order.
        folders: that are made, too, empty.
    """

    files: Mapping[str, str]
    first_steps: tuple[str, ...]
    folders: tuple[str, ...] = ()
