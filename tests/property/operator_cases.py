"""The results of each operator of the library in plain Python: one declaration and one oracle for each configuration.

An oracle gets the rows of the files in order, and returns the rows that each file's state adds to the sink. Nothing
here knows of Spark, groups or states; `test_operator_library.py` runs them all.
"""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from join_oracle import MINUTE, Join, told_by

import drainmark as dm
from drainmark import F

Row = dict[str, Any]
Files = list[list[Row]]
WINDOW = dt.timedelta(minutes=6)
PAUSE = dt.timedelta(minutes=4)


@dataclass(frozen=True)
class Streams:
    """The inputs of the cases: all rows; and rows with even or odd (or no) `n`, with other column names."""

    events: Any
    left: Any
    right: Any


@dataclass(frozen=True)
class Case:
    kind: str
    configuration: str
    declare: Callable[[Streams, str], Any]
    oracle: Callable[[Files], Files]

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.configuration}".replace(" ", "_").replace("-", "_")


CASES: list[Case] = []


def case(kind: str, configuration: str, declare: Callable[[Streams, str], Any]) -> Any:
    def entered(oracle: Callable[[Files], Files]) -> Callable[[Files], Files]:
        CASES.append(Case(kind, configuration, declare, oracle))
        return oracle

    return entered


def streams(events: Any) -> Streams:
    def side(letter: str, rest: int) -> Any:
        def shown(events: Any) -> Any:
            mine = events.where(f"pmod(coalesce(n, 1), 2) = {rest}")
            return mine.selectExpr("_sequence_id", "_position", "user", f"n as {letter}n", f"at as {letter}at")

        return dm.functor(shown, name=f"{letter}_rows", inputs=[events])

    rows = dm.functor(lambda events: events.drop("source_file"), name="rows", inputs=[events])
    return Streams(rows, side("l", 0), side("r", 1))


def is_left(row: Row) -> bool:
    return (1 if row["n"] is None else row["n"]) % 2 == 0


def left_of(row: Row) -> Row:
    return {"user": row["user"], "ln": row["n"], "lat": row["at"]}


def right_of(row: Row) -> Row:
    return {"user": row["user"], "rn": row["n"], "rat": row["at"]}


def each(files: Files, made: Callable[[Row], list[Row]]) -> Files:
    return [[out for row in rows for out in made(row)] for rows in files]


def functor(stream: Any, name: str, *columns: str) -> Any:
    return dm.functor(
        lambda rows: rows.selectExpr("_sequence_id", "_position", *columns), name=f"{name}_shown", inputs=[stream]
    )


# --- row by row ---------------------------------------------------------------------------------------------------


def declare_union(s: Streams, name: str) -> Any:
    some = functor(s.left, f"{name}_a", "user", "ln as n")
    more = functor(s.right, f"{name}_b", "rn as n", "user")
    return dm.sort(dm.union(some, more, name=name), by=["user"], name=f"{name}_sorted")


@case("union", "default", declare_union)
def union(files: Files) -> Files:
    return each(files, lambda row: [{"user": row["user"], "n": row["n"]}])


def declare_split(to: str) -> Callable[[Streams, str], Any]:
    def declare(s: Streams, name: str) -> Any:
        parts = dm.split(
            s.events, outputs={"high": "n > 2", "some": "n >= 1"}, otherwise="rest", to=to, name=name
        )  # fmt: skip
        shown = [
            functor(parts[part], f"{name}_{part}", "user", "n", f"'{part}' as part")
            for part in ("high", "some", "rest")
        ]
        return dm.union(*shown, name=f"{name}_joined")

    return declare


def parts_of(row: Row) -> list[str]:
    n = row["n"]
    found = [part for part, holds in (("high", n is not None and n > 2), ("some", n is not None and n >= 1)) if holds]
    return found or ["rest"]


@case("split", "first", declare_split("first"))
def split_first(files: Files) -> Files:
    return each(files, lambda row: [{"user": row["user"], "n": row["n"], "part": parts_of(row)[0]}])


@case("split", "every", declare_split("every"))
def split_every(files: Files) -> Files:
    return each(files, lambda row: [{"user": row["user"], "n": row["n"], "part": part} for part in parts_of(row)])


def declare_expect(on_fail: str) -> Callable[[Streams, str], Any]:
    condition = "true" if on_fail == "halt" else "n > 2"

    def declare(s: Streams, name: str) -> Any:
        return functor(dm.expect(s.events, condition, on_fail=on_fail, name=name), name, "user", "n")

    return declare


