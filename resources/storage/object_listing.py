"""The listing of a prefix of a bucket: whole, in the order of the keys, or an error that says what is wrong with it.

A server may change characters of a key in its answers: many write U+FFFD for a character that XML cannot carry. Such a
key is no place to go on from: the listing would leave out all keys in between. Some servers change the continuation
token in the same way. So each request begins after the last key that is surely as the store has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from drainmark.jobs.errors import StoreRefused
from drainmark.jobs.scan.bucket_objects import may_be_altered
from drainmark.jobs.tasks.buckets import Page

Asking = Callable[[Mapping[str, str], bool], Page]
"""A request for a page: where it begins (`StartAfter` or `ContinuationToken`), and whether it is the first."""

_BEHIND = "\U0010ffff"  # sorts after every key below a folder, so that a listing goes on after the folder
_ORDERS: tuple[Callable[[str], str], ...] = (str, lambda key: key.replace("/", "\0"))
"""The orders in which stores list: by characters, and (SeaweedFS) a folder with all below it before its neighbours."""


def listed(where: str, prefix: str, ask: Asking, *, start_after: str = "") -> Iterator[Page]:
    """Yield the pages of a listing, each with other keys. If it ends without an error, no key was left out.

    Args:
        where: the prefix with its bucket, for messages.
        ask: makes the requests for that prefix.
        start_after: leave out keys up to and including this one.

    Raises:
        StoreRefused: the server does not list as S3 does; or so many keys in a row were altered that it cannot go on.
        StoreUnavailable: a request failed after all tries, or its answer is no listing.
    """
    place = {"StartAfter": start_after} if start_after else {}
    in_order, folders_in_order = _KeyOrder(where, prefix, start_after), _KeyOrder(where, prefix, "")
    before, is_first = Page(()), True
    while True:
        page = ask(place, is_first)
        new = _without_repeated(page, before)
        last = in_order.follow(facts.key for facts in new.objects)
        folders_in_order.follow(new.folders)
        yield new
        if page.is_last:
            return
        place = _next_place(where, place, [*_behind(last, page.folders), *_at(page)])
        before, is_first = page, False


def _without_repeated(page: Page, before: Page) -> Page:
    """Return a page without those entries of the page before that the request for this one could not leave out."""
    altered = {(facts.key, facts.etag) for facts in before.objects if may_be_altered(facts.key)}
    repeated = set(before.folders)
    return Page(
        tuple(facts for facts in page.objects if (facts.key, facts.etag) not in altered),
        tuple(folder for folder in page.folders if folder not in repeated),
    )


def _behind(last: str | None, folders: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the place behind the last key of a page; if it has folders only, behind the last of them.

    A folder may come after the last key of its page, and before keys of the next page: S3Mock adds all folders to each.
    """
    sure = [last] if last is not None else [f"{name}{_BEHIND}" for name in folders if not may_be_altered(name)]
    yield from ({"StartAfter": key} for key in sure[-1:])


def _at(page: Page) -> Iterator[dict[str, str]]:
    """Yield the server's own place for the next page, unless it is altered."""
    if page.token and not may_be_altered(page.token):
        yield {"ContinuationToken": page.token}


def _next_place(where: str, before: Mapping[str, str], places: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return the first place for the next page that is another one than before."""
    for place in places:
        if place != before:
            return place
    msg = f"the listing of {where} stops at a page without a readable key, and does not say where the next page begins"
    remedy = (
        "delete the objects there whose keys have characters that the server cannot list (control characters, U+FFFD),"
        " or put them under other keys; if there are none, the server's listing is broken: use another server"
    )
    raise StoreRefused(msg, remedy=remedy)


class _KeyOrder:
    """A check that the keys of a listing rise from page to page, and inside each page.

    Keys that the server may have altered are left out, since their places are those of the true keys.
    """

    def __init__(self, where: str, prefix: str, start_after: str) -> None:
        self._where = where
        self._prefix = prefix
        self._last = start_after
        self._orders = _ORDERS

    def follow(self, keys: Iterable[str]) -> str | None:
        """Check the keys of a page, and return the last one to rely on; None if there is none.

        Raises:
            StoreRefused: a key is not below the prefix, or does not come after the one before.
        """
        sure = [key for key in keys if not may_be_altered(key)]
        for before, key in itertools.pairwise([self._last, *sure]):
            self._require(before, key)
        self._last = sure[-1] if sure else self._last
        return sure[-1] if sure else None

    def _require(self, before: str, key: str) -> None:
        self._orders = tuple(order for order in self._orders if order(before) < order(key))
        if self._orders and key.startswith(self._prefix):
            return
        wrong = f"{key!a}, which is not below it" if self._orders else f"{key!a} after {before!a}"
        msg = f"the listing of {self._where} has {wrong}: it is not in the order of the keys, and may leave some out"
        remedy = (
            "use a general purpose bucket of a server that lists in order: a directory bucket does not; if one of these"
            " objects is not in the bucket under this key, delete it or put it under another key"
        )
        raise StoreRefused(msg, remedy=remedy)
