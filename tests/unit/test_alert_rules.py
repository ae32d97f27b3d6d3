"""`deploy/`: alerts and dashboard use metrics and labels that a region writes; promtool tests each alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from by_hand import HandFed

from drainmark.jobs.protocol.stage_flow import InFlight
from drainmark.orchestration.inspection.metrics import as_text, region_metrics
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "alert-rules.yaml"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool (Debian: apt install prometheus)")

_ASKED = re.compile(r"\b(drainmark_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_TOLD = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def targets() -> list[dict[str, str]]:
    """Return the queries of the dashboard with their legends."""
    return [target for panel in BOARD["panels"] for target in panel.get("targets", ())]


def written(tmp_path: Path) -> dict[str, set[str]]:
    """Return the metrics, with their labels, of a region in which every measured event has occurred."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    for name in "ab":
        scene.write(name, ["1"])
    scene.add("a", "b")
    with scene.owning() as owner:
        scene.process(1)
        batch = InFlight(first_id=2, last_id=2, rows=1, bytes=70).to_json()
        staged = replace(
            scene.group(1),
            stages={"files": 2, "counts": 1},
            channels={"files to counts": [batch]},
            unmet={2: {"paid": 1}},
        )
        owner.groups.publish(owner.groups.commit(staged))
    text = as_text({scene.region: region_metrics(place, scene.region)})
    place.registry.close()
    samples = re.findall(r"^(drainmark_\w+)\{(.*)\} \S+$", text, re.MULTILINE)
    return {name: set(re.findall(r'(\w+)="', labels)) for name, labels in samples}


def test_what_alerts_and_dashboard_ask_for_is_written(tmp_path: Path) -> None:
    found = written(tmp_path)
    variables = [variable["definition"] for variable in BOARD["templating"]["list"] if "definition" in variable]
    asked = [*(rule["expr"] for rule in alerts()), *(target["expr"] for target in targets()), *variables]
    assert len(asked) > 20
    for query in asked:
        names = _ASKED.findall(query)
        assert names, query
        for name, selector in names:
            assert name in found, f"{name}: no region writes it"
            assert set(_LABEL.findall(selector)) <= found[name], query


def test_labels_that_are_shown_are_those_of_the_metric(tmp_path: Path) -> None:
    found = written(tmp_path)
    texts = [(rule["expr"], text) for rule in alerts() for text in rule["annotations"].values()]
    texts += [(target["expr"], target["legendFormat"]) for target in targets()]
    for query, text in texts:
        name = _ASKED.findall(query)[0][0]
        assert set(_TOLD.findall(text)) <= found[name], text
    shown = {label for _, text in texts for label in _TOLD.findall(text)}
    assert shown == {"region", "state", "stage", "channel", "expectation"}


@needs_promtool
def test_promtool_reads_the_rules_and_each_alert_fires_when_it_should() -> None:
    for arguments in (["check", "rules", RULES.name], ["test", "rules", "alert-rules-test.yaml"]):
        done = subprocess.run([str(PROMTOOL), *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_reads_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    queries = [target["expr"].replace("$__rate_interval", "5m") for target in targets()]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([str(PROMTOOL), "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    """alert-rules-test.yaml has a case in which each alert fires, and a case in which it does not."""
    told = yaml.safe_load((DEPLOY / "alert-rules-test.yaml").read_text())
    tried = [each for test in told["tests"] for each in test["alert_rule_test"]]
    assert {(each["alertname"], bool(each.get("exp_alerts"))) for each in tried} == {
        (rule["alert"], fires) for rule in alerts() for fires in (True, False)
    }
