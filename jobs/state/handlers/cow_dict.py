"""A map that is frozen at once and written while it changes: copy-on-write by buckets.

The map works like a hash map: entries are in buckets of about ten, and a change after `freeze` first copies the bucket,
list or set that it changes. So the cost of a frozen version depends on the changes, not on the size of the map. One
thread changes the map, and one other may read the frozen version, without a lock between them: a bucket that was copied
never changes again, and is noted before its copy takes its place.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Set
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_FULL = 8
"""The average number of entries in a bucket above which one more bucket is made."""

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, decimal.Decimal, dt.date, dt.time, dt.timedelta, dt.tzinfo,
    uuid.UUID, enum.Enum, range,
)  # fmt: skip

DEEPEST = 150
"""The most containers within one another that a map takes: a checkpoint reads them back by recursion."""

_Bucket = dict[Any, Any]


class _Clock:
    """The newest freeze of a map and all containers in it.

    Attributes:
        number: of the newest freeze.
        is_frozen: whether its frozen version may still be read.
        touched: the containers that keep their old content for it.
    """

    __slots__ = ("is_frozen", "number", "touched")

    def __init__(self) -> None:
        self.number = 0
        self.is_frozen = False
        self.touched: list[_Tracked] = []


class _Tracked:
    """A container that notes its content before the first change after a freeze.

    It always stays in one place, since values are copied when they are put in: so its depth never changes.
    """

    __slots__ = ("_clock", "_depth", "_kept")

    _clock: _Clock
    _depth: int
    _kept: tuple[int, Any] | None

    def _begin(self, within: _Tracked | None) -> None:
        self._clock = within._clock if within is not None else _Clock()
        self._depth = within._depth + 1 if within is not None else 0
        self._kept = None
        if self._depth > DEEPEST:
            raise ValueError(f"a value of a CowDict holds itself, or more than {DEEPEST} containers in one another")

    def _noted(self) -> Any:
        """Return the content that was noted for the newest freeze; None if nothing changed since."""
        kept = self._kept
        return kept[1] if kept is not None and kept[0] == self._clock.number else None

    def _note(self, content: Any) -> None:
        self._kept = (self._clock.number, content)
        self._clock.touched.append(self)

    def _as_frozen(self) -> Any:
        """Return the content at the freeze."""
        raise NotImplementedError


class CowDict(_Tracked, MutableMapping[K, V], Generic[K, V]):
    """A dict that can be frozen at once and saved in the background while it keeps changing.

    Values are immutable, or dicts, lists and sets, also nested. These become containers that are tracked in the same
    way, so that `d["a"]["b"] = 1` and `d["hosts"].append("x")` do not change the frozen version, nor do changes through
    handles that were taken before the freeze. Values are copied when they are put in: change `d["hosts"]`, not the list
    that you put there. Containers of this map are copied, too: after `d["b"] = d["a"]` there are two, as there would be
    after a reset. The order of iteration is that of the buckets, not of insertion, and may change with a reset: sort
    entries that become rows, and let no result depend on the entry that `popitem` takes.

    Raises:
        TypeError: a value could be changed without `CowDict` noticing (an object of a class of yours, a bytearray).
        ValueError: a value holds itself, or more than 150 containers within one another.

    Example:
        @dm.operator(output="customer string, total double")
        @dataclass
        class Totals(dm.StateHandler):
            non_blocking = True
            totals: dm.CowDict = field(default_factory=dm.CowDict)

            def process(self, orders, context):
                for customer, amount in zip(orders["customer"].to_pylist(), orders["amount"].to_pylist()):
                    self.totals[customer] = self.totals.get(customer, 0.0) + (amount or 0.0)
                names = sorted(self.totals)
                return pa.table({"customer": names, "total": [self.totals[name] for name in names]})
    """

    __slots__ = ("_buckets", "_filled", "_passed", "_size")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = (), *, _in: _Tracked | None = None) -> None:
        self._begin(_in)
        self._begin_empty()
        self.update(entries)

    def _begin_empty(self) -> None:
        self._buckets: list[_Bucket] = [{}]
        self._size = 0
        self._passed = 0  # buckets at the front that were found empty
        self._filled: list[int] = []  # a heap: those of them that got entries since; these may be gone again

    # --- freezing --------------------------------------------------------------------------------------------------

    def freeze(self) -> Mapping[K, V]:
        """Return the present content, to be read until `thaw` or the next `freeze`; nothing is copied.

        Raises:
            RuntimeError: the map is a value of another one; freeze the outermost.
        """
        if self._depth:
            raise RuntimeError("this map is a value of another one: freeze the outermost")
        self.thaw()
        self._clock.number += 1
        self._clock.is_frozen = True
        return FrozenDict(self, self._clock.number)

    def thaw(self) -> None:
        """Release the frozen version, and the old contents that were kept for it."""
        self._clock.is_frozen = False
        for container in self._clock.touched:
            container._kept = None
        self._clock.touched.clear()

    def _as_frozen(self) -> Mapping[K, V]:
        return FrozenDict(self, self._clock.number)

    # --- a mapping -------------------------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        value: V = self._buckets[self._place(key)][key]
        return value

    def __setitem__(self, key: K, value: V) -> None:
        place = self._place(key)
        if isinstance(value, _Tracked) and self._buckets[place].get(key) is value:
            return  # `d["hosts"] += ["x"]` puts the same container back
        taken = _taken(value, self)
        bucket = self._own(place)
        is_new = key not in bucket
        bucket[key] = taken
        if is_new:
            self._size += 1
            if place < self._passed:
                heappush(self._filled, place)
            if len(self._filled) > len(self._buckets):  # noted many times, and never asked for
                self._passed, self._filled = 0, []
            if self._size > _FULL * len(self._buckets):
                self._split()

    def __delitem__(self, key: K) -> None:
        place = self._place(key)
        if key not in self._buckets[place]:
            raise KeyError(key)
        del self._own(place)[key]
        self._size -= 1
        if not self._size and len(self._buckets) > 1:
            self.clear()  # drop empty buckets, too: an iteration would visit them all

    def clear(self) -> None:
        """Remove all entries."""
        if self._clock.is_frozen:
            count, _, originals = self._kept_buckets()
            originals.update({place: self._buckets[place] for place in range(count) if place not in originals})
        self._begin_empty()

    def popitem(self) -> tuple[K, V]:
        """Remove the first entry in the order of iteration, and return its key and value.

        Raises:
            KeyError: the map is empty.
        """
        if not self._size:
            raise KeyError("the map is empty")
        key, value = next(iter(self._buckets[self._first()].items()))
        del self[key]
        return key, value

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, after setting the default if there was none; it can be changed in place."""
        if key not in self:
            self[key] = default
        return self[key]

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[self._place(key)]

    def __iter__(self) -> Iterator[K]:
        if self._size:
            for place in range(self._first(), len(self._buckets)):
                if place < len(self._buckets):  # it may be cleared meanwhile
                    yield from list(self._buckets[place])

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"CowDict({dict(self.items())!r})"

    # --- buckets: linear hashing splits one bucket at a time, so that growing copies no more than it must -----------

    def _place(self, key: object) -> int:
        return bucket_of(key, len(self._buckets))

    def _own(self, place: int) -> _Bucket:
        """Return a bucket that may be changed: a copy, if the frozen version still needs the present bucket."""
        bucket = self._buckets[place]
        if not self._clock.is_frozen:
            return bucket
        count, _, originals = self._kept_buckets()
        if place < count and place not in originals:
            originals[place] = bucket  # before its copy takes its place: a reader looks at the place, then in here
            bucket = self._buckets[place] = dict(bucket)
        return bucket

    def _kept_buckets(self) -> tuple[int, int, dict[int, _Bucket]]:
        """Return the numbers of buckets and entries of the frozen version, and its buckets that changed since."""
        kept: tuple[int, int, dict[int, _Bucket]] | None = self._noted()
        if kept is None:
            kept = (len(self._buckets), self._size, {})
            self._note(kept)
        return kept

    def _first(self) -> int:
        """Return the first bucket with entries; the map must have some. Each empty bucket is passed once."""
        while self._filled:
            if self._buckets[self._filled[0]]:
                return self._filled[0]
            heappop(self._filled)
        while not self._buckets[self._passed]:
            self._passed += 1
        return self._passed

    def _split(self) -> None:
        """Make one more bucket, with about half of the entries of an existing one."""
        count = len(self._buckets)
        old = bucket_to_split(count)
        bucket = self._own(old)
        moved = {key: value for key, value in bucket.items() if bucket_of(key, count + 1) != old}
        for key in moved:
            del bucket[key]
        self._buckets.append(moved)