@case("expect", "quarantine", declare_expect("quarantine"))
def expect(files: Files) -> Files:
    return each(files, lambda row: [{"user": row["user"], "n": row["n"]}] if (row["n"] or 0) > 2 else [])


@case("expect", "warn", declare_expect("warn"))
@case("expect", "halt", declare_expect("halt"))
def expect_and_go_on(files: Files) -> Files:
    return each(files, lambda row: [{"user": row["user"], "n": row["n"]}])


def declare_sort(s: Streams, name: str) -> Any:
    ordered = dm.sort(s.events, by=["user desc", "n"], name=name)
    return functor(ordered, name, "user", "n", "x", "_position.row as place")


@case("sort", "default", declare_sort)
def sort(files: Files) -> Files:
    out = []
    for rows in files:
        by_n = sorted(rows, key=lambda row: (row["n"] is not None, row["n"] or 0))
        ordered = sorted(by_n, key=lambda row: (row["user"] is not None, row["user"] or ""), reverse=True)
        out.append([{"user": r["user"], "n": r["n"], "x": r["x"], "place": i} for i, r in enumerate(ordered, 1)])
    return out


@case("throttle", "default", lambda s, name: functor(dm.throttle(s.events, 1e9, name=name), name, "user", "n"))
def throttle(files: Files) -> Files:
    return each(files, lambda row: [{"user": row["user"], "n": row["n"]}])


@case("punctor", "every", lambda s, name: functor(dm.punctor(s.events, "n > 2", at="every", name=name), name,
                                                  "user", "n", "_punctuation as mark"))  # fmt: skip
def punctor_every(files: Files) -> Files:
    return each(files, lambda row: [{"user": row["user"], "n": row["n"], "mark": (row["n"] or 0) > 2}])


# --- texts --------------------------------------------------------------------------------------------------------


def declare_parse(form: str, on_bad: str = "quarantine") -> Callable[[Streams, str], Any]:
    """Parse texts; the text of n = 1 does not fit, and the text of n = 0 is null."""

    def declare(s: Streams, name: str) -> Any:
        known = "coalesce(user, 'None')"
        value = "case when n is null then '' when n = 1 then 'x' else cast(n as string) end"
        made = {
            "csv": f"concat({value}, ',', {known})",
            "json": f"""concat('{{"pn": ', case when n is null then 'null' when n = 1 then '"x"'
                        else cast(n as string) end, ', "pu": "', {known}, '"}}')""",
            "key_value": f"if(n is null, concat('pu=', {known}), concat('pn=7,pu=', {known}, ',pn=', {value}))",
        }[form]
        texts = functor(s.events, f"{name}_text", "x", f"if(n = 0, null, {made}) as text")
        return dm.parse(texts, "text", format=form, schema="pn bigint, pu string", on_bad=on_bad, name=name)

    return declare


def parsed(row: Row) -> list[Row]:
    return [] if row["n"] in (0, 1) else [{"x": row["x"], "pn": row["n"], "pu": str(row["user"])}]


@case("parse", "csv", declare_parse("csv"))
@case("parse", "json", declare_parse("json"))
@case("parse", "key_value", declare_parse("key_value"))
def parse(files: Files) -> Files:
    return each(files, parsed)


@case("parse", "null", declare_parse("key_value", "null"))
def parse_null(files: Files) -> Files:
    def made(row: Row) -> list[Row]:
        n, user = row["n"], str(row["user"])
        bad = n in (0, 1)
        return [{"x": row["x"], "pn": None if bad else n, "pu": None if bad else user}]

    return each(files, made)


def declare_lines(s: Streams, name: str) -> Any:
    lines = "repeat(concat(n, char(13), char(10)), int(n))"  # no line break inside the plan
    texts = functor(s.events, f"{name}_text", "n", f"if(n is null, null, {lines}) as text")
    return dm.parse(texts, "text", format="line", name=name)


@case("parse", "line", declare_lines)
def parse_line(files: Files) -> Files:
    return each(files, lambda row: [{"n": row["n"], "line": str(row["n"])} for _ in range(row["n"] or 0)])


def declare_format(form: str) -> Callable[[Streams, str], Any]:
    return lambda s, name: dm.format(functor(s.events, f"{name}_in", "user", "n"), form, separator=";", name=name)


@case("format", "csv", declare_format("csv"))
def format_csv(files: Files) -> Files:
    return each(files, lambda r: [{"value": f"{r['user'] or ''};{'' if r['n'] is None else r['n']}"}])


