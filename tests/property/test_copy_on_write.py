"""Frozen values never change: any later change, through any handle, leaves them the same (N16, N25–N28, V118)."""

from __future__ import annotations

import copy
import io
import itertools
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drainmark.jobs.state.handlers.cow_dict import CowDict, CowList, CowSet
from drainmark.jobs.state.handlers.encoding import decode, encode
from drainmark.jobs.state.handlers.freezing import Copied, SerialisedCopy

KEYS = st.one_of(st.sampled_from("abcdef"), st.integers(-2, 40), st.tuples(st.sampled_from("xy"), st.integers(0, 3)))
LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.binary(max_size=3))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4), st.sets(st.integers(0, 9), max_size=3)
    ),
    max_leaves=6,
)


def plain(value: Any) -> Any:
    """Return the value in builtin containers, at all levels."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return set(value)
    return value


def written(value: Any) -> bytes:
    """Return the bytes that a checkpoint holds for a value."""
    pieces: list[bytes] = []
    encode(value, pieces.append)
    return b"".join(pieces)


class Frozen(RuleBasedStateMachine):
    """A CowDict beside a dict that is copied deeply at each freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.map: CowDict[Any, Any] = CowDict()
        self.model: dict[Any, Any] = {}
        self.frozen: Mapping[Any, Any] | None = None
        self.expected: dict[Any, Any] = {}
        self.bytes = b""
        self.handles: list[tuple[Any, Any]] = []

    @rule(key=KEYS, value=VALUES)
    def set(self, key: Any, value: Any) -> None:
        self.map[key] = value
        self.model[key] = copy.deepcopy(value)

    @rule(key=KEYS, value=st.integers())
    def append(self, key: Any, value: int) -> None:
        if isinstance(self.model.setdefault(key, []), list):
            self.model[key].append(value)
        if isinstance(found := self.map.setdefault(key, []), CowList):
            found.append(value)

    @rule(key=KEYS)
    def delete(self, key: Any) -> None:
        assert (self.map.pop(key, None) is None) == (self.model.pop(key, None) is None)

    @rule(count=st.integers(1, 40))
    def popitem(self, count: int) -> None:
        for _ in range(min(count, len(self.map))):
            key, value = self.map.popitem()
            assert plain(value) == self.model.pop(key)

    @rule()
    def clear(self) -> None:
        self.map.clear()
        self.model.clear()

    @rule(first=st.integers(0, 900), count=st.integers(1, 60))
    def many(self, first: int, count: int) -> None:
        """Add many keys, so that buckets are split."""
        for number in range(first, first + count):
            self.map[number] = number
            self.model[number] = number

    @rule(key=KEYS)
    def take_a_handle(self, key: Any) -> None:
        value = self.map.get(key)
        if isinstance(value, CowDict | CowList | CowSet):
            self.handles.append((value, self.model[key]))

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0, 99), key=KEYS, value=VALUES)
    def change_in_place(self, which: int, key: Any, value: Any) -> None:
        handle, model = self.handles[which % len(self.handles)]
        if isinstance(handle, CowDict):
            handle[key] = value
            model[key] = copy.deepcopy(value)
            self.handles.append((handle[key], model[key])) if isinstance(handle[key], CowDict | CowList) else None
        elif isinstance(handle, CowSet):
            handle ^= {1, 2}
            model ^= {1, 2}
        elif handle and isinstance(value, int):
            handle[0] = value
            model[0] = value
        else:
            handle.append(value)
            model.append(copy.deepcopy(value))

    @rule()
    def change_while_iterating(self) -> None:
        for key, value in self.map.items():
            if isinstance(value, CowList):
                value.append(key)
                self.model[key].append(key)

    @rule()
    def freeze(self) -> None:
        self.frozen = self.map.freeze()
        self.expected = copy.deepcopy(self.model)
        self.bytes = written(self.frozen)

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def thaw(self) -> None:
        old, self.frozen = self.frozen, None
        self.map.thaw()
        with pytest.raises(RuntimeError):
            list(old or ())

    @invariant()
    def the_map_is_as_a_dict(self) -> None:
        assert plain(self.map) == self.model
        assert len(self.map) == len(self.model)

    @invariant()
    def what_is_frozen_is_as_it_was(self) -> None:
        if self.frozen is not None:
            assert plain(self.frozen) == self.expected
            assert len(self.frozen) == len(self.expected)
            assert all(key in self.frozen for key in self.expected)
            assert written(self.frozen) == self.bytes


