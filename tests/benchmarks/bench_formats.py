"""Part `formats`: rows a second a core that a minimal region reads from files of each format into an append table.

A case is a folder of files that are alike, read in bulk by tasks: CSV and JSON of plain values, with quotes, nested,
compressed, text, Parquet. In the `odd` cases every tenth record is odd but good (escaped quotes, numbers in text
columns, spaces around values), and every hundredth is bad: they show what a file costs that a cheap look cannot read.

The time is that of the groups, from the claim to the last publish, in a process that has read the case before. It
leaves out Spark's start, scan, analysis and hand-over. `formats_cpu_…` divides by the CPU seconds of the run, Spark's
JVM and its Python workers instead: the figure to look at if the machine has other work.

`--against PATH` names another checkout, with a `.venv` of its own. Both read the same files in turns, and
`formats_ratio_<case>` is the speed of this checkout over that of the other one.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from bench_input import WrongResult
from bench_results import Figures, ratios, spread
from rich.console import Console
from rich.table import Table

_JOB = Path(__file__).with_name("formats_job.py")
_CHECKOUT = Path(__file__).parents[2]
_FILES = (10, 2)
_RECORDS = (30_000, 2_000)
"""Files of a case and records of a file, by default and with `--quick`."""

_ODD, _BAD = 10, 100
_SCHEMA = "id bigint, k string, amount double, price decimal(10,2), day date, at timestamp, note string"
_NESTED = (
    "id bigint, k string, tags array<string>, buyer struct<name string, since date, city string>,"
    " items array<struct<sku string, n int, price decimal(10,2)>>, notes map<string,string>"
)
_APP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven", group_timeout=1800)
@dm.source(dm.DirectoryScan(path="inbox", format={format!r}, schema={schema!r}, options={options!r}, settle=0))
def rows(scanned):
    return scanned.drop("source_file")


dm.sink(rows, dm.DeltaAppend("out"))
"""

Record = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Files that are alike.

    Attributes:
        suffix: of the files; `.gz` compresses them.
        written: takes records; returns the content of a file, before it is compressed.
        share: the records of a file over those of other cases.
        is_odd: every tenth record is odd, every hundredth is bad.
    """

    name: str
    suffix: str
    written: Callable[[Sequence[Record]], bytes]
    schema: str | None = _SCHEMA
    options: Mapping[str, str]
    share: float = 1.0
    is_odd: bool = False

    @property
    def format(self) -> str:
        return self.suffix.split(".")[1].replace("txt", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The folder of a case, its application, and what a run over it must leave."""

    case: Case
    application: Path
    inbox: Path
    size: int
    good: int
    bad: int
    ids: int

    @property
    def records(self) -> int:
        return self.good + self.bad


def _csv(records: Sequence[Record], quoting: Any = csv.QUOTE_MINIMAL) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator="\n").writerows(records)
    return text.getvalue().encode()


def _quoted_csv(records: Sequence[Record]) -> bytes:
    return _csv([(*record[:-1], f"{record[-1]}, {record[1]}") for record in records], csv.QUOTE_NONNUMERIC)