@case("format", "json", declare_format("json"))
def format_json(files: Files) -> Files:
    return each(files, lambda r: [{"value": json.dumps({"user": r["user"], "n": r["n"]}, separators=(",", ":"))}])


@case("format", "key_value", declare_format("key_value"))
def format_key_value(files: Files) -> Files:
    def made(row: Row) -> list[Row]:
        return [{"value": ";".join(f"{k}={row[k]}" for k in ("user", "n") if row[k] is not None)}]

    return each(files, made)


PACKERS = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "zstd": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def declare_decompress(codec: str, on_bad: str = "quarantine") -> Callable[[Streams, str], Any]:
    packer = PACKERS[codec]

    def packed(n):  # no type hints: Spark would infer from them how to call it
        """Return half a stream for n = 1, and nothing for null."""
        if n is None:
            return None
        whole = packer(f"body {n}".encode() * 50)
        return whole[: len(whole) // 2] if n == 1 else whole

    def declare(s: Streams, name: str) -> Any:
        packed_rows = dm.functor(
            lambda rows: rows.select("_sequence_id", "_position", "n", F.udf(packed, "binary")("n").alias("body")),
            name=f"{name}_in", inputs=[s.events],
        )  # fmt: skip
        return dm.decompress(packed_rows, "body", codec=codec, on_bad=on_bad, name=name)

    return declare


def body(row: Row) -> bytes | None:
    return None if row["n"] in (None, 1) else f"body {row['n']}".encode() * 50


@case("decompress", "gzip", declare_decompress("gzip"))
@case("decompress", "bz2", declare_decompress("bz2"))
@case("decompress", "zstd", declare_decompress("zstd"))
def decompress(files: Files) -> Files:
    return each(files, lambda row: [] if row["n"] == 1 else [{"n": row["n"], "body": body(row)}])


@case("decompress", "null", declare_decompress("gzip", "null"))
def decompress_null(files: Files) -> Files:
    return each(files, lambda row: [{"n": row["n"], "body": body(row)}])


# --- states -------------------------------------------------------------------------------------------------------


def declare_punctor(keys: list[str]) -> Callable[[Streams, str], Any]:
    def declare(s: Streams, name: str) -> Any:
        marked = dm.punctor(s.events, "n > 2", keys=keys, name=name)
        return functor(marked, name, "user", "x", "_punctuation as mark")

    return declare


def rises(files: Files, key: Callable[[Row], Any]) -> Files:
    held: dict[Any, bool] = defaultdict(bool)

    def made(row: Row) -> list[Row]:
        holds, before = (row["n"] or 0) > 2, held[key(row)]
        held[key(row)] = holds
        return [{"user": row["user"], "x": row["x"], "mark": holds and not before}]

    return each(files, made)


@case("punctor", "rise", declare_punctor([]))
def punctor_rise(files: Files) -> Files:
    return rises(files, lambda row: None)


@case("punctor", "rise by key", declare_punctor(["user"]))
def punctor_by_key(files: Files) -> Files:
    return rises(files, lambda row: row["user"])


def declare_deduplicate(**within: Any) -> Callable[[Streams, str], Any]:
    return lambda s, name: dm.deduplicate(s.events, keys=["user", "n"], name=name, **within)


@case("deduplicate", "forever", declare_deduplicate())
def deduplicate(files: Files) -> Files:
    seen = set()

    def made(row: Row) -> list[Row]:
        key = (row["user"], row["n"])
        if key in seen:
            return []
        seen.add(key)
        return [row]

    return each(files, made)


@case("deduplicate", "within ids", declare_deduplicate(within=1))
def deduplicate_ids(files: Files) -> Files:
    passed: dict[Any, int] = {}
    out: Files = []
    for number, rows in enumerate(files):
        out.append([])
        for row in rows:
            key = (row["user"], row["n"])
            if key not in passed or number - passed[key] > 1:
                passed[key] = number
                out[-1].append(row)
    return out


@case("deduplicate", "within duration", declare_deduplicate(within=WINDOW, event_time="at"))
def deduplicate_duration(files: Files) -> Files:
    passed: dict[Any, dt.datetime] = {}
    newest: dt.datetime | None = None
    out: Files = []
    for rows in files:
        out.append([])
        for row in rows:
            key, now = (row["user"], row["n"]), max(row["at"], newest or row["at"])
            if key not in passed or now >= passed[key] + WINDOW:
                passed[key] = row["at"]
                out[-1].append(row)
        newest = max([row["at"] for row in rows] + ([newest] if newest else []), default=None)
    return out


@case("delay", "ids", lambda s, name: dm.delay(s.events, ids=2, name=name))
def delay_ids(files: Files) -> Files:
    return [[], [], *files][: len(files)]


def declare_delay(s: Streams, name: str) -> Any:
    held = dm.delay(s.events, duration=PAUSE, event_time="at", name=name)
    return functor(held, name, "user", "n", "x", "_position.row as place")


@case("delay", "duration", declare_delay)
def delay_duration(files: Files) -> Files:
    waiting: list[Row] = []
    times: list[dt.datetime] = []
    out: Files = []
    for rows in files:
        waiting += rows
        times += [row["at"] for row in rows]
        due = [row for row in waiting if times and row["at"] + PAUSE <= max(times)]
        waiting = [row for row in waiting if row not in due]
        out.append([{"user": r["user"], "n": r["n"], "x": r["x"], "place": i} for i, r in enumerate(due, 1)])
    return out


def declare_barrier(s: Streams, name: str) -> Any:
    third = functor(s.events, f"{name}_x", "x")
    return dm.barrier(
        functor(s.left, f"{name}_l", "ln"), functor(s.right, f"{name}_r", "user", "rn"), third, name=name
    )  # fmt: skip


@case("barrier", "three streams", declare_barrier)
def barrier(files: Files) -> Files:
    waiting: tuple[list[Row], ...] = ([], [], [])
    out: Files = []
    for rows in files:
        waiting[0].extend({"ln": row["n"]} for row in rows if is_left(row))
        waiting[1].extend({"user": row["user"], "rn": row["n"]} for row in rows if not is_left(row))
        waiting[2].extend({"x": row["x"]} for row in rows)
        out.append([])
        while all(waiting):
            out[-1].append({k: v for queue in waiting for k, v in queue.pop(0).items()})
    return out


@case("barrier", "keyed", lambda s, name: dm.pair(s.left, s.right, key="user", name=name))
def pair(files: Files) -> Files:
    waiting: dict[Any, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    out: Files = []
    for rows in files:
        out.append([])
        for row in rows:
            left, right = waiting[row["user"]]
            (left if is_left(row) else right).append(left_of(row) if is_left(row) else right_of(row))
            if left and right:
                out[-1].append({**left.pop(0), **right.pop(0)})
    return out


def declare_dynamic_filter(with_remove: bool) -> Callable[[Streams, str], Any]:
    def declare(s: Streams, name: str) -> Any:
        def named(n: int) -> Any:
            return dm.functor(
                lambda rows: rows.where(f"n = {n}").select("_sequence_id", "user"),
                name=f"{name}_{n}", inputs=[s.events],
            )  # fmt: skip

        return dm.dynamic_filter(
            s.events, named(5), on=["user"], remove=named(0) if with_remove else None, name=name
        )  # fmt: skip

    return declare


def passing(files: Files, with_remove: bool) -> Files:
    through: set[Any] = set()
    out: Files = []
    for rows in files:
        out.append([row for row in rows if row["user"] in through])
        through |= {row["user"] for row in rows if row["n"] == 5}
        if with_remove:
            through -= {row["user"] for row in rows if row["n"] == 0}
    return out


@case("dynamic-filter", "add", declare_dynamic_filter(False))
def dynamic_filter(files: Files) -> Files:
    return passing(files, False)


@case("dynamic-filter", "add and remove", declare_dynamic_filter(True))
def dynamic_filter_removing(files: Files) -> Files:
    return passing(files, True)


# --- joins --------------------------------------------------------------------------------------------------------


def declare_join(**how: Any) -> Callable[[Streams, str], Any]:
    timed = any(isinstance(window, dt.timedelta) for window in how.values())
    times = {"left_time": "lat", "right_time": "rat"} if timed else {}
    return lambda s, name: dm.join(s.left, s.right, on=["user"], name=name, **how, **times)


@dataclass(frozen=True)
class Came:
    row: Row
    file: int


def joined(files: Files, windows: dict[bool, Any], lonely: tuple[bool, ...] = ()) -> Files:
    """Process all rows in order; each row meets the rows that its side's window of the other side holds.

    Args:
        windows: of left rows under True, of right rows under False.
        lonely: sides whose rows are emitted alone if they meet no other row.
    """
    seen: dict[bool, list[Came]] = {True: [], False: []}
    newest: dict[bool, dt.datetime | None] = {True: None, False: None}
    out: Files = []
    for number, rows in enumerate(files):
        out.append([])
        for row in rows:
            side = is_left(row)
            met = list(held(seen[not side], windows[not side], row, number, newest[side]))
            for other in met:
                pair = (row, other) if side else (other, row)
                out[-1].append({**left_of(pair[0]), **right_of(pair[1])})
            if not met and side in lonely:
                out[-1].append({"ln": None, "lat": None, "rn": None, "rat": None}
                               | (left_of(row) if side else right_of(row)))  # fmt: skip
            seen[side].append(Came(row, number))
        for side in (True, False):
            times = [row["at"] for row in rows if is_left(row) == side] + ([newest[side]] if newest[side] else [])
            newest[side] = max(times, default=None)
    return out


def held(came: list[Came], window: Any, row: Row, number: int, newest: dt.datetime | None) -> Iterator[Row]:
    mine = [one for one in came if one.row["user"] == row["user"]]
    if isinstance(window, int):
        yield from (one.row for one in mine[-window:])
    elif isinstance(window, dt.timedelta):
        for one in mine:
            at = one.row["at"]
            is_kept = one.file == number or newest is None or newest <= at + window
            if is_kept and at <= row["at"] <= at + window:
                yield one.row


def within_id(files: Files, lonely: bool) -> Files:
    out: Files = []
    nothing = {"ln": None, "lat": None, "rn": None, "rat": None}
    for rows in files:
        lefts, rights = ([row for row in rows if is_left(row) == side] for side in (True, False))
        met = [(a, b) for a in lefts for b in rights if a["user"] == b["user"]]
        out.append([{**left_of(a), **right_of(b)} for a, b in met])
        if lonely:
            out[-1] += [nothing | left_of(a) for a in lefts if not any(a is other for other, _ in met)]
            out[-1] += [nothing | right_of(b) for b in rights if not any(b is other for _, other in met)]
    return out


@case("join", "rows", declare_join(left_window=2, right_window=1))
def join_rows(files: Files) -> Files:
    return joined(files, {True: 2, False: 1})


@case("join", "durations", declare_join(left_window=WINDOW, right_window=PAUSE))
def join_durations(files: Files) -> Files:
    return joined(files, {True: WINDOW, False: PAUSE})


@case("join", "rows and duration", declare_join(left_window=2, right_window=WINDOW))
def join_mixed(files: Files) -> Files:
    return joined(files, {True: 2, False: WINDOW})


@case("join", "id", declare_join(left_window="id", right_window="id"))
def join_id(files: Files) -> Files:
    return within_id(files, lonely=False)


@case("join", "id outer", declare_join(kind="full", left_window="id", right_window="id"))
def join_id_outer(files: Files) -> Files:
    return within_id(files, lonely=True)


@case("join", "left", declare_join(kind="left", right_window=WINDOW))
def join_left(files: Files) -> Files:
    return joined(files, {True: None, False: WINDOW}, lonely=(True,))


@case("join", "right", declare_join(kind="right", left_window=2))
def join_right(files: Files) -> Files:
    return joined(files, {True: 2, False: None}, lonely=(False,))


@case("join", "latest", declare_join(kind="latest"))
def join_latest(files: Files) -> Files:
    return joined(files, {True: None, False: 1}, lonely=(True,))


BY_TIME = {
    "inner": Join(keys=("user",), low=-PAUSE, high=WINDOW, lateness=10 * MINUTE),
    "left": Join(keys=("user",), how="left", high=PAUSE, lateness=PAUSE),
    "right": Join(keys=("user",), how="right", low=-WINDOW, high=-MINUTE, lateness=5 * MINUTE),
    "full": Join(keys=("user",), how="full", low=-PAUSE, high=PAUSE, lateness=10 * MINUTE),
}


def by_time(files: Files, how: str) -> Files:
    sided = [[{**row, "side": "l" if is_left(row) else "r"} for row in rows] for rows in files]
    told = told_by(BY_TIME[how], sided)
    return [told.emitted[number] for number in range(len(files))]


def declare_by_time(how: str) -> Callable[[Streams, str], Any]:
    return lambda s, name: BY_TIME[how].declare(s.left, s.right, name)


@case("interval join", "inner", declare_by_time("inner"))
def interval_join(files: Files) -> Files:
    return by_time(files, "inner")


@case("interval join", "left", declare_by_time("left"))
def interval_join_left(files: Files) -> Files:
    return by_time(files, "left")


@case("interval join", "right", declare_by_time("right"))
def interval_join_right(files: Files) -> Files:
    return by_time(files, "right")


@case("interval join", "full", declare_by_time("full"))
def interval_join_full(files: Files) -> Files:
    return by_time(files, "full")
