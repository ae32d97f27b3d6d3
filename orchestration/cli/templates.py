"""The files that `init` writes; text in Python, so that an installed package has them without further ado."""

from __future__ import annotations

APPLICATION = '''\
"""Word count: how often each word stands in the files that arrived in `inbox` so far."""

import drainmark as dm
from drainmark import F


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.txt", format="text"))
def lines(scanned):
    return scanned  # value, source_file, _sequence_id


@dm.functor  # row-wise; the parameter names the upstream operator
def words(lines):
    return dm.select(lines, F.explode(F.regexp_extract_all(F.lower("value"), F.lit("[a-z]+"), 0)).alias("word"))


counts = dm.aggregate(words, keys=["word"], values={"count": dm.count()})
dm.sink(counts, dm.DeltaUpsert("word_counts", keys=["word"]))
'''

TEST = '''\
"""Runs the application as the command line does, in a home of its own, and looks at the result."""

import json
import subprocess
import sys
from pathlib import Path

APPLICATION = Path(__file__).parents[1] / "app.py"


def drainmark(home, *arguments):
    command = [sys.executable, "-m", "orchestration.cli.main", *map(str, arguments), "--home", str(home), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_each_file_is_one_consistent_state(tmp_path):
    inbox, home = tmp_path / "inbox", tmp_path / "home"
    inbox.mkdir()
    (inbox / "a.txt").write_text("to be or not to be\\n")
    (inbox / "b.txt").write_text("to do\\n")

    drainmark(home, "run", APPLICATION, "--input", inbox)

    first = {row["word"]: row["count"] for row in drainmark(home, "show", "word_counts", "--at", 1)}
    both = {row["word"]: row["count"] for row in drainmark(home, "show", "word_counts")}
    assert first == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert both == {"to": 3, "be": 2, "or": 1, "not": 1, "do": 1}
'''

SETTINGS = """\
# Drainmark's settings. Flags win over DRAINMARK_* variables, and those over this file.
# DRAINMARK_HOME is `.drainmark` beside this file unless said otherwise.
applications = ["app.py"]  # what `drainmark dev` runs
"""

FILES = {"app.py": APPLICATION, "drainmark.toml": SETTINGS, "tests/test_app.py": TEST}
"""Path below the project -> text."""
