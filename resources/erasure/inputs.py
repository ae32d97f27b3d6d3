"""The inputs that hold a person now, as far as they lie on this machine; they are never changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from drainmark.jobs.protocol.erasure import Person
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import FILE
from drainmark.jobs.scan.folder import path_of
from drainmark.resources.erasure.bytes_of_files import is_in_bytes, is_in_rows, is_parquet, opened
from drainmark.resources.erasure.notes import Input

SURE, MAYBE, UNSEARCHED = "holds rows", "may hold rows", "not searched"


def judged(inputs: Iterable[Input], person: Person) -> Iterator[Input]:
    """Yield the inputs that hold a person, that may, or that nobody searched, with that said.

    A file of text may hold rows if it has the value somewhere; a value of some letters is sure to be the person's.
    """
    for each in inputs:
        if each.kind not in ("", FILE) or is_object(each.uri):
            yield replace(each, state=UNSEARCHED)
            continue
        path = path_of(each.uri)
        if not os.path.exists(path):
            continue
        try:
            state = _state(path, person)
        except (OSError, ValueError):
            state = UNSEARCHED
        if state:
            yield replace(each, state=state)


def _state(path: str, person: Person) -> str:
    with open(path, "rb") as file:
        is_table = is_parquet(file.read(4))
    if is_table:
        return SURE if is_in_rows(path, person) else ""
    with opened(path) as stream:
        if not is_in_bytes(stream, person):
            return ""
    return SURE if person.is_text else MAYBE
