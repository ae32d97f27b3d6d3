"""Which code made which id: `history`, the page, and the way back to what a code made; without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_runs import NoSpark, engine, without_spark
from harness import settle

import drainmark as dm
from drainmark.jobs.errors import RewindRefused
from drainmark.jobs.protocol.claimed_code import Claim, deploy_of, deployed
from drainmark.jobs.protocol.digest import digest_of, history_from
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, resolve_target
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

__all__ = ["engine", "without_spark"]

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, n bigint", pattern="*.csv", settle=0))
def rows(scanned):
    return scanned

@dm.functor
def priced(rows):
    return [dict(row, n=row["n"] * 2) for row in rows]

dm.sink(priced, dm.DeltaAppend("prices"))
"""
WRONG = APPLICATION.replace("* 2", "* 200")
REMARKED = APPLICATION.replace("import drainmark", "# prices count twice\nimport drainmark")


class Project:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys, self.number = root, capsys, 0

    def run(self, code: str, files: int = 1) -> None:
        (self.root / "app.py").write_text(code)
        for _ in range(files):
            self.number += 1
            (self.root / "inbox" / f"{self.number}.csv").write_text(f"tea,{self.number}\n")
        settle(self.root / "inbox")
        assert invoke(["run", "app.py", "--max-group", "1"]) == 0

    def said(self, *arguments: str, code: int = 0) -> str:
        self.capsys.readouterr()
        assert invoke([*arguments]) == code
        found = self.capsys.readouterr()
        return found.out if code == 0 else found.err

    def history(self, *arguments: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads(self.said("history", "app", "--json", *arguments))
        return entries


@pytest.fixture
def project(
    engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Project:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "drainmark.toml").write_text('applications = ["app.py"]\nhome = "home"\n')
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, capsys)


def test_the_history_and_the_page_name_the_code_of_each_state(project: Project) -> None:
    project.run(APPLICATION, files=2)
    project.run(WRONG, files=2)
    project.run(REMARKED)
    entries = project.history()
    codes = [entry["code"] for entry in entries]
    assert codes[0] == codes[1] != codes[2] == codes[3] != codes[4] != codes[0]
    assert [entry["deployed"] for entry in entries] == [None, None, ["priced"], None, ["priced"]]
    assert f"code {codes[2][:8]} (priced)" in project.said("history", "app")
    events = json.loads(project.said("report", "app", "--json"))["events"]
    deploys = [(event["after_id"], event["message"]) for event in events if event["kind"] == "deploy"]
    assert deploys == [(2, f"code {codes[2][:8]}: priced"), (4, f"code {codes[4][:8]}: priced")]


def test_the_states_of_bad_code_are_taken_back_by_the_name_of_the_good_one(project: Project) -> None:
    project.run(APPLICATION, files=2)
    project.run(WRONG, files=3)
    good, bad = project.history()[0]["code"], project.history()[-1]["code"]
    project.said("reset", "app", "--to-code", good[:8], "--yes")
    assert [entry["sequence_id"] for entry in project.history()] == [1, 2]
    project.run(APPLICATION, files=0)
    assert sorted(dm.read("app", "prices")["n"].to_pylist()) == [2, 4, 6, 8, 10]
    entries = project.history()
    assert {entry["code"] for entry in entries} == {good}, "the same code again is the same code"
    assert [entry["deployed"] for entry in entries] == [None] * 5
    withdrawn = [entry for entry in project.history("--all") if entry["withdrawn"]]
    assert {entry["code"] for entry in withdrawn if entry["kind"] == "state"} == {bad}

    refused = project.said("reset", "app", "--to-code", bad[:8], code=2)
    assert "no state in force was made by the code" in refused
    assert "no code 'ffff0000'" in project.said("reset", "app", "--to-code", "ffff0000", code=2)
    assert "names 2 codes" in project.said("reset", "app", "--to-code", "", code=2)


def test_a_digest_keeps_the_codes(project: Project) -> None:
    project.run(APPLICATION, files=2)
    project.run(WRONG)
    place = Workplace(Settings(home=project.root / "home", project_root=project.root))
    try:
        checkpoint = place.store("app/rows").checkpoint
        history = checkpoint.history()
        assert len(history.deploys) == 2
        kept = history_from(digest_of(history), lambda *_: ())
        assert kept is not None
        assert kept.deploys == history.deploys
    finally:
        place.registry.close()


def test_ids_of_before_have_no_code(project: Project) -> None:
    project.run(APPLICATION)
    place = Workplace(Settings(home=project.root / "home", project_root=project.root))
    try:
        history = place.history("app/rows")
        former = json.loads(digest_of(history))
        del former["deploys"]
        known = history_from(json.dumps(former), lambda *_: ())
        assert known is not None
        assert deploy_of(known.deploys, 1) is None
        with pytest.raises(RewindRefused, match="no code"):
            resolve_target(known, RewindTarget(to_code=history.deploys[0].code))
    finally:
        place.registry.close()


def test_all_targets_are_named_to_who_gives_several(project: Project) -> None:
    project.run(APPLICATION)
    refused = project.said("reset", "app", "--to", "1", "--to-code", "a", code=2)
    assert "one of --to, --to-file, --to-time, --by, --to-code, --to-initial" in refused


def test_code_that_came_back_before_other_code_made_an_id_is_no_other_code(project: Project) -> None:
    project.run(APPLICATION)
    place = Workplace(Settings(home=project.root / "home", project_root=project.root))
    try:
        history = place.history("app/rows")
    finally:
        place.registry.close()
    claim, operators = history.last_claim, history.operators
    assert claim is not None
    assert operators is not None
    other = {name: f"{fingerprint} differs" for name, fingerprint in operators.items()}
    between = replace(claim, detail={**claim.detail, "code": "other", "operators": other})
    found = deployed(history.deploys, between.epoch, Claim.from_row(between), history.next_id, operators)
    assert [deploy.code for deploy in found] == [history.code, "other"]
    assert deployed(found, claim.epoch, Claim.from_row(claim), history.next_id, other) == history.deploys