def _odd_csv(records: Sequence[Record]) -> bytes:
    """Write records whose every tenth has quotes in quotes, a number as text, or spaces; every hundredth no number."""
    lines = [list(record) for record in records]
    for number in range(0, len(lines), _ODD):
        lines[number][-1] = (f'a "{number}", with\tquotes', number, f"  note {number} ")[number // _ODD % 3]
    for number in range(0, len(lines), _BAD):
        lines[number][0] = f"x{number}"
    return _csv(lines)


def _members(record: Record) -> dict[str, Any]:
    number, key, amount, price, day, moment, note = record
    return {"id": number, "k": key, "amount": amount, "price": float(price), "day": day, "at": moment, "note": note}


def _json(records: Sequence[Record]) -> bytes:
    return "".join(f"{json.dumps(_members(record))}\n" for record in records).encode()


def _odd_json(records: Sequence[Record]) -> bytes:
    """Write records whose every tenth has escapes, a number as text, or spaces; every hundredth ends too early."""
    lines = []
    for number, record in enumerate(records):
        line = json.dumps(_members(record))
        if number % _ODD == 0:
            note: Any = (f'a "{number}" \\ é', number / 4, f"  note {number} ")[number // _ODD % 3]
            line = json.dumps(_members((*record[:-1], note)), separators=(" ,  ", " : "))
        lines.append(line[:-9] if number % _BAD == 0 else line)
    return "".join(f"{line}\n" for line in lines).encode()


def _nested_json(records: Sequence[Record]) -> bytes:
    nested = (
        {
            "id": number,
            "k": key,
            "tags": [key, day],
            "buyer": {"name": note, "since": day, "city": key},
            "items": [{"sku": f"{key}-{n}", "n": n, "price": float(price)} for n in range(3)],
            "notes": {"at": moment, "note": note},
        }
        for number, key, _, price, day, moment, note in records
    )
    return "".join(f"{json.dumps(each)}\n" for each in nested).encode()


def _text(records: Sequence[Record]) -> bytes:
    return "".join(f"{' '.join(map(str, record))}\n" for record in records).encode()


def _parquet(records: Sequence[Record]) -> bytes:
    names = [field.split()[0] for field in _SCHEMA.split(", ")]
    columns = dict(zip(names, map(pa.array, zip(*records, strict=True)), strict=True))
    types = {"price": pa.decimal128(10, 2), "day": pa.date32(), "at": pa.timestamp("us", "UTC")}
    content = pa.BufferOutputStream()
    pq.write_table(
        pa.table({name: column.cast(types.get(name, column.type)) for name, column in columns.items()}), content
    )
    return content.getvalue().to_pybytes()


_DOUBLED = {"escape": '"'}
CASES = (
    Case(name="csv", suffix=".csv", written=_csv, options={}),
    Case(name="csv_quoted", suffix=".csv", written=_quoted_csv, options=_DOUBLED),
    Case(name="csv_gzip", suffix=".csv.gz", written=_csv, options={}),
    Case(name="csv_odd", suffix=".csv", written=_odd_csv, options=_DOUBLED, is_odd=True),
    Case(name="json", suffix=".json", written=_json, options={}),
    Case(name="json_nested", suffix=".json", written=_nested_json, schema=_NESTED, options={}, share=0.4),
    Case(name="json_gzip", suffix=".json.gz", written=_json, options={}),
    Case(name="json_odd", suffix=".json", written=_odd_json, options={}, is_odd=True),
    Case(name="text", suffix=".txt", written=_text, schema=None, options={}),
    Case(name="parquet", suffix=".parquet", written=_parquet, options={}),
)


def records_of(count: int) -> Iterator[Record]:
    """Yield records of `_SCHEMA`, as texts and numbers."""
    chance = random.Random(7)
    for number in range(count):
        cents, day = chance.randrange(10_000_000), f"2026-{number % 12 + 1:02d}-{number % 28 + 1:02d}"
        moment = f"{day}T{number % 24:02d}:{number % 60:02d}:{cents % 60:02d}.{cents:07d}"[:26] + "Z"
        yield number, f"k{cents % 100:02d}", cents / 7, f"{cents / 100:.2f}", day, moment, f"note {cents:07d}"


def write(case: Case, folder: Path, files: int, records: Sequence[Record]) -> Input:
    """Write the files of a case, all with the same content, and its application."""
    chosen = records[: int(len(records) * case.share)]
    content = case.written(chosen)
    if case.suffix.endswith(".gz"):
        content = gzip.compress(content, 6)
    inbox, application = folder / "inbox", folder / "app.py"
    inbox.mkdir(parents=True)
    for number in range(files):
        (inbox / f"{number:03d}{case.suffix}").write_bytes(content)
    application.write_text(_APP.format(format=case.format, schema=case.schema, options=dict(case.options)))
    bad = [record[0] for record in chosen[::_BAD]] if case.is_odd else []
    ids = 0 if case.schema is None else sum(record[0] for record in chosen) - sum(bad)
    return Input(
        case=case,
        application=application,
        inbox=inbox,
        size=files * len(content),
        good=files * (len(chosen) - len(bad)),
        bad=files * len(bad),
        ids=files * ids,
    )


class Reader:
    """A process that reads folders by the code of a checkout."""

    def __init__(self, name: str, checkout: Path, root: Path, master: str, conf: Sequence[str]) -> None:
        self.name = name
        self._log = root / "log"
        root.mkdir()
        python = Path(sys.executable) if checkout == _CHECKOUT else checkout / ".venv/bin/python"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(_JOB), str(root), master, *conf], cwd=checkout, stderr=log, text=True,
                env={**os.environ, "PYTHONPATH": str(checkout)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip

    def read(self, given: Input) -> dict[str, float]:
        """Read a folder; return the answer of `formats_job`.

        Raises:
            RuntimeError: the process ended; the message has the end of its log.
            WrongResult: the tables have other rows than the files.
        """
        request = json.dumps({"application": str(given.application), "inbox": str(given.inbox)})
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended at {given.case.name}: {self._log.read_text()[-3000:]}")
        answer: dict[str, float] = json.loads(line)
        found, expected = (answer["rows"], answer["bad"], answer["ids"]), (given.good, given.bad, given.ids)
        if found != expected:
            msg = f"{self.name}, {given.case.name}: rows, bad rows and sum of ids are {found}, expected {expected}"
            raise WrongResult(msg)
        return answer

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def measure(
    console: Console, *, quick: bool, root: Path, rounds: int, against: Path | None, master: str, conf: Sequence[str]
) -> Figures:
    """Read every case in each round; return rows a second a core, and ratios if there is another checkout.

    Args:
        against: another checkout, whose code runs in turns with that of this one.
        conf: `KEY=VALUE`, Spark settings for all.

    Raises:
        WrongResult: a table has other rows than the files.
    """  # fmt: skip
    files, records = _FILES[quick], list(records_of(_RECORDS[quick]))
    checkouts = {"this checkout": _CHECKOUT} | ({"the other": Path(against).resolve()} if against else {})
    figures: Figures = {}
    with ExitStack() as stack:
        readers = []
        for name, checkout in checkouts.items():
            console.print(f"{name}: {_commit(checkout)}", highlight=False)
            readers.append(Reader(name, checkout, root / f"reader-{len(readers)}", master, conf))
            stack.callback(readers[-1].close)
        table = _table(len(readers) > 1)
        for case in CASES:
            given = write(case, root / case.name, files, records)
            with console.status(f"{case.name} …"):
                answers = _in_turns(readers, given, rounds)
            figures |= _figures(given, answers)
            table.add_row(*(line := [*_line(given, figures)]))
            console.print(f"[dim]{', '.join(line)}[/dim]", highlight=False)
        console.print(table)
    return figures


def _in_turns(readers: Sequence[Reader], given: Input, rounds: int) -> list[list[dict[str, float]]]:
    """Return the answers of each reader, round by round, after a run of each that does not count."""
    answers: list[list[dict[str, float]]] = [[] for _ in readers]
    for number in range(rounds + 1):
        for place, reader in list(enumerate(readers))[:: -1 if number % 2 else 1]:
            answer = reader.read(given)
            if number:
                answers[place].append(answer)
    return answers


def _figures(given: Input, answers: Sequence[Sequence[Mapping[str, float]]]) -> Figures:
    """Return the figures of a case, see the module."""
    name, figures = given.case.name, Figures()
    for kind, prefix, seconds in (("rows_core_second", "", _core_seconds), ("cpu_rows_second", "cpu_", _cpu_seconds)):
        ours, *others = ([seconds(answer) for answer in each] for each in answers)
        figures |= spread(f"formats_{kind}_{name}", [given.records / each for each in ours], digits=0)
        if others:
            ratio, by_round = ratios(ours, {"the other": others[0]})
            figures |= {**spread(key := f"formats_{prefix}ratio_{name}", by_round), key: round(ratio, 3)}
    return figures


def _core_seconds(answer: Mapping[str, float]) -> float:
    return answer["seconds"] * answer["cores"]


def _cpu_seconds(answer: Mapping[str, float]) -> float:
    return answer["cpu"]


def _table(has_other: bool) -> Table:
    table = Table(title="Files of each format into an append table", title_justify="left")
    against = ("against the other", "by CPU") if has_other else ()
    for column in ("", "rows", "MB", "rows/s a core", "rows a CPU second", *against):
        table.add_column(column, justify="right" if column else "left")
    return table


def _line(given: Input, figures: Figures) -> Iterator[str]:
    name = given.case.name
    yield name
    yield f"{given.records:,}"
    yield f"{given.size / 1e6:.1f}"
    for kind in ("rows_core_second", "cpu_rows_second"):
        key = f"formats_{kind}_{name}"
        yield f"{figures[key]:,.0f} ({figures[f'{key}_low']:,.0f} to {figures[f'{key}_high']:,.0f})"
    for kind in ("ratio", "cpu_ratio"):
        key = f"formats_{kind}_{name}"
        if key in figures:
            yield f"{figures[key]:.2f} ({figures[f'{key}_low']:.2f} to {figures[f'{key}_high']:.2f})"


def _commit(checkout: Path) -> str:
    """Return the commit of a checkout, and whether it has changes."""
    git = ["git", "-C", str(checkout)]
    commit = subprocess.run([*git, "log", "-1", "--format=%h %s"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return commit.stdout.strip() + (" (changed)" if changed.stdout else "")