TestFrozen = Frozen.TestCase
TestFrozen.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestFrozen.pytestmark = [pytest.mark.seed("N16", "N27", "N28", "V118")]


@pytest.mark.seed("N27")
@given(touched=st.sets(st.integers(0, 19_999), max_size=20))
@settings(max_examples=examples(20), deadline=None)
def test_what_is_copied_is_what_was_touched(touched: set[int]) -> None:
    """A freeze costs the memory of one bucket for each change, whatever the size of the map."""
    counts = CowDict({number: number for number in range(20_000)})
    frozen = counts.freeze()
    for number in touched:
        counts[number] = -1
    kept = counts._noted()
    copied = sum(len(bucket) for bucket in kept[2].values()) if kept else 0
    assert len(touched) <= copied <= 64 * len(touched) or not touched
    assert sum(frozen.values()) == sum(range(20_000))
    counts.thaw()
    assert counts._kept is None


@pytest.mark.seed("N14", "N27")
def test_another_thread_reads_what_is_frozen_while_the_map_changes() -> None:
    counts = CowDict({number: [number] for number in range(5_000)})
    expected = written({number: [number] for number in CowDict(dict.fromkeys(range(5_000)))})
    for _ in range(5):
        frozen = counts.freeze()
        found: list[bytes] = []
        reader = threading.Thread(target=lambda seen=frozen, into=found: into.append(written(seen)))  # type: ignore[misc]
        reader.start()
        changes = itertools.cycle(range(5_000))
        for step in range(50_000):
            number = next(changes)
            counts[number].append(step)
            counts[5_000 + step % 997] = step
            if not reader.is_alive():
                break
        reader.join()
        assert found == [expected]
        for number in list(counts):
            if number >= 5_000:
                del counts[number]
            else:
                counts[number] = [number]
        shrunk = CowDict(counts)
        expected = written(counts)
        assert plain(shrunk) == plain(counts)


class Mutable:
    """A class whose changes cannot be noticed."""


@dataclass(frozen=True)
class Holds:
    inside: Any


@pytest.mark.parametrize(
    "value", [bytearray(b"x"), Mutable(), Holds([1]), (Mutable(),)], ids=("bytearray", "own", "inside", "tuple")
)
def test_what_changes_unseen_is_not_taken(value: Any) -> None:
    with pytest.raises(TypeError):
        CowDict({"a": value})
    assert CowDict({"a": Holds((1, "b"))})["a"].inside == (1, "b")


def test_only_the_outermost_map_is_frozen() -> None:
    outer: CowDict[str, Any] = CowDict({"a": {"b": 1}})
    with pytest.raises(RuntimeError):
        outer["a"].freeze()
    other: CowDict[str, Any] = CowDict({"c": outer["a"]})
    other["c"]["b"] = 2
    assert outer == {"a": {"b": 1}}, "a container is in one map"


def restored(map_: CowDict[Any, Any]) -> CowDict[Any, Any]:
    """Return the map that a reset restores from a checkpoint."""
    pending = io.BytesIO(written(map_.freeze()))
    return CowDict(decode(pending.read))


def put_again(map_: CowDict[Any, Any]) -> None:
    map_["a"] = [1]
    map_["b"] = map_["a"]


def put_within_one_value(map_: CowDict[Any, Any]) -> None:
    shared = [1]
    map_["a"], map_["b"] = ({"p": shared, "q": (shared, shared)},) * 2


