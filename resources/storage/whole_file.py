"""A file of this machine that other processes may read at any moment: it is written atomically."""

from __future__ import annotations

import os
from pathlib import Path

from drainmark.jobs import world


def write_whole(path: Path, text: str) -> None:
    """Replace a file with a text atomically, so that no process reads half of it; create its folder if needed.

    Raises:
        OSError: the file was not changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{world.token()}")
    try:
        hidden.write_text(text, encoding="utf-8")
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