class FrozenDict(Mapping[Any, Any]):
    """A map as it was at a freeze; read by one thread, until it is thawed."""

    __slots__ = ("_number", "_of")

    def __init__(self, of: CowDict[Any, Any], number: int) -> None:
        self._of = of
        self._number = number

    def _bucket(self, place: int) -> _Bucket:
        buckets = self._of._buckets  # first this, then the note: see `_own`
        bucket = buckets[place] if place < len(buckets) else None  # None: the map was cleared, which is noted
        kept = self._of._noted()
        found: _Bucket | None = bucket if kept is None else kept[2].get(place, bucket)
        if found is None:
            raise RuntimeError("a frozen version is read after its thaw")
        return found

    def _count(self) -> tuple[int, int]:
        """Return the number of buckets and of entries at the freeze."""
        count, size = len(self._of._buckets), self._of._size
        kept = self._of._noted()
        self._require()
        return (count, size) if kept is None else kept[:2]

    def _require(self) -> None:
        if not self._of._clock.is_frozen or self._of._clock.number != self._number:
            raise RuntimeError("a frozen version is read after its thaw")

    def __getitem__(self, key: Any) -> Any:
        count, _ = self._count()
        return _view(self._bucket(bucket_of(key, count))[key])

    def __iter__(self) -> Iterator[Any]:
        count, _ = self._count()
        for place in range(count):
            self._require()
            yield from self._bucket(place)

    def items(self) -> Any:
        """Return the pairs, bucket by bucket."""
        return _FrozenItems(self)

    def __len__(self) -> int:
        return self._count()[1]

    def __repr__(self) -> str:
        return f"<frozen {dict(self.items())!r}>"


