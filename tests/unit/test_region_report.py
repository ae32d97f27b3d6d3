"""The content of a region's page, as values and as HTML: complete, bounded, and no name becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from report_rows import FOLDER, REGION, Script, eventful

from drainmark.jobs.printable import shell_word
from drainmark.orchestration.html_report.page import page
from drainmark.orchestration.html_report.timeline import MARKS
from drainmark.orchestration.inspection.desk_links import dagster_name

_VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """A strict parser of a page: tags must be closed in order. It keeps the tags and all texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text.replace("<wbr>", ""))  # a possible line break inside a long name does not divide the text
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def count(self, tag: str, style: str) -> int:
        return sum(name == tag and style in (found.get("class") or "").split() for name, found in self.tags)


@pytest.mark.seed("E23")
def test_groups_have_their_seconds_rows_and_bytes_by_step() -> None:
    script = Script()
    script.claim("none")
    script.group()
    script.group(3, bad=4)
    script.note(outcome="clean")
    report = script.report()
    told = ("first_id", "last_id", "states", "rows_in", "rows_quarantined", "bytes_in", "process_seconds",
            "drain_seconds", "checkpoint_seconds", "publish_seconds", "rows_per_second", "waited_seconds")  # fmt: skip
    assert [[group[name] for name in told] for group in report["groups"]] == [
        [1, 1, 1, 10, 0, 50, 1.0, 0.25, 0.05, 0.125, 8.0, pytest.approx(30, abs=0.01)],
        [2, 4, 3, 30, 4, 150, 1.0, 0.25, 0.05, 0.125, 24.0, pytest.approx(30, abs=0.01)],
    ]
    assert report["groups"][1]["written_bytes"] == {"sinks": 0, "states": 300, "images": 0}
    assert report["summary"]["rows_in"] == {"count": 2, "min": 10, "median": 20, "p95": 30, "max": 30}
    assert report["summary"]["throughput"] == {
        "rows_per_second": 16.0, "bytes_per_second": 80.0, "states_per_hour": pytest.approx(180)
    }  # fmt: skip
    assert {table["table"]: (table["rows"], table["version"]) for table in report["tables"]} == {
        "state/word_count/words_by_word": (12, None), "lake/word_counts": (12, 7),
        "lake/word_count_quarantine": (0, None),
    }  # fmt: skip
    assert report["operator_rows"] == {"words_by_word": 12, "word_counts_sink": 12, "lines": 40}
    assert [each["sequence_id"] for each in report["quarantine"]] == [2]


def test_what_happened_stands_behind_the_group_after_which_it_happened() -> None:
    report = eventful().report()
    assert [(event["kind"], event["after_id"]) for event in report["events"]] == [
        ("failed", 4), ("crashed", 4), ("interrupted", 6), ("deploy", 6), ("rewind", 6), ("halt", 8), ("resume", 8),
        ("skip", 9), ("refused", 9),
    ]  # fmt: skip
    assert {event["kind"] for event in report["events"]} == set(MARKS), "every mark is shown here"
    failed, rewind = report["events"][0], report["events"][4]
    assert (failed["operator"], failed["location"], failed["file"]) == ("words", "app.py:7", f"{FOLDER}/f5")
    assert (failed["message"], rewind["to"]) == ("ValueError: no", 4)
    assert [(group["last_id"], group["withdrawn"]) for group in report["groups"]] == [
        (1, 0), (4, 0), (6, 2), (8, 0), (9, 0), (10, 0)
    ]  # fmt: skip
    assert [state["sequence_id"] for state in report["states"] if state["is_withdrawn"]] == [5, 6]
    assert report["totals"]["rewinds"] == report["totals"]["halts"] == report["totals"]["skipped"] == 1


def test_a_group_that_was_not_read_whole_is_left_out() -> None:
    script = Script()
    script.claim("none")
    script.group(5)
    script.group(2)
    report = script.report(skipped=3)
    assert [group["first_id"] for group in report["groups"]] == [6]
    assert [state["sequence_id"] for state in report["states"]] == [3, 4, 5, 6, 7]


def test_no_more_is_shown_however_much_happened() -> None:
    """The page after a year is as large as the page after a day."""
    sizes = []
    for groups in (60, 600):
        script = Script()
        script.claim("none")
        for _ in range(groups):
            script.group()
            script.note(outcome="failed", error={"message": "no"})
            script.claim("failed")
        report = script.report(last=50)
        assert [len(report[name]) for name in ("groups", "states", "events")] == [50, 50, 50]
        assert report["groups"][-1]["last_id"] == groups
        sizes.append(len(page(report)))
    assert sizes[1] < sizes[0] * 1.1


