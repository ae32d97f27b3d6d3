"""A secret of the home, from which each use derives a key of its own: nobody who cannot read the home can guess one."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import uuid
from pathlib import Path

_NAME = "secret"


def home_key(home: Path, purpose: str) -> str:
    """Return the key for a purpose, 64 hexadecimal digits: the same in every process of this home, and after restarts.

    The first use writes `HOME/secret`, with mode 0600. If the file is lost, the next use writes another one, so every
    key changes: nothing durable depends on a key.

    Args:
        home: the folder of home; it exists.
        purpose: a name such as `"desk"`. The key for one purpose tells nothing about the key for another.

    Raises:
        OSError: the file cannot be read or written.
    """
    return hmac.new(bytes.fromhex(_secret(home / _NAME)), purpose.encode(), hashlib.sha256).hexdigest()


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        pass
    hidden = path.with_name(f".{uuid.uuid4().hex}")
    hidden.touch(mode=0o600, exist_ok=False)
    try:
        hidden.write_text(secrets.token_hex(32), encoding="ascii")
        os.link(hidden, path)  # unlike a rename, it does not replace the secret that another process wrote meanwhile
    except FileExistsError:
        pass
    finally:
        hidden.unlink()
    return path.read_text(encoding="ascii")
