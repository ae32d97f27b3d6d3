"""The operator's desk: a job that plans and one that acts, on real instances; the plans are the command line's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster_pages import launched
from hand_runs import engine, without_spark
from harness import rows
from integration.dagster_scene import REGION, ROOT, definitions, drop, execute, instance, place, write_application

from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.runtime.commit.publish.visible_tables import VisibleTables
from drainmark.orchestration.cli.main import VERBS as CLI_VERBS
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_assets.checks import NOT_HALTED
from drainmark.orchestration.dagster_assets.metadata import (
    DESK_TAG,
    NOTE_TAG,
    OUTCOME_TAG,
    REGION_TAG,
    VERB_TAG,
    WITHDRAWN_TAG,
)
from drainmark.orchestration.dagster_jobs.desk import (
    CARRIED_OUT,
    DONE,
    PLAN,
    PLAN_ONLY,
    REFUSED,
    VERBS,
    blank,
    config_of,
    typed,
)
from drainmark.orchestration.dagster_jobs.run_monitor import RegionRuns
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.inspection.desk_links import DESK_JOB, ORDER, PLAN_JOB, desk_job
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace, open_application

__all__ = ["engine", "instance", "place", "without_spark"]

REQUIRED = {
    "skip": {"files", "reason"}, "retract": {"files"}, "halt": {"reason"}, "backfill": {"input"}, "redrive": {"file"},
    "drop": {"table"},
}  # fmt: skip
CHECKPOINTS = dg.AssetKey(["little", "checkpoints", "rows"])


class Desk:
    """A desk that starts verbs as the launchpad does, and reads their results."""

    def __init__(self, place: Workplace, instance: dg.DagsterInstance, folder: Path) -> None:
        self.repository = definitions(place, write_application(folder))
        self.place, self.instance = place, instance

    def __call__(self, verb: str, *, digest: str | None = None, **options: Any) -> dg.ExecuteInProcessResult:
        """Launch the job that shows plans or, with a digest, the one that carries them out."""
        config = {"verb": {verb: options}, **({} if digest is None else {"digest": digest})}
        return self.repository.get_job(desk_job(REGION, PLAN_JOB if digest is None else DESK_JOB)).execute_in_process(
            instance=self.instance, run_config={"ops": {ORDER: {"config": config}}}, raise_on_error=False
        )

    def digest(self, ended: dg.ExecuteInProcessResult) -> str:
        """Return the digest of the plan that a run showed."""
        outputs = [each.step_output_data for each in ended.all_events if each.is_successful_output]
        return str(next(each.metadata["digest"].value for each in outputs if each.output_name == PLAN))

    def carried_out(self, verb: str, **config: Any) -> dg.ExecuteInProcessResult:
        """Let a verb show its plan, and carry this plan out."""
        return self(verb, **config, digest=self.digest(self(verb, **config)))

    def told(self, ended: dg.ExecuteInProcessResult) -> dict[str, list[str]]:
        """Return the lines of the plan and of the result, from the metadata of the run."""
        return {
            output.step_output_data.output_name: output.step_output_data.metadata["what"].value.splitlines()[1:-1]
            for output in ended.all_events
            if output.event_type is dg.DagsterEventType.STEP_OUTPUT
        }

    def first_line(self, ended: dg.ExecuteInProcessResult) -> str:
        logged = [entry for entry in self.instance.all_logs(ended.run_id) if entry.dagster_event is None]
        return logged[0].user_message

    def note(self, ended: dg.ExecuteInProcessResult) -> str:
        return self.tags(ended)[NOTE_TAG]

    def tags(self, ended: dg.ExecuteInProcessResult) -> dict[str, str]:
        run = self.instance.get_run_by_id(ended.run_id)
        assert run is not None
        return dict(run.tags)

    def observed(self, key: dg.AssetKey = CHECKPOINTS) -> list[dict[str, Any]]:
        """Return the metadata of an asset's observations, oldest first."""
        found = self.instance.fetch_observations(key, limit=50).records
        shown = [record.asset_observation for record in reversed(found)]
        return [{name: value.value for name, value in each.metadata.items()} for each in shown if each is not None]

    def events(self) -> list[str]:
        return [each["drainmark/event"] for each in self.observed() if "drainmark/event" in each]

    def is_halted(self) -> bool:
        check = dg.AssetCheckKey(CHECKPOINTS, NOT_HALTED)
        (record,) = self.instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
        return not record.event.dagster_event.asset_check_evaluation_data.passed  # type: ignore[union-attr]


