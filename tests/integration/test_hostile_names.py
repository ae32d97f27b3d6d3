"""Names and values that are commands, of a terminal or of SQL, and twins that only their bytes tell apart."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

import drainmark as dm
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.seed("RT12")]

ESCAPES = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e"
FILES = (
    f"1{ESCAPES}.csv", "2'; drop table drainmark_trigger; --.csv", unicodedata.normalize("NFC", "3é.csv"),
    unicodedata.normalize("NFD", "3é.csv"), "4[red]%s{0}.csv", "5*?.csv",
)  # fmt: skip
KEY, TWIN = "k' or 1=1 --", unicodedata.normalize("NFD", "é")
COLUMNS = (KEY, "é", TWIN, "[bold]v[/bold]")


def app() -> None:
    schema = ", ".join(f"`{name}` {'bigint' if name == COLUMNS[-1] else 'string'}" for name in COLUMNS)

    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema=schema))
    def rows(scanned: Any) -> Any:
        return scanned

    totals = dm.aggregate(rows, keys=[KEY, TWIN], values={"total": dm.sum(f"`{COLUMNS[-1]}`")}, name="totals")
    dm.sink(totals, dm.DeltaUpsert("totals", keys=[KEY, TWIN]))
    dm.sink(rows, dm.DeltaAppend("rows"))


def written(result: Result, name: str, text: str) -> None:
    path = result.home.parent / "inbox" / "rows" / name
    path.write_text(text)
    os.utime(path, (1e9, 1e9))


def test_they_are_read_kept_apart_and_shown_without_effect(
    run_app: Callable[..., Result], capfd: pytest.CaptureFixture[str]
) -> None:
    result = run_app(app, {"0.csv": "plain,x,y,1\n"})
    for number, name in enumerate(FILES):
        written(result, name, f"'; select 1; --{ESCAPES},é,{TWIN},{number}\n{ESCAPES}bad,line\n")
    result.run()
    found = result.sink("totals", ids=True)
    assert [(row[KEY], row["total"]) for row in found if row[KEY] != "plain"] == [(f"'; select 1; --{ESCAPES}", 15)]
    assert [row[TWIN] for row in found] == [TWIN, "y"]
    rows = result.sink("rows")
    assert len(rows) == 1 + len(FILES)
    assert {os.path.basename(row["source_file"]) for row in rows} == {"0.csv", *FILES}
    assert {(row["é"], row[TWIN]) for row in rows} == {("x", "y"), ("é", TWIN)}
    newest = result.history[-1]["trigger"]
    result.close()
    capfd.readouterr()
    verbs = (
        ["history", "app"], ["status", "app"], ["show", "totals"], ["show", "rows"], ["show", "app_quarantine"],
        ["trace", "app/rows", "--file", newest], ["trace", "app/rows", "--sequence", "2"], ["doctor"],
        ["quarantine", "list", "app/rows"], ["reset", "app/rows", "--to", "0"], ["skip", "app/rows", "--file", ESCAPES,
        "--reason", ESCAPES], ["reset", "app/rows", "--to-file", ESCAPES], ["show", ESCAPES], ["status", ESCAPES],
    )  # fmt: skip
    for verb in verbs:
        for more in ([], ["--json"]):
            code = invoke([*verb, *more, "--home", str(result.home)])
            told = capfd.readouterr()
            obeyed = [each for each in told.out + told.err if each not in "\n\t" and not each.isprintable()]
            assert not obeyed, (verb, code, obeyed)
            assert told.out or told.err, (verb, code)