class _FrozenItems(Set[tuple[Any, Any]]):
    __slots__ = ("_frozen",)

    def __init__(self, frozen: FrozenDict) -> None:
        self._frozen = frozen

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        count, _ = self._frozen._count()
        for place in range(count):
            self._frozen._require()
            for key, value in self._frozen._bucket(place).items():
                yield key, _view(value)

    def __contains__(self, pair: object) -> bool:
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] not in self._frozen:
            return False
        return bool(self._frozen[pair[0]] == pair[1])

    def __len__(self) -> int:
        return len(self._frozen)

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> set[Any]:  # type: ignore[override]
        return set(it)


class CowList(_Tracked, MutableSequence[V], Generic[V]):
    """A list inside a `CowDict`; copied whole before its first change after a freeze."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[V] = (), *, _in: _Tracked | None = None) -> None:
        self._begin(_in)
        self._items: list[V] = [_taken(item, self) for item in items]

    def _own(self) -> list[V]:
        if self._clock.is_frozen and self._noted() is None:
            self._note(self._items)
            self._items = list(self._items)
        return self._items

    def _as_frozen(self) -> list[V]:
        items = self._items
        kept = self._noted()
        return [_view(item) for item in (items if kept is None else kept)]

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            taken = [_taken(item, self) for item in value]
            self._own()[index] = taken
        elif not (isinstance(value, _Tracked) and self._items[index] is value):  # `l[0] += [1]` puts the same one back
            taken = _taken(value, self)
            self._own()[index] = taken

    def __delitem__(self, index: Any) -> None:
        del self._own()[index]

    def insert(self, index: int, value: V) -> None:
        taken = _taken(value, self)
        self._own().insert(index, taken)

    def clear(self) -> None:
        """Remove all items."""
        self._own()
        self._items = []

    def reverse(self) -> None:
        """Reverse in place. The items stay the same objects; to set each one would copy it."""
        self._own().reverse()

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | CowList) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CowList({self._items!r})"


class CowSet(_Tracked, MutableSet[V], Generic[V]):
    """A set inside a `CowDict`; copied whole before its first change after a freeze."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[V] = (), *, _in: _Tracked | None = None) -> None:
        self._begin(_in)
        self._items: set[V] = {_taken(item, self) for item in items}

    def _own(self) -> set[V]:
        if self._clock.is_frozen and self._noted() is None:
            self._note(self._items)
            self._items = set(self._items)
        return self._items

    def _as_frozen(self) -> set[V]:
        items = self._items
        kept = self._noted()
        return set(items if kept is None else kept)

    @classmethod
    def _from_iterable(cls, it: Iterable[V]) -> set[V]:  # type: ignore[override]
        return set(it)

    def add(self, value: V) -> None:
        self._own().add(_taken(value, self))

    def discard(self, value: V) -> None:
        self._own().discard(value)

    def pop(self) -> V:
        """Remove an item, and return it.

        Raises:
            KeyError: the set is empty.
        """
        return self._own().pop()

    def clear(self) -> None:
        """Remove all items."""
        self._own()
        self._items = set()

    def __contains__(self, value: object) -> bool:
        return value in self._items

    def __iter__(self) -> Iterator[V]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"CowSet({self._items!r})"


