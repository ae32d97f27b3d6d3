"""The operator that an error names: the one whose own rows cannot be computed, not the one that asked for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import opened, run_once, settle

from drainmark.jobs.errors import OperatorFailed
from drainmark.orchestration.workplace.workplace import Workplace

pytestmark = pytest.mark.spark

APPLICATION = """
import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema="k string, v string"))
def lines(scanned):
    return scanned


@dm.functor(vectorised=True)
def named(lines):
    return dm.select(lines, F.upper("k").alias("k"), "v")


@dm.functor(vectorised=True)
def made(named):
    return dm.select(named, "k", {cast})


@dm.filter
def kept(made):
    return {condition}


{more}
"""

SINK = 'dm.sink(kept, dm.DeltaAppend("out"))'
TOTALS = """
totals = dm.aggregate(kept, keys=["k"], values={"v": dm.sum("v")}, name="totals")
dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))
"""
TWO = f"{SINK}\ndm.sink(made, dm.DeltaAppend('all'), name='all_sink')"

CAST = 'F.col("v").cast("int").alias("v")'
PLAIN = 'F.length("v").alias("v")'
POSITIVE = 'F.col("v") > 0'
DIVIDES = 'F.lit(1) / (F.col("v") - 1) > 0'


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(
    ("parts", "blamed"),
    [
        ((CAST, POSITIVE, SINK), "made"),
        ((CAST, POSITIVE, TOTALS), "made"),
        ((CAST, POSITIVE, TWO), "made"),
        ((PLAIN, DIVIDES, SINK), "kept"),
        ((PLAIN, DIVIDES, TOTALS), "kept"),
    ],
)
def test_an_expression_that_fails_is_blamed_on_its_operator(
    workplace: Workplace, tmp_path: Path, few: bool, parts: tuple[str, str, str], blamed: str
) -> None:
    cast, condition, more = parts
    (tmp_path / "app.py").write_text(APPLICATION.format(cast=cast, condition=condition, more=more))
    inbox = tmp_path / "in"
    inbox.mkdir()
    (inbox / "a.csv").write_text("a,x\n")
    settle(inbox)
    if not few:
        workplace.settings.__dict__["small_group_bytes"] = 0
    with pytest.raises(OperatorFailed) as raised:
        run_once(workplace, opened(tmp_path / "app.py", inbox))
    assert raised.value.operator == blamed
    assert f"operator {blamed!r} failed" in str(raised.value)
    line = (tmp_path / "app.py").read_text().splitlines()[raised.value.location.line - 1]
    assert line.startswith(("@dm", f"def {blamed}")) or blamed in line


HANDLER = """
from dataclasses import dataclass, field
from threading import Lock

import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema="k string"))
def lines(scanned):
    return scanned


@dm.operator(output="k string")
{handler}
    def process(self, lines, context):
        return lines.select(["k"])


dm.sink(Handled, dm.DeltaAppend("out"))
"""


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        ("class Handled(dm.StateHandler):\n    def __init__(self, k):\n        self.k = k\n", "'k'"),
        ("class Handled(dm.StateHandler):\n    def __init__(self):\n        open('/no/file')\n", "/no/file"),
        ("@dataclass(frozen=True)\nclass Handled(dm.StateHandler):\n    n: int = 0\n", "'lock'"),
        (
            "@dataclass\nclass Handled(dm.StateHandler):\n    n: object = field(default_factory=Lock)\n",
            "lock",
        ),
    ],
    ids=["argument", "error", "frozen", "no copy"],
)
def test_a_class_that_makes_no_handler_is_blamed(workplace: Workplace, tmp_path: Path, handler: str, why: str) -> None:
    (tmp_path / "app.py").write_text(HANDLER.format(handler=handler))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a\n")
    settle(tmp_path / "in")
    with pytest.raises(OperatorFailed, match="'handled' failed in __init__") as raised:
        run_once(workplace, opened(tmp_path / "app.py", tmp_path / "in"))
    assert why in str(raised.value)
    assert raised.value.location is not None
