"""The search of everything that lies in a folder, after an erasure: what is found is in its certificate."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

from drainmark.jobs.protocol.erasure import Person
from drainmark.resources.erasure.bytes_of_files import is_in_bytes, is_in_rows, is_in_texts, is_parquet
from drainmark.resources.erasure.files import content
from drainmark.resources.storage.folder import Folder


def places(folder: Folder, person: Person) -> Iterator[dict[str, Any]]:
    """Yield each file in which a person is found: in its rows, by the columns; in its bytes, if the values are long."""
    for entry in sorted(folder.everything(""), key=lambda entry: entry.path):
        try:
            data = content(folder, entry.path)
        except FileNotFoundError:
            continue  # a page that was written again, a log that was cut
        found = _found(data, person)
        if found:
            yield {"path": entry.path, "found": found}


def _found(data: bytes, person: Person) -> str:
    if is_parquet(data):
        import pyarrow as pa

        try:
            if is_in_rows(BytesIO(data), person):
                return "rows"
            if person.is_text and (is_in_texts(BytesIO(data), person) or is_in_bytes(BytesIO(data), person)):
                return "text"
        except (pa.ArrowInvalid, OSError):
            return "a file that cannot be read"
        return ""
    return "bytes" if person.is_text and is_in_bytes(BytesIO(data), person) else ""
