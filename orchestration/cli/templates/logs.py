"""Access logs of a web server: a regular expression, totals by page, errors by minute, and lines that do not fit."""

from __future__ import annotations

from drainmark.orchestration.cli.templates.template import SETTINGS, Template

APPLICATION = '''\
"""Access logs of a web server: which pages are asked for, and when do they fail? Each file in `inbox` is one state."""

import drainmark as dm
from drainmark import F

# The common log format: client, identity, user, [time], "method path protocol", status, bytes.
REQUEST = r'^(\\S+) \\S+ \\S+ \\[([^\\]]+)\\] "(\\S+) ([^ ?"]+)[^"]*" (\\d{3}) (\\d+|-)'
MOMENT = "dd/MMM/yyyy:HH:mm:ss Z"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.log", format="text"))
def lines(scanned):
    return scanned  # a row a line: value, source_file, _sequence_id


@dm.functor  # row by row; the parameter names the upstream operator
def requests(lines):
    def part(group):
        return F.regexp_extract("value", REQUEST, group)

    return dm.select(
        lines.where(F.col("value").rlike(REQUEST)),
        F.try_to_timestamp(part(2), F.lit(MOMENT)).alias("asked_at"),  # null if it is not a valid time
        part(4).alias("path"),
        F.try_to_number(part(6), F.lit("999999999999")).cast("bigint").alias("bytes"),  # null for "-"
        F.when(part(5) >= "500", 1).otherwise(0).alias("is_error"),
    )


@dm.functor
def unread(lines):  # nothing is lost silently: lines of another form are in a table of their own
    return lines.where(~F.col("value").rlike(REQUEST))


@dm.filter
def failed(requests):
    return F.col("is_error") == 1


pages = dm.aggregate(
    requests,
    keys=["path"],
    values={"requests": dm.count(), "errors": dm.sum("is_error"), "bytes": dm.sum("bytes")},
    name="pages",
)
minutes = dm.aggregate(
    failed,
    keys=["path"],
    window=dm.tumbling("asked_at", minutes=1),  # by the time in the log; a minute that goes on in the next file grows
    values={"errors": dm.count()},
    name="minutes",
)

dm.sink(pages, dm.DeltaUpsert("pages", keys=["path"]))
dm.sink(minutes, dm.DeltaUpsert("error_minutes", keys=["path", "window_start"]))
dm.sink(unread, dm.DeltaAppend("unread_lines"))
'''

MORNING = """\
192.0.2.7 - - [31/Jan/2026:08:59:58 +0000] "GET / HTTP/1.1" 200 5120
192.0.2.7 - - [31/Jan/2026:08:59:59 +0000] "GET /basket?item=tea HTTP/1.1" 200 830
192.0.2.9 - ann [31/Jan/2026:09:00:01 +0000] "POST /order HTTP/1.1" 502 -
192.0.2.9 - ann [31/Jan/2026:09:00:40 +0000] "POST /order HTTP/1.1" 502 -
log rotated at 09:00:41
"""

NOON = """\
192.0.2.9 - ann [31/Jan/2026:09:00:52 +0000] "POST /order HTTP/1.1" 502 -
192.0.2.9 - ann [31/Jan/2026:09:03:10 +0000] "POST /order HTTP/1.1" 201 64
192.0.2.8 - - [31/Jan/2026:09:04:00 +0000] "GET / HTTP/1.1" 200 5120
"""

TEST = '''\
"""The application on the logs that came with it, and on one of a few lines.

`pip install 'drainmark[test]'`, and `pytest` runs them; `run_app` comes with Drainmark.
"""

from pathlib import Path

import drainmark as dm

APPLICATION = Path(__file__).parents[1] / "app.py"
FILES = {
    "a.log": '192.0.2.1 - - [31/Jan/2026:09:00:01 +0000] "GET /a HTTP/1.1" 500 -\\n',
    "b.log": '192.0.2.1 - - [31/Jan/2026:09:00:59 +0000] "GET /a HTTP/1.1" 503 7\\nno request\\n',
}


def test_a_minute_that_goes_on_in_the_next_file_is_one(run_app):
    result = run_app(APPLICATION, FILES)
    assert [row["errors"] for row in result.sink("error_minutes", at=1)] == [1]
    assert [row["errors"] for row in result.sink("error_minutes")] == [2]
    assert [row["value"] for row in result.sink("unread_lines")] == ["no request"]


def test_failures_do_not_show():
    steps = ["process.staged", "checkpoint.after_commit", "publish.before_commit"]  # without them: every step
    dm.testing.assert_exactly_once(APPLICATION, FILES, fail_points=steps, groupings=[1, "all"])
'''

TEMPLATE = Template(
    files={
        "app.py": APPLICATION,
        "drainmark.toml": SETTINGS,
        "inbox/1-morning.log": MORNING,
        "inbox/2-noon.log": NOON,
        "tests/test_app.py": TEST,
    },
    first_steps=(
        "drainmark run && drainmark show pages",
        "drainmark show error_minutes --at 1",
        "drainmark show unread_lines",
    ),
)
