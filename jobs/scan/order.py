"""New files in the order of their source's rule: sorted in memory, or, if there are many, in sorted runs on a disk."""

from __future__ import annotations

import heapq
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, Any

from drainmark.jobs.protocol.records.triggers import NewTrigger

SortKey = tuple[float, str]
"""The place of a file in the order: by the rule's number, ties by name."""

_Entry = tuple[SortKey, NewTrigger]


class SortedFiles:
    """A collection of new files that gives them back sorted.

    A million files of a first scan would take a gigabyte as objects; so runs of `run` files are sorted and written to
    temporary files, which have no name and vanish with the process.

    Args:
        run: files held in memory.
    """

    def __init__(self, run: int = 50_000) -> None:
        self._run = run
        self._held: list[_Entry] = []
        self._spilled: list[IO[str]] = []
        self._count = 0

    def __del__(self) -> None:
        for run in self._spilled:
            run.close()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NewTrigger]:
        """Yield all files, sorted; may be called again."""
        self._held.sort(key=_key)
        runs = [_read(run) for run in self._spilled]
        return (trigger for _, trigger in heapq.merge(*runs, self._held, key=_key))

    def add(self, key: SortKey, trigger: NewTrigger) -> None:
        """Add a file."""
        self._held.append((key, trigger))
        self._count += 1
        if len(self._held) >= self._run:
            self._spill()

    def _spill(self) -> None:
        self._held.sort(key=_key)
        with ExitStack() as undone:
            run = undone.enter_context(tempfile.TemporaryFile("w+", encoding="ascii", prefix="drainmark-scan-"))
            run.writelines(_line(entry) for entry in self._held)
            undone.pop_all()
        self._spilled.append(run)
        self._held = []


def _key(entry: _Entry) -> SortKey:
    return entry[0]


def _line(entry: _Entry) -> str:
    key, new = entry
    fields = [key, new.uri, new.identity, new.identity_key, new.size_bytes, new.output, new.origin]
    return json.dumps(fields) + "\n"  # on one line and in ASCII, for any name


def _read(run: IO[str]) -> Iterator[_Entry]:
    run.seek(0)
    for line in run:
        fields: list[Any] = json.loads(line)
        sort_key, uri, identity, key, size, output, origin = fields
        yield (
            (sort_key[0], sort_key[1]),
            NewTrigger(uri=uri, identity=identity, identity_key=key, size_bytes=size, output=output, origin=origin),
        )
