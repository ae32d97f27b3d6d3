"""Rules on the folders that the starts of a region scan."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations

from drainmark.jobs.errors import Violation
from drainmark.jobs.graph.annotations import TriggerKind
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.regions.merging import Draft, broken, starts_of

_PLACE = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_OTHER = "\0"
"""A character that represents all characters that are in neither of two globs."""


def two_scanners_of_a_folder(draft: Draft) -> Iterator[Violation]:
    """Two starts of a region scan one folder: a file would belong to both, or to the start that moves it first.

    Folders are compared as they are declared, or as `--input` gives them, with the folders in a pattern: the patterns
    `1/*.txt` and `2/*.txt` are two folders. The rule does not see that a relative and an absolute path are the same
    folder, and follows no links. Regions that may have only one start have a rule of their own.
    """
    for region in draft.regions:
        starts = starts_of(draft.graph, region)
        scanners = [start for start, annotation in starts if annotation.trigger == TriggerKind.PERIODIC]
        for first, second in combinations(scanners, 2):
            shared = _shared(first, second)
            if shared is not None:
                yield broken(
                    "TWO_SCANNERS_OF_A_FOLDER",
                    second,
                    f"{second.name!r} scans {shared!r}, which {first.name!r} at {first.location} of the same region"
                    " scans too",
                    "one scan with outputs={…: pattern}; or a folder for each",
                )


def _shared(first: Operator, second: Operator) -> str | None:
    """Return a folder, or a glob of folders, that both scan; None if there is none."""
    for ours in second.folders_read:
        if any(_meet(ours, theirs) for theirs in first.folders_read):
            return ours
    return None


def _meet(first: str, second: str) -> bool:
    """Say whether there is a text that both globs match; `*` matches `/`, too, as in `fnmatch`."""
    alphabet = {*first, *second, _OTHER}
    ours, theirs = _places(first, alphabet), _places(second, alphabet)

    @cache
    def meet(here: int, there: int) -> bool:
        if here < len(ours) and ours[here] is None:
            return meet(here + 1, there) or (there < len(theirs) and meet(here, there + 1))
        if there < len(theirs) and theirs[there] is None:
            return meet(here, there + 1) or (here < len(ours) and meet(here + 1, there))
        if here == len(ours) or there == len(theirs):
            return here == len(ours) and there == len(theirs)
        one, other = ours[here], theirs[there]
        return bool(one and other and one & other) and meet(here + 1, there + 1)

    return meet(0, 0)


def _places(glob: str, alphabet: set[str]) -> list[frozenset[str] | None]:
    """Return the characters that each place of a glob matches; None for a star.

    Two ranges that have a character in common have an end of one of them in common. So the characters that are written
    in the two globs are enough as an alphabet.
    """
    return [
        None if place == "*" else frozenset(letter for letter in alphabet if fnmatch.fnmatchcase(letter, place))
        for place in _PLACE.findall(glob)
    ]
