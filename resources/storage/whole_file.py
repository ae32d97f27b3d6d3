"""A file of this machine that others read at any moment: written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put a text in the place of a file, so that nobody ever reads half of it; makes its folder.

    Raises:
        OSError: nothing was changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{uuid.uuid4().hex}")
    try:
        hidden.write_text(text, encoding="utf-8")
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