@pytest.fixture
def desk(place: Workplace, instance: dg.DagsterInstance, tmp_path: Path) -> Desk:
    return Desk(place, instance, tmp_path)


def scanned(place: Workplace, folder: Path, *names: str) -> None:
    """Put files into the inbox and scan it, without a run."""
    for name in names:
        drop(folder, name, "a,1\n")
    scan_region(place, open_application(str(folder / "little.py")).region(REGION))


def printed(capsys: pytest.CaptureFixture[str], place: Workplace, *arguments: str) -> list[str]:
    """Return the lines that a verb prints on the command line."""
    capsys.readouterr()
    invoke([*arguments, "--home", str(place.home)])
    return capsys.readouterr().out.splitlines()


@pytest.mark.seed("NU3")
def test_the_launchpads_of_a_region_explain_all_verbs_and_do_nothing_by_default(desk: Desk) -> None:
    assert {verb.name for verb in VERBS} - {"redrive", "repair", "drop"} <= set(CLI_VERBS)
    assert not [name for name in desk.repository.job_names if re.search("__(reset|resume|skip|halt)$", name)]
    for end in (PLAN_JOB, DESK_JOB):
        job = desk.repository.get_job(desk_job(REGION, end))
        (node,) = job.graph.nodes
        fields = dict(node.definition.config_schema.config_type.fields)
        verbs = fields.pop("verb").config_type.fields
        assert (node.name, list(verbs)) == (ORDER, [verb.name for verb in VERBS])
        assert {name: field.default_value for name, field in fields.items()} == (
            {"digest": ""} if end == DESK_JOB else {}
        )
        for name, verb in verbs.items():
            assert verb.description
            assert all(field.description for field in verb.config_type.fields.values())
            required = {field for field, each in verb.config_type.fields.items() if each.is_required}
            assert required == REQUIRED.get(name, set())
        assert (job.tags[DESK_TAG], job.tags["dagster/max_retries"]) == (REGION, "0")
        assert REGION_TAG not in job.tags
    reset = verbs["reset"].config_type.fields
    assert set(reset) == {"to", "by", "to_file", "to_time", "to_code", "to_initial", "accept_loss", "cascade"}
    assert all(not field.default_value for field in reset.values())


def test_every_verb_has_a_launchpad_with_all_of_its_fields(desk: Desk) -> None:
    """Dagster leaves fields without a value out of the text that it makes of a schema: `to` of a reset, for example."""
    planning = desk.repository.get_job(desk_job(REGION))
    begun = [desk.repository.get_job(desk_job(REGION, end)).run_config for end in (PLAN_JOB, DESK_JOB)]
    assert [each["ops"][ORDER]["config"]["verb"] for each in begun if each] == [{VERBS[0].name: blank(VERBS[0])}] * 2
    linked = re.findall(r"\[(\w+)\]\((/guess/[^)]*)\)", planning.description or "")
    assert [name for name, _ in linked] == [verb.name for verb in VERBS]
    for verb, (_, link) in zip(VERBS, linked, strict=True):
        job, config = launched(link)
        assert job == desk_job(REGION)
        assert list(config["ops"][ORDER]["config"]["verb"][verb.name]) == list(config_of(verb).model_fields)
        assert dg.validate_run_config(planning, config)


