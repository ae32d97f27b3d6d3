"""Objects of a bucket as triggers: their identities, and the keys that a source selects.

The functions are pure: `resources` makes the listing. Nothing here opens an object.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable
from typing import Any

from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.records.addresses import object_uri
from drainmark.jobs.protocol.records.triggers import NewTrigger
from drainmark.jobs.scan.folder import identity_key
from drainmark.jobs.tasks.buckets import ObjectFacts

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd-\uffff]")
_GLOB = re.compile(r"[*?\[]")
_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\]|.", re.DOTALL)
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def may_be_altered(key: str) -> bool:
    """Say whether a listed key may not be the key in the store: it has a character that XML cannot carry, or U+FFFD.

    Many servers write U+FFFD into their answers for such a character; others fail to repeat it in the next answer.
    """
    return _NOT_IN_XML.search(key) is not None


def is_marker(facts: ObjectFacts) -> bool:
    """Say whether an object only marks a folder, as consoles create them: it is empty, and its key ends in a slash."""
    return facts.key.endswith("/") and not facts.size


def refusal_of(facts: ObjectFacts, head: Callable[[str], ObjectFacts | None]) -> str | None:
    """Return why an object of a listing cannot be read under its key, None if it can; `head` returns what is there."""
    if facts.key.endswith("/"):
        return "its key ends in a slash, as that of a folder does: put it under another key"
    if may_be_altered(facts.key):
        there = head(facts.key)
        if there is None or there.etag != facts.etag:
            return (
                "the server lists this key instead of the object's own, whose characters it cannot list: put the"
                " object under another key, without control characters"
            )
    return None


def literal_prefix(glob: str) -> str:
    """Return the beginning of every key that a glob matches."""
    found = _GLOB.search(glob)
    return glob[: found.start()] if found else glob


def lies_at(place: str, key: str) -> bool:
    """Say whether a key is a place in a bucket, or lies in the folder of that name; all keys lie at ""."""
    return key == place or not place or key.startswith(f"{place.rstrip('/')}/")


def selects(glob: str, key: str) -> bool:
    """Say whether a glob matches a key; only `**` crosses slashes."""
    return re.fullmatch("".join(_as_regex(part) for part in _PARTS.findall(glob)), key, re.DOTALL) is not None


def _as_regex(part: str) -> str:
    if part in _WILD:
        return _WILD[part]
    if part[:1] == "[" and len(part) > 2:
        return f"(?!/){fnmatch.translate(part)[:-2]}"  # as for files, less the end of the text
    return re.escape(part)


def listing_prefix(scan: DirectoryScan) -> str:
    """Return the common beginning of all keys that a scan takes, below its prefix."""
    if scan.outputs is not None:
        prefixes = [literal_prefix(glob) for glob in scan.outputs.values()]
        return os.path.commonprefix(prefixes)  # noqa: RUF071 keys are characters, not folders
    # A pattern without a slash is matched against names in every folder below, too.
    return "" if scan.recursive and "/" not in scan.pattern else literal_prefix(scan.pattern)


def identity_of_object(facts: ObjectFacts) -> dict[str, Any]:
    """Return the identity of an object: size and etag. Its time is left out: equal bytes, put again, are no change."""
    return {"size": facts.size, "etag": facts.etag}


def trigger_of_object(bucket: str, facts: ObjectFacts, *, output: str, origin: str = "scan") -> NewTrigger:
    """Return an object as the trigger that it may become."""
    identity = identity_of_object(facts)
    return NewTrigger(
        uri=object_uri(bucket, facts.key),
        output=output,
        identity=identity,
        identity_key=identity_key(identity),
        size_bytes=facts.size,
        origin=origin,
    )