def put_of_the_same_map(map_: CowDict[Any, Any]) -> None:
    map_["a"] = {"s": {1, 2}, "l": [[1]]}
    map_["b"] = [map_["a"]["l"][0], map_["a"]["l"], map_["a"]]
    map_["a"]["l"].append(map_["a"]["l"][0])
    map_["b"][1:] = map_["b"]


def put_within_itself(map_: CowDict[Any, Any]) -> None:
    map_["a"] = {"l": [1]}
    map_["a"]["me"] = map_["a"]
    map_["a"]["l"].append(map_["a"]["l"])
    map_["b"] = map_


def taken_out(map_: CowDict[Any, Any]) -> None:
    map_["a"] = [[1], [2]]
    map_["b"] = handle = map_.pop("a")
    map_["c"] = [handle[0], *map_["b"]]


def changed_everywhere(value: Any) -> None:
    """Change each container inside a value, from the innermost outwards."""
    for item in list(value.values() if isinstance(value, Mapping) else value):
        if isinstance(item, CowDict | CowList | CowSet | tuple):
            changed_everywhere(item)
    if isinstance(value, CowDict):
        value["new"] = len(value)
    elif isinstance(value, CowSet):
        value.add(77)
    elif isinstance(value, CowList):
        value.append(len(value))


@pytest.mark.seed("N5", "V58")
@pytest.mark.parametrize("put", [put_again, put_within_one_value, put_of_the_same_map, put_within_itself, taken_out])
def test_a_container_is_in_one_place_before_a_reset_as_after_it(put: Callable[[CowDict[Any, Any]], None]) -> None:
    went_on: CowDict[Any, Any] = CowDict()
    put(went_on)
    was_reset = restored(went_on)
    changed_everywhere(went_on)
    changed_everywhere(was_reset)
    assert plain(went_on) == plain(was_reset)


def test_what_is_put_back_where_it_is_stays_what_it_is() -> None:
    """`d["l"] += [2]` puts the list back: a copy would cost the whole list, and handles would refer to another one."""
    map_: CowDict[str, Any] = CowDict({"l": [1], "s": {1}, "n": [[1], [2]]})
    lists, sets, inner = map_["l"], map_["s"], map_["n"][0]
    map_["l"] += [2]
    map_["s"] |= {2}
    map_["n"][0] += [3]
    map_.update(map_)
    map_["n"].reverse()
    assert map_["l"] is lists
    assert map_["s"] is sets
    assert map_["n"][1] is inner
    assert plain(map_) == {"l": [1, 2], "s": {1, 2}, "n": [[2], [1, 3]]}


def test_a_list_that_is_reversed_does_not_change_what_is_frozen() -> None:
    map_: CowDict[str, Any] = CowDict({"l": [1, 2]})
    frozen = map_.freeze()
    map_["l"].reverse()
    assert (plain(frozen), plain(map_)) == ({"l": [1, 2]}, {"l": [2, 1]})


@pytest.mark.parametrize("kind", ["list", "dict", "tuple", "step by step"])
def test_what_holds_itself_or_is_too_deep_is_refused_where_it_is_put(kind: str) -> None:
    inside: list[Any] = [1]
    within: dict[str, Any] = {}
    values = {"list": inside, "dict": within, "tuple": (1, inside)}
    inside.append(values["tuple"] if kind == "tuple" else inside)
    within["me"] = [within]
    map_: CowDict[str, Any] = CowDict({"a": [0], "l": []})
    before = plain(map_)

    def put() -> None:
        at = map_["l"]
        while kind == "step by step":
            at.append([])
            at = at[0]
        map_["a"] = values[kind]

    with pytest.raises(ValueError, match="holds itself"):
        put()
    assert plain(map_)["a"] == before["a"]
    written(map_.freeze())


def steps(work: Callable[[], object]) -> int:
    """Return the number of bytecodes of product code that work needs: no other load changes this cost."""
    count = 0

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def popped(map_: CowDict[Any, Any]) -> None:
    while map_:
        map_.popitem()