def test_a_digest_that_is_typed_as_the_texts_say_is_text_for_yaml() -> None:
    """Dagster parses the typed text as YAML, where twelve digits could be a number."""
    assert yaml.safe_load(typed("1234-5678-9012")) == {"digest": "1234-5678-9012"}
    assert yaml.safe_load("digest: 1234-5678-9012") == {"digest": "1234-5678-9012"}
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    (typed_block,) = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(ops:.*?)```", page, re.DOTALL)]
    assert typed_block["ops"][ORDER]["config"] == {"verb": {"reset": {"to_file": "monday.csv"}}}


@pytest.mark.seed("NU3")
def test_halt_skip_and_resume_show_a_plan_act_with_its_digest_and_leave_events(
    desk: Desk, place: Workplace, tmp_path: Path
) -> None:
    scanned(place, tmp_path, "0.csv", "1.csv")
    planned = desk("halt", reason="stock-taking")
    assert planned.success
    assert typed(desk.digest(planned)) in desk.note(planned)
    assert (desk.tags(planned)[OUTCOME_TAG], desk.tags(planned)[VERB_TAG]) == (PLAN_ONLY, "halt")
    assert place.history(REGION).last_claim is None, "nothing was done"
    assert desk.events() == []

    refused(desk, desk("halt", reason="stock-taking", digest=""))
    (shown,) = [each.step_output_data.metadata["drainmark/desk"].value
                for each in planned.all_events if each.is_successful_output]  # fmt: skip
    (link,) = re.findall(r"\((/guess/[^)]*)\)", shown)
    job, config = launched(link)
    assert (job, config["ops"][ORDER]["config"]) == (
        desk_job(REGION, DESK_JOB), {"digest": desk.digest(planned), "verb": {"halt": {"reason": "stock-taking"}}}
    )  # fmt: skip
    done = desk.repository.get_job(job).execute_in_process(instance=desk.instance, run_config=config)
    assert done.success
    assert desk.tags(done)[OUTCOME_TAG] == CARRIED_OUT
    assert place.history(REGION).halt is not None
    assert desk.observed()[-1]["drainmark/reason"] == "stock-taking"
    assert desk.is_halted()

    passed = desk.carried_out("skip", files=["0.csv"], reason="no sale")
    assert desk.first_line(passed).splitlines() == desk.told(passed)[PLAN]
    assert "0.csv is skipped as" in desk.told(passed)[DONE][0]
    (trigger,) = place.registry.triggers.by_uri(REGION, str((tmp_path / "inbox" / "0.csv").resolve()))
    assert trigger.status is TriggerStatus.SKIPPED

    assert desk.carried_out("resume").success
    assert place.history(REGION).halt is None
    assert desk.events() == ["halt", "skip", "resume"]
    assert not desk.is_halted()
    assert desk.observed(dg.AssetKey(["little", "source", "rows"]))[-1]["drainmark/event"] == "skip"


@pytest.mark.parametrize("verb", ["skip", "retract"])
@pytest.mark.parametrize("files", [[], [""]], ids=["none", "an empty name"])
def test_a_list_without_a_file_is_refused_as_the_command_line_does(
    desk: Desk, place: Workplace, tmp_path: Path, verb: str, files: list[str]
) -> None:
    scanned(place, tmp_path, "0.csv")
    ended = desk(verb, files=files, reason="why not")
    assert not ended.success
    assert "empty; nothing was changed → give a file" in desk.note(ended)


def refused(desk: Desk, ended: dg.ExecuteInProcessResult) -> str:
    """Return the digest that the refusal of a plan names, which is that of the plan it shows."""
    assert not ended.success
    (failure,) = [each for each in ended.all_events if each.event_type is dg.DagsterEventType.STEP_FAILURE]
    found = failure.step_failure_data.user_failure_data
    assert found is not None
    remedy = str(found.metadata["drainmark/remedy"].value)
    assert typed(desk.digest(ended)) in remedy
    assert desk.tags(ended)[OUTCOME_TAG] == REFUSED
    return desk.digest(ended)


def test_a_digest_carries_out_its_plan_once_and_no_later_one(desk: Desk, place: Workplace, tmp_path: Path) -> None:
    """A run that Dagster executes again has the config of the first one."""
    scanned(place, tmp_path, "0.csv")
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "old.csv").write_text("a,1\n")
    once: dict[str, dict[str, Any]] = {
        "halt": {"reason": "lunch"},
        "resume": {},
        "reset": {},
        "backfill": {"input": "archive"},
    }
    used: dict[str, dict[str, Any]] = {}
    for verb, config in once.items():
        used[verb] = {**config, "digest": desk.digest(desk(verb, **config))}
        assert desk(verb, **used[verb]).success, verb
        assert not desk(verb, **used[verb]).success, f"{verb} again"
    interventions.halt(place, REGION, "lunch")
    interventions.resume(place, REGION, "served")
    for verb in ("halt", "resume"):
        new = refused(desk, desk(verb, **used[verb]))
        assert desk(verb, **{**used[verb], "digest": new}).success, "the remedy works"


def test_a_plan_holds_while_files_arrive_and_runs_come_and_go_but_not_when_more_is_withdrawn(
    desk: Desk, place: Workplace, tmp_path: Path
) -> None:
    scanned(place, tmp_path, "0.csv", "1.csv", "2.csv")
    interventions.skip(place, REGION, ["0.csv"], "empty")
    wanted: dict[str, dict[str, Any]] = {
        "halt": {"reason": "lunch"},
        "skip": {"files": ["2.csv"], "reason": "empty"},
        "publish": {},
        "reset": {"to": 0},
    }
    before = {verb: desk.digest(desk(verb, **config)) for verb, config in wanted.items()}
    scanned(place, tmp_path, "3.csv")
    with owning(region_owner(place, REGION, run_id="a run that finds nothing")):
        pass
    assert {verb: desk.digest(desk(verb, **config)) for verb, config in wanted.items()} == before
    interventions.skip(place, REGION, ["1.csv"], "empty")
    later = refused(desk, desk("reset", to=0, digest=before["reset"]))
    assert place.history(REGION).committed_id == 2
    assert desk("reset", to=0, digest=later).success
    assert place.history(REGION).committed_id == 0


def test_a_digest_is_of_one_region_verb_and_config_and_of_the_secret_of_its_home(
    desk: Desk, place: Workplace, tmp_path: Path
) -> None:
    digest = desk.digest(desk("halt", reason="lunch"))
    assert re.fullmatch(r"[0-9a-f]{4}(-[0-9a-f]{4}){2}", digest)
    assert desk.digest(desk("halt", reason="lunch")) == digest
    assert desk.digest(desk("halt", reason="dinner")) != digest
    refused(desk, desk("halt", reason="dinner", digest=digest))
    for guess in ("true", digest[:-1], "\ud800"):
        assert not desk("halt", reason="lunch", digest=guess).success
    (place.settings.home / "secret").unlink()
    refused(desk, desk("halt", reason="lunch", digest=digest))
    assert place.history(REGION).halt is None


def test_a_config_that_is_too_long_is_refused_before_it_is_used(desk: Desk, place: Workplace) -> None:
    """A text of ten million characters was in four events, and in the checkpoint table for ever."""
    text = "x" * 1_000_000
    for ended in (desk("halt", reason=text), execute(desk.repository, desk.instance, {"inputs": {"rows": text}})):
        assert not ended.success
        assert "has 1,000," in desk.note(ended)
        records = desk.instance.get_records_for_run(ended.run_id).records
        assert max(len(dg.serialize_value(each.event_log_entry)) for each in records) < 100_000
    rows = place.store(REGION).checkpoint.rows()
    assert max(len(str(row.detail)) for row in rows) < 10_000
    assert place.history(REGION).halt is None


@pytest.mark.seed("NU3")
def test_what_cannot_be_done_fails_with_its_error_and_does_nothing(desk: Desk, place: Workplace) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("reset", {"to": 1, "by": 1}, "USAGE"),
        ("reset", {"to": -1}, "USAGE"),
        ("reset", {"to_time": "yesterday"}, "USAGE"),
        ("halt", {"reason": " "}, "USAGE"),
        ("skip", {"files": ["9.csv"], "reason": "x"}, "UNKNOWN_NAME"),
        ("backfill", {"input": "nowhere/*.csv"}, "USAGE"),
        ("repair", {}, "USAGE"),
    ]
    for verb, config, error in wrong:
        ended = desk(verb, **config)
        assert not ended.success
        (failure,) = [each for each in ended.all_events if each.event_type is dg.DagsterEventType.STEP_FAILURE]
        found = failure.step_failure_data.user_failure_data
        assert found is not None, (verb, config)
        assert found.metadata["drainmark/id"].value == error, (verb, config)
    assert place.history(REGION).last_claim is None


def test_a_verb_is_no_run_of_its_region_and_leaves_one_that_is_busy_alone(
    desk: Desk, place: Workplace, tmp_path: Path
) -> None:
    scanned(place, tmp_path, "0.csv")
    with owning(region_owner(place, REGION, run_id="somebody")):
        ended = desk.carried_out("resume")
    assert not ended.success
    assert "owned by pid" in desk.note(ended)

    job, region = (
        desk.repository.get_job(desk_job(REGION, DESK_JOB)),
        open_application(str(tmp_path / "little.py")).region(REGION),
    )
    runs = RegionRuns(instance=desk.instance, workplace=place, region=region)
    assert runs.last_note() == ""
    waiting = desk.instance.create_run_for_job(job)
    assert waiting.status is dg.DagsterRunStatus.NOT_STARTED
    assert runs.active() == []
    runs.count_dead(lambda: "code")
    assert place.history(REGION).attempts == 0, "its failure is no attempt"


def test_a_backfill_queues_what_it_has_planned(desk: Desk, place: Workplace, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "old.csv").write_text("a,1\n")
    rehearsed = desk("backfill", input="archive")
    assert place.registry.pending_count(REGION) == 0
    done = desk("backfill", input="archive", digest=desk.digest(rehearsed))
    assert place.registry.pending_count(REGION) == 1
    assert desk.told(rehearsed)[PLAN] == desk.told(done)[PLAN]
    assert desk.told(done)[DONE][0].startswith(f"{REGION}: 1 file matches, 1 queued")


@pytest.mark.seed("NU3")
def test_a_rewind_says_what_the_command_line_says_and_marks_what_it_withdraws(
    workplace: Workplace, instance: dg.DagsterInstance, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(workplace, instance, tmp_path)
    for number in range(3):
        drop(tmp_path, f"{number}.csv", f"a,{number}\n")
    first = execute(desk.repository, instance, {"max_triggers": 2})
    run = ["run", str(tmp_path / "little.py"), "--input", str(tmp_path / "inbox"), "--home", str(workplace.home)]
    assert invoke(run) == 0, capsys.readouterr().err
    by_hand = workplace.history(REGION).states[3].run_id
    assert instance.get_run_by_id(by_hand) is None, "no run of Dagster's"
    for key in (CHECKPOINTS, dg.AssetKey(["little", "little_totals"])):
        shown_last = instance.get_latest_materialization_event(key)
        assert shown_last is not None
        assert shown_last.asset_materialization is not None
        assert shown_last.asset_materialization.metadata["drainmark/run_id"].value == by_hand
    before = {key.to_user_string(): len(instance.fetch_materializations(key, limit=50).records)
              for key in instance.all_asset_keys()}  # fmt: skip

    planned = desk("reset", to=1)
    assert workplace.history(REGION).committed_id == 3
    shown = printed(capsys, workplace, "reset", REGION, "--to", "1")
    assert desk.told(planned)[PLAN] == shown
    assert desk.first_line(planned).splitlines() == shown
    assert f"{REGION}: rewind from 3 to 1" in shown

    done = desk("reset", to=1, digest=desk.digest(planned))
    assert done.success, desk.note(done)
    assert desk.told(done) == {PLAN: shown, DONE: [f"{REGION}: rewound to 1; 2 ids withdrawn, 2 files pending again"]}
    assert workplace.history(REGION).committed_id == 1
    assert desk.tags(first)[WITHDRAWN_TAG] == "2"
    for table in ("little_numbers", "little_totals"):
        newest = instance.get_latest_materialization_event(dg.AssetKey(["little", table]))
        assert newest is not None
        assert newest.asset_materialization is not None
        made = newest.asset_materialization
        assert made.metadata["drainmark/event"].value == "rewind"
        assert made.metadata["drainmark/withdrawn_ids"].value == "2..3"
        assert str(made.metadata["drainmark/withdrawn_runs"].value).splitlines()[2:] == [
            f"| `{first.run_id}` | 2 | a tag of the run |",
            f"| `{by_hand}` | 3 | this event alone: Dagster has no such run |",
        ]
        assert made.metadata["drainmark/sequence_id"].value == 1
        assert made.metadata["dagster/row_count"].value == 1
        assert made.tags["dagster/data_version"] == f"{workplace.history(REGION).epoch}.1"
        assert len(instance.fetch_materializations(made.asset_key, limit=50).records) == before[f"little/{table}"] + 1
    assert desk.observed(dg.AssetKey(["little", "source", "rows"]))[-1]["drainmark/requeued"] == 2
    interventions.halt(workplace, REGION, "lunch")
    assert desk.events()[-1] == "halt", "whoever halts"


@pytest.mark.seed("NU3", "H29", "R2")
def test_publish_repair_and_redrive_act_with_the_digest_of_their_plan(
    workplace: Workplace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lagging table is brought up to date, a file that was fixed is read again, and a lost registry is rebuilt."""
    desk = Desk(workplace, instance, tmp_path)
    drop(tmp_path, "0.csv", "a,1\n")
    drop(tmp_path, "1.csv", "a,1,2\n")
    assert execute(desk.repository, instance).success
    with monkeypatch.context() as patched:
        patched.setattr(VisibleTables, "may_wait", lambda *_: True)
        patched.setattr(VisibleTables, "bring_up_all", lambda _: 0)
        drop(tmp_path, "2.csv", "a,2\n")
        assert execute(desk.repository, instance).success
    lagging = workplace.history(REGION).lags
    assert set(lagging) == {"lake/little_totals"}
    assert desk("publish").success
    assert workplace.history(REGION).lags == lagging, "only the plan"
    assert desk.told(desk.carried_out("publish"))[DONE] == [f"{REGION}: lake/little_totals at 3"]
    assert [row["total"] for row in rows(workplace, REGION, "little_totals")] == [3]

    mended = drop(tmp_path, "1.csv", "a,10\n")
    assert desk("redrive", file="1.csv").success
    assert workplace.registry.pending_count(REGION) == 0
    assert desk.carried_out("redrive", file="1.csv").success
    assert workplace.registry.pending_count(REGION) == 1
    assert execute(desk.repository, instance).success, mended
    assert [row["total"] for row in rows(workplace, REGION, "little_totals")] == [13]

    workplace.registry.close()
    for path in workplace.home.glob("registry.db*"):
        path.unlink()
    anew = Desk(Workplace(workplace.settings), instance, tmp_path)
    planned = anew("repair")
    assert "rebuilt from its checkpoint table" in anew.told(planned)[PLAN][0]
    done = anew("repair", digest=anew.digest(planned))
    assert "the registry is rebuilt" in anew.told(done)[DONE][0]
    assert anew.place.registry.region_info(REGION).epoch == anew.place.history(REGION).epoch
    assert desk.events()[-3:] == ["publish", "redrive", "repair"]
    anew.place.registry.close()
