"""Tables of the command line on terminals of any width, and in a pipe: no cell loses anything."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import eventually

from drainmark.jobs.errors import Halted
from drainmark.jobs.printable import columns_of, padded
from drainmark.jobs.regions.formatting import columns, trigger_noun
from drainmark.orchestration.cli import runs
from drainmark.orchestration.cli.terminal import output
from drainmark.orchestration.cli.terminal.tables import fitted, sentence
from drainmark.orchestration.workplace.workplace import open_application
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.seed("NU4")

HEADS = ["id", "trigger", "rows", "committed (UTC)", "checkpoint s", ""]
LONG = "2026-08-01T10-00-syslog-of-the-rack-in-the-cellar.log"
ROWS = [
    ["1", LONG, "40", "2026-11-25 22:16:01", "0.13", ""],
    ["12345", "a.log", "2000000", "2026-11-25 22:16:41", "", ""],
]


def printed(width: int, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table that a separate process prints on a terminal of the given width."""
    importing = "import json,sys\nfrom drainmark.orchestration.cli.terminal import output"
    code = f"{importing}\noutput.table(*json.loads(sys.argv[1]))"
    reader, writer = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "dumb"}
    command = [sys.executable, "-c", code, json.dumps([heads, rows])]
    subprocess.run(command, stdout=writer, env=environment, check=True)
    os.close(writer)
    text = b""
    try:
        while piece := os.read(reader, 65536):
            text += piece
    except OSError:  # on Linux, the end of the output
        pass
    os.close(reader)
    return text.decode().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits_and_no_short_cell_is_cut(width: int) -> None:
    lines = printed(width, HEADS, ROWS)
    assert max(map(len, lines)) <= width
    assert all(any(cell in line for line in lines) for row in ROWS for cell in row if len(cell) <= 20)
    (column,) = {line.index("2026-08") for line in lines if "2026-08" in line}
    width_of_it = fitted(HEADS[:-1], [row[:-1] for row in ROWS], width)
    assert width_of_it is not None
    folded = "".join(line[column : column + width_of_it[1]].strip() for line in lines[2:] if "a.log" not in line)
    assert LONG in folded


def test_a_terminal_that_is_too_narrow_gets_a_line_a_value() -> None:
    lines = printed(40, HEADS, ROWS)
    assert [line.split(maxsplit=1) for line in lines if line.startswith("trigger")] == [
        ["trigger", LONG],
        ["trigger", "a.log"],
    ]
    assert sum("2026-11-25 22:16" in line for line in lines) == 2


def test_a_pipe_gets_lines_without_rules_or_columns_that_are_empty(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(HEADS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["id", "trigger", "rows", "committed", "(UTC)", "checkpoint", "s"],
        ["1", LONG, "40", "2026-11-25", "22:16:01", "0.13"],
        ["12345", "a.log", "2000000", "2026-11-25", "22:16:41"],
    ]
    assert {line.index("2026-11-25") for line in lines[1:]} == {lines[0].index("committed")}


@pytest.mark.parametrize(
    ("uri", "folder", "shown"),
    [
        ("/srv/inbox/a/1.csv", "/srv/inbox", "a/1.csv"),
        ("s3://lake/in/1.csv", "s3://lake/in/", "1.csv"),
        ("/srv/inboxes/1.csv", "/srv/inbox", "/srv/inboxes/1.csv"),
        ("/srv/inbox/1.csv", None, "/srv/inbox/1.csv"),
        (None, "/srv/inbox", None),
    ],
)
def test_a_file_is_shown_from_the_folder_of_its_source_on(uri: str, folder: str, shown: str) -> None:
    assert output.short_file(uri, folder) == shown


DECLARED = """
import drainmark as dm

@dm.consistent({annotation})
@dm.source({source})
def read(scanned):
    return scanned

dm.sink(read, dm.DeltaAppend("copied"))
"""
FOLDER, TABLE = 'dm.DirectoryScan(path="in")', 'dm.ReplayableStart(schema="n int")'


@pytest.mark.parametrize(
    ("annotation", "source", "noun"),
    [
        ('trigger="operator-driven"', FOLDER, "file"),
        ('trigger="periodic", period=1', FOLDER, "slice"),
        ('trigger="operator-driven"', TABLE, "slice"),
    ],
)
def test_a_run_says_how_many_files_it_read_and_calls_no_slice_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], annotation: str, source: str, noun: str
) -> None:
    path = tmp_path / "app.py"
    path.write_text(DECLARED.format(annotation=annotation, source=source))
    (region,) = open_application(str(path)).plan.regions
    entry = {"region": region.name, "outcome": "processed", "seconds": 1.0, "committed_sequence_id": 1}
    for number, rows in ((1, 1), (2, 0)):
        counts = {"triggers": number, "groups": number, "rows_in": rows, "refused": [], "unsettled": 0}
        counts["rows_quarantined"] = number - 1
        summary = {"regions": [entry | counts], "autonomous": []}
        runs._say_summary(summary, {region.name: trigger_noun(region)})
    said, noted = capsys.readouterr()
    assert noted == f"{region.name}: 1 row was quarantined: drainmark quarantine list {region.name}\n"
    assert [line.split(", 1.0 s")[0] for line in said.splitlines()] == [
        f"{region.name}: 1 {noun} in 1 group, 1 row",
        f"{region.name}: 2 {noun}s in 2 groups, 0 rows",
    ]