def test_the_page_shows_each_group_mark_and_state_once() -> None:
    report = eventful().report(lags={"lake/word_counts": 8})
    found = Outline(page(report))
    assert found.count("rect", "reader") == len(report["groups"])
    assert found.count("g", "mark") == len(report["events"]) + len(MARKS), "and in the legend"
    assert found.count("path", "arc") == found.count("rect", "gone") - 1 == 1
    assert found.count("tr", "withdrawn") == 2
    assert found.count("g", "operator") == len(report["graph"]["operators"])
    for text in (REGION, "STARTED", "a run failed", "rewound to 4", "ValueError: no", "words, app.py:7", "cut off",
                 "lagging: lake/word_counts", "60 rows in", "4 bad", "lake/word_count_quarantine"):  # fmt: skip
        assert text in found.text, text


def test_a_halted_region_says_why_and_what_to_type() -> None:
    script = Script()
    script.claim("none")
    script.group()
    script.add(script.rows[0].kind.HALT, reason="disk is full", error={"message": "No space", "operator": "words"})
    found = Outline(page(script.report()))
    assert found.count("div", "halted") == 1
    for text in ("HALTED", "disk is full", "No space", f"drainmark resume {REGION}"):
        assert text in found.text
    assert "playground" not in page(script.report())


def test_a_remedy_is_linked_to_the_desk_of_a_known_dagster() -> None:
    """The verb and its options are filled in; a name in it cannot leave the address."""
    script = Script()
    script.claim("none")
    script.group()
    file = "a'\"><b>.csv"
    remedies = [f"drainmark skip {REGION} --file {shell_word(file)} --reason …", "drainmark status"]
    script.add(script.rows[0].kind.HALT, reason="bad", error={"message": "No", "operator": "words"})
    found = Outline(page(script.report(remedies=remedies), "https://dagster.example/"))
    (link,) = [
        each["href"] or "" for tag, each in found.tags if tag == "a" and "playground" in (each.get("href") or "")
    ]
    at = urlsplit(link)
    assert (at.netloc, at.path) == ("dagster.example", f"/guess/{dagster_name(REGION)}__plan/playground/setup")
    (config,) = parse_qs(at.query)["config"]
    assert yaml.safe_load(config)["ops"]["order"]["config"] == {"verb": {"skip": {"files": [file], "reason": ""}}}
    assert f"{dagster_name(REGION)}__plan: skip" in found.text
    assert "b" not in {tag for tag, _ in found.tags}


def test_a_region_that_has_done_nothing_has_a_page() -> None:
    found = Outline(page(Script().report()))
    assert "No group was committed yet." in found.text


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'&amp;<b>{}"])
def test_no_name_or_message_becomes_markup(hostile: str) -> None:
    script = Script()
    script.claim("none")
    script.group(2, bad=1, files=hostile.replace("{}", "") + "{}")
    error = {"message": hostile, "operator": hostile, "location": hostile, "trigger": hostile, "remedy": hostile}
    script.note(outcome="failed", error=error)
    script.claim("crashed")
    script.add(script.rows[0].kind.HALT, reason=hostile, error=error)
    report = script.report(state=hostile, remedies=[hostile], home=hostile, lags={hostile: 0})
    report["graph"]["operators"][0]["kind"] = report["graph"]["operators"][0]["location"] = hostile
    report["region"] = report["tables"][0]["table"] = hostile
    found = Outline(page(report))
    plain = Outline(page(script.report()))
    assert {tag for tag, _ in found.tags} == {tag for tag, _ in plain.tags}
    assert not any(name.startswith("on") or name == "src" for _, each in found.tags for name in each)
    assert found.text.count(hostile.replace("{}", "")) > 10


def test_control_characters_are_written_out() -> None:
    script = Script()
    script.claim("none")
    script.group(files="a\u202egpj.exe\x1b[2J{}")
    text = page(script.report())
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert r"a\u202egpj.exe\x1b[2J1" in text


def test_nothing_comes_from_outside_and_nothing_runs() -> None:
    text = page(eventful().report())
    found = Outline(text)
    assert not {"script", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in found.tags}
    assert [each for tag, each in found.tags if tag == "link"] == [{"rel": "icon", "href": "data:,"}]
    assert re.findall(r"https?:|//[a-z]|@import|url\((?!#hatch)", text) == []
    policy = next(each["content"] for tag, each in found.tags if each.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'")
    for tag, each in found.tags:
        if tag == "svg" and "aria-hidden" not in each:
            assert each["role"] == "img"