def popped_from_the_front(map_: CowDict[Any, Any]) -> None:
    while map_:
        del map_[next(iter(map_))]


def popped_and_put(map_: CowDict[Any, Any]) -> None:
    for _ in range(len(map_) // 2):
        map_.popitem()
    for number in range(len(map_)):
        map_[-number] = number  # also into empty buckets before all others
        map_.popitem()


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize(
    "work", [popped, popped_from_the_front, popped_and_put, CowDict.clear], ids=["pop", "front", "mixed", "clear"]
)
def test_emptying_costs_what_is_in_it(work: Callable[[CowDict[Any, Any]], None], is_frozen: bool) -> None:
    def cost(size: int) -> int:
        map_: CowDict[Any, Any] = CowDict({number: number for number in range(size)})
        if is_frozen:
            map_.freeze()
        return steps(lambda: work(map_))

    assert cost(4_000) < 16 * cost(500) + 1_000, "eight times the size: eight times the steps, not sixty-four"


@pytest.mark.parametrize("way", ["pop", "clear"])
def test_a_set_is_emptied_at_the_cost_of_what_is_in_it(way: str) -> None:
    """The test measures the time of this thread: the cost was the search for the first item, in C."""

    def cost(size: int) -> float:
        items = CowDict({"set": set(range(size))})["set"]
        before = time.thread_time()
        if way == "clear":
            items.clear()
        while items:
            items.pop()
        return time.thread_time() - before

    assert cost(64_000) < 32 * min(cost(4_000) for _ in range(5)) + 0.05, "16 times the size: not 256 times the time"


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_cleared_map_is_empty_and_what_was_frozen_stays(is_frozen: bool) -> None:
    map_: CowDict[Any, Any] = CowDict({number: [number] for number in range(500)})
    map_["set"], map_["list"] = {1}, [1]
    expected = plain(map_)
    frozen = map_.freeze() if is_frozen else None
    map_["set"].clear()
    map_["list"].clear()
    map_[3].append(4)
    assert (plain(map_["set"]), plain(map_["list"])) == (set(), [])
    map_.clear()
    assert (len(map_), list(map_), 3 in map_, map_.get(3)) == (0, [], False, None)
    with pytest.raises(KeyError):
        map_.popitem()
    map_.update((number, number) for number in range(100))
    assert plain(map_) == {number: number for number in range(100)}
    assert frozen is None or plain(frozen) == expected


@given(st.lists(st.one_of(st.integers(0, 200), st.just("popitem"), st.just("clear"), st.just("freeze")), max_size=200))
@settings(max_examples=examples(60), deadline=None)
def test_popitem_takes_the_first_of_the_iteration(changes: list[Any]) -> None:
    map_: CowDict[Any, Any] = CowDict({number: number for number in range(60)})
    for change in changes:
        if change == "freeze":
            map_.freeze()
        elif change == "clear":
            map_.clear()
        elif change != "popitem":
            map_.pop(change, None) if change % 3 == 0 else map_.update({change: change})
        elif map_:
            keys = list(map_)
            assert map_.popitem() == (keys[0], keys[0])
            assert list(map_) == keys[1:]
        assert len(map_) == len(list(map_))


@pytest.mark.seed("N25", "N26")
@pytest.mark.parametrize(
    "made",
    [Copied, lambda value: SerialisedCopy(value, written, lambda content: content)],
    ids=["copied", "serialised"],
)
@given(value=st.dictionaries(KEYS, VALUES, max_size=5), key=KEYS)
@settings(max_examples=examples(40), deadline=None)
def test_a_copy_is_of_the_moment_it_was_made(made: Callable[[Any], Any], value: dict[Any, Any], key: Any) -> None:
    kept = made(copy.deepcopy(value))
    kept.freeze()
    kept.value[key] = "changed"
    content = kept.frozen if isinstance(kept, SerialisedCopy) else written(kept.frozen)
    assert content == written(value)
    kept.thaw()
    with pytest.raises(RuntimeError):
        _ = kept.frozen