def test_a_log_has_a_word_about_each_slow_start_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one may have come long ago: after its loss a run would be silent for a minute."""
    monkeypatch.setattr(runs, "_PATIENCE_SECONDS", 0.0)
    said: list[str] = []
    monkeypatch.setattr(output, "note", said.append)
    engine = SimpleNamespace(tell=lambda text: None)
    with runs._patience(engine) as heard:  # type: ignore[arg-type]
        eventually(lambda: said, "a word about the start")
        heard()
        engine.tell("starting Spark (local[*]) …")
        eventually(lambda: len(said) == 2, "a word about the second start")
        engine.tell("registering …")
    assert said == ["after 0 s: working on the first group …", "after 0 s: starting Spark (local[*]) …"]


def test_a_long_cell_has_lines_of_its_own_below_its_row_where_columns_are_too_narrow() -> None:
    """A reason is read in sentences, and not in columns of twelve letters."""
    why = "code 12345678 (priced, totals), replaced by 17: the prices of that day were wrong, and came again on Monday"
    rows = [["1", LONG, "1..12", "40", "2026-11-25 22:16:01", "0.13", ""]]
    rows += [["2", "a.log", "1..12", "7", "2026-11-25 22:16:41", "", why]]
    lines = printed(80, ["id", "trigger", "group", "rows", "committed (UTC)", "checkpoint s", ""], rows)
    assert lines[2:] == [
        "1   1..12  40    2026-11-25 22:16:01  0.13",
        f"    trigger: {LONG}",
        "2   1..12  7     2026-11-25 22:16:41",
        "    trigger: a.log",
        "    code 12345678 (priced, totals), replaced by 17: the prices of that day were",
        "    wrong, and came again on Monday",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_sentence_is_broken_between_words_and_a_command_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    skip = "drainmark skip shop/orders --file /srv/inbox/orders-17.csv --reason 'cut off'"
    text = f"shop/orders failed three times in a row, and waits for you: drainmark resume shop/orders, or: {skip}"
    assert sentence(text, io.StringIO()) == text, "a log has one line"
    assert sentence(text, Terminal()).splitlines() == [
        "shop/orders failed three times in a row,",
        "  and waits for you:",
        "  drainmark resume shop/orders",
        f"  {skip}",
    ]
    chain = f"waits: drainmark reset shop/orders --to 12 --yes && {skip}"
    assert sentence(chain, Terminal()).splitlines() == ["waits:", f"  {chain.partition(': ')[2]}"]


WIDE = ["日本語の店の注文", "👍🏽 한국어", "cafe\u0301", "plain"]


def test_wide_letters_and_marks_count_as_the_columns_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `rich`, which draws the tables, too; a terminal would break a longer line itself, in the middle of a word."""
    assert [columns_of(text) for text in WIDE] == [16, 9, 4, 5]
    assert [columns_of(padded(text, 20)) for text in WIDE] == [20] * 4
    monkeypatch.setenv("COLUMNS", "40")
    lines = sentence(f"{' '.join(WIDE[:2])} {' '.join(WIDE[:2])} {WIDE[2]} {WIDE[3]}", Terminal()).splitlines()
    assert lines == ["日本語の店の注文 👍🏽 한국어", "  日本語の店の注文 👍🏽 한국어 cafe\u0301 plain"]
    assert [columns_of(line) for line in lines] == [26, 39]
    fits = "e\u0301" * 40
    assert sentence(fits, Terminal()) == fits
    assert columns([["日本", "a"], ["abc", "b"]], indent=0) == ["日本  a", "abc   b"]


def test_the_columns_of_a_table_of_wide_letters_begin_below_each_other() -> None:
    heads, rows = ["名前", "n"], [[f"{name} {name}", "7"] for name in WIDE]
    lines = printed(44, heads, rows)
    begins = [line.removesuffix(sign) for line in lines for sign in "7n" if line.endswith(f" {sign}")]
    assert (len(begins), len(set(map(columns_of, begins)))) == (5, 1)
    assert max(map(columns_of, printed(30, heads, rows))) <= 30


@pytest.mark.parametrize("as_json", [False, True])
def test_the_cause_of_a_halt_is_told_to_people_once_and_is_in_json_always(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def halt() -> None:
        with runs._watched(SparkEngine("local[1]", {}, Path()), {}, as_json=as_json) as watch:
            watch.on_note("app/lines: failure 1: no such day [priced]; again in 1 s")
            raise Halted("app/lines is halted: failed 2 times: no such day", cause="no such day")

    with pytest.raises(Halted) as halted:
        halt()
    output.complain(halted.value, as_json=as_json)
    assert capsys.readouterr().err.count("no such day") == (2 if as_json else 1)
