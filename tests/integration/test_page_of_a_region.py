"""The page of a real region shows its history: good files, bad rows, a bad file, a rewind, a halt, its graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_inputs import QUARANTINE, REGION, copying, write
from harness import run_once

from drainmark.orchestration.html_report.page import page
from drainmark.orchestration.html_report.page_file import known_graph, page_path, report_of
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace

pytestmark = pytest.mark.spark

CSV = {"format": "csv", "schema": "id bigint, name string", "options": {"header": "true"}}


@pytest.mark.seed("E23", "I11")
def test_what_a_region_did_is_on_its_page(workplace: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    write(
        inbox,
        {"a.csv": b"id,name\n1,a\n2,b\n3,c\n", "b.csv": b"id,name\n1,a\nx,<b>q\n7,g\n", "c.csv": b"name,id\na,1\n"},
    )
    run_once(workplace, copying(inbox, **CSV), max_group=2)
    text = page_path(workplace.home, REGION).read_text()
    assert "The newest 2 groups" in text
    assert "The newest 3 states" in text

    target = RewindTarget(to=2)
    interventions.reset(workplace, plan_reset(workplace, REGION, target))
    interventions.halt(workplace, REGION, "stock-taking")
    checkpoint = workplace.store(REGION).checkpoint
    report = report_of(workplace, REGION, checkpoint, known_graph(workplace.home, REGION))
    assert report["status"]["state"] == "HALTED"
    assert [(event["kind"], event["to"]) for event in report["events"]] == [("rewind", 2), ("halt", None)]
    first, second = report["groups"]
    assert (first["rows_in"], first["rows_quarantined"], first["withdrawn"]) == (6, 1, 0)
    assert (second["rows_in"], second["rows_quarantined"], second["withdrawn"]) == (1, 1, 1)
    for seconds in ("process_seconds", "drain_seconds", "checkpoint_seconds", "publish_seconds"):
        assert first[seconds] > 0
    assert first["written_bytes"]["sinks"] > 0
    bad = {Path(each["file"]).name: (each["rows_quarantined"], bool(each["reason"])) for each in report["quarantine"]}
    assert bad == {"b.csv": (1, False), "c.csv": (1, True)}
    assert {table["table"]: table["rows"] for table in report["tables"]} == {"lake/copied": 5, f"lake/{QUARANTINE}": 1}
    assert [operator["name"] for operator in report["graph"]["operators"]] == ["read", "copied_sink"]
    assert report["operator_rows"] == {"read": 6, "copied_sink": 5}

    text = page_path(workplace.home, REGION).read_text()
    assert page(report).count("</tr>") == text.count("</tr>"), "a verb has no code, and shows the graph of the run"
    for told in ("HALTED", "stock-taking", "rewound to 2", "6 rows in", "5 rows written", "withdrawn"):
        assert told in text, told
