"""The two-level store for checkpoints: uniquely named entries, each with pairs of byte strings.

A backend is a `DataStore` in `resources/checkpoints/data_stores.py`; one conformance suite tests all of them. No call
lists keys: the writer must keep account of the keys that exist, as `stored_checkpoints` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final

from drainmark.jobs.errors.operator_code import ValueTooLarge

VALUE_LIMIT: Final = 1024 * 1024
"""The largest value, in bytes, that every backend accepts by default."""


class DataStoreEntry(ABC):
    """One entry: pairs with keys that are unique within it.

    The pairs that a call wrote are durable when it returns. An entry that was deleted and made anew begins empty, and a
    handle of the deleted entry sees nothing of the new one.

    Raises:
        ObjectMissing: from any method: the entry was deleted.
        StoreUnavailable, StoreRefused: from any method: the backend does not answer, or refuses the request.
    """

    name: str
    value_limit: int

    def put(self, key: bytes, value: bytes) -> None:
        """Write a pair; it replaces a pair with the same key.

        Raises:
            ValueTooLarge: the value is larger than `value_limit`; nothing was written.
        """
        self.put_all({key: value})

    def put_all(self, pairs: Mapping[bytes, bytes]) -> None:
        """Write pairs with as few requests as the backend can; after a crash, some of them may be there.

        Raises:
            ValueTooLarge: one of the values is larger than `value_limit`; nothing was written.
        """
        for key, value in pairs.items():
            if len(value) > self.value_limit:
                raise ValueTooLarge(
                    f"a value of {len(value)} bytes under {key!r} of {self.name!r}, at most {self.value_limit} go in",
                    remedy="make the chunks smaller, or raise the store's value limit",
                )
        if pairs:
            self._write(pairs)

    @abstractmethod
    def _write(self, pairs: Mapping[bytes, bytes]) -> None:
        """Write pairs that are small enough."""

    @abstractmethod
    def get(self, key: bytes) -> bytes:
        """Return a value.

        Raises:
            KeyError: no pair has that key.
        """

    @abstractmethod
    def exists(self, key: bytes) -> bool:
        """Say whether a pair has that key."""

    def delete(self, key: bytes) -> None:
        """Delete a pair, if it exists."""
        self.delete_all([key])

    @abstractmethod
    def delete_all(self, keys: Iterable[bytes]) -> None:
        """Delete the pairs of some keys, if they exist."""


class DataStore(ABC):
    """Entries by name.

    Attributes:
        value_limit: the most bytes of a value.
    """

    value_limit: int

    @abstractmethod
    def create(self, name: str) -> DataStoreEntry:
        """Return the entry of a name; make an empty one if there is none. Concurrent callers get the same entry."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Say whether there is an entry of that name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an entry with all its pairs, if it exists. After a crash it is there completely, or not at all."""