def _taken(value: Any, within: _Tracked) -> Any:
    """Return a value in the form in which a container keeps it: an immutable value, or a tracked container."""
    if _is_immutable(value):
        return value
    if type(value) is tuple:
        return tuple(_taken(item, within) for item in value)
    if isinstance(value, Mapping):
        return CowDict(value, _in=within)
    if isinstance(value, list | CowList):
        return CowList(value, _in=within)
    if isinstance(value, Set):
        return CowSet(value, _in=within)
    raise TypeError(
        f"a CowDict cannot see changes inside a {type(value).__name__}: keep immutable values (a frozen dataclass, "
        "say), dicts, lists and sets in it"
    )


def _is_immutable(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, tuple | frozenset):
        return all(_is_immutable(item) for item in value)
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return all(_is_immutable(getattr(value, field.name)) for field in dataclasses.fields(value))
    return type(value).__module__.partition(".")[0] == "pyarrow"


def _view(value: Any) -> Any:
    """Return a value as it was at the freeze."""
    if isinstance(value, _Tracked):
        return value._as_frozen()
    if isinstance(value, tuple):
        return tuple(_view(item) for item in value)
    return value


def bucket_of(key: object, count: int) -> int:
    """Return a key's bucket out of `count`: that of the doubled table if it exists, else the one it splits from."""
    number = stable_hash(key)
    mask = (1 << (count - 1).bit_length()) - 1
    place = number & mask
    return place if place < count else place & (mask >> 1)


def bucket_to_split(count: int) -> int:
    """Return the bucket that gives about half of its keys to the next new bucket, if there are `count` buckets."""
    return count - (1 << (count.bit_length() - 1))


def stable_hash(key: object) -> int:
    """Return a hash that is the same in every process for texts, bytes, numbers and tuples of them."""
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, tuple):
        return zlib.crc32(repr([stable_hash(item) for item in key]).encode())
    number = 0 if key is None else hash(key)
    return (number ^ (number >> 16)) * 0x9E3779B1 & 0xFFFFFFFF
