"""A word count, with tests that make it fail and recover: the project that `init` writes by default."""

from __future__ import annotations

from drainmark.orchestration.cli.templates.template import SETTINGS, Template

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
"""The application on files in memory: what it counts, that failures do not show, that it can be taken back.

`pip install 'drainmark[test]'`, and `pytest` runs them; `run_app` comes with Drainmark. The first test pays for the
start of Spark.
"""

from pathlib import Path

import drainmark as dm

APPLICATION = Path(__file__).parents[1] / "app.py"
FILES = {"a.txt": "to be or not to be\\n", "b.txt": "to do\\n", "c.txt": "be kind\\n"}


def counts(rows):
    return {row["word"]: row["count"] for row in rows}


def test_each_file_is_one_consistent_state(run_app):
    result = run_app(APPLICATION, FILES)
    assert counts(result.sink("word_counts", at=1)) == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert counts(result.sink("word_counts", at=2)) == {"to": 3, "be": 2, "or": 1, "not": 1, "do": 1}
    assert counts(result.sink("word_counts")) == {"to": 3, "be": 3, "or": 1, "not": 1, "do": 1, "kind": 1}


def test_failures_do_not_show():
    steps = ["process.staged", "checkpoint.after_commit", "publish.before_commit"]  # without them: every step
    dm.testing.assert_exactly_once(APPLICATION, FILES, fail_points=steps, groupings=[1, "all"])


def test_it_can_be_taken_back_and_replayed(run_app):
    result = run_app(APPLICATION, FILES)
    everything = result.sink("word_counts")
    result.rewind(to=1)
    assert counts(result.sink("word_counts")) == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert result.run().sink("word_counts") == everything
'''

TEMPLATE = Template(
    files={
        "app.py": APPLICATION,
        "drainmark.toml": SETTINGS,
        "inbox/hamlet.txt": "to be or not to be\n",
        "tests/test_app.py": TEST,
    },
    first_steps=("drainmark run && drainmark show word_counts",),
)
