"""A secret of the home, from which each use derives a key of its own: nobody who cannot read the home can guess one."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from drainmark.jobs import world

_NAME = "secret"
_BYTES = 32


def home_key(home: Path, purpose: str) -> str:
    """Return the key for a purpose, 64 hexadecimal digits: the same in every process of this home, and after restarts.

    The first use writes `HOME/secret`, with mode 0600. If the file is lost, is not whole, or may be read by others, the
    next use writes another one, so every key changes: nothing durable depends on a key.

    Args:
        home: the folder of home; it exists.
        purpose: a name such as `"desk"`. The key for one purpose tells nothing about the key for another.

    Raises:
        OSError: the file cannot be read or written.
    """
    return hmac.new(bytes.fromhex(_secret(home / _NAME)), purpose.encode(), hashlib.sha256).hexdigest()


def _secret(path: Path) -> str:
    if (found := _told(path)) is not None:
        return found
    hidden = path.with_name(f".{world.token()}")
    hidden.touch(mode=0o600, exist_ok=False)
    try:
        with hidden.open("w", encoding="ascii") as file:
            file.write(secrets.token_hex(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.link(hidden, path)  # unlike a rename, it does not replace the secret that another process wrote meanwhile
    except FileExistsError:
        if _told(path) is None:  # a rename, which two processes may do: the key of the first is then of no use
            hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)
    return path.read_text(encoding="ascii")


def _told(path: Path) -> str | None:
    """Return a secret that nobody else can know; None for an empty file, as after a loss of power, or one that others
    may read, as a copy of a home may have it: with it they could compute every key."""
    try:
        with path.open(encoding="ascii") as file:
            is_ours = not stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            found = file.read()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return found if is_ours and re.fullmatch(f"[0-9a-f]{{{2 * _BYTES}}}", found) else None
