"""The shipped applications on real data, against an oracle in plain Python."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import oracles
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from harness import opened, rows, run_once, settle

from drainmark.jobs.testing.syslog import HOSTS, write_syslog
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import drive, scan
from drainmark.orchestration.workplace.workplace import Workplace, open_application

DATA = Path(__file__).parents[3] / "shared" / "data"
NETWORKS = {"198.51.100": ("an office", True), "192.0.2": ("a provider", False)}
RULES = {"burst", "user_enumeration", "success_after_failures", "takeover", "connection_flood", "crash_loop",
         "new_origin"}  # fmt: skip

pytestmark = pytest.mark.spark


def cut(source: Path, folder: Path, parts: int) -> list[Path]:
    """Write a log as `parts` files of whole lines, in order."""
    lines = source.read_bytes().splitlines(keepends=True)
    size = -(-len(lines) // parts)
    folder.mkdir(parents=True)
    paths = []
    for number in range(parts):
        path = folder / f"part-{number:03d}.log"
        path.write_bytes(b"".join(lines[number * size : (number + 1) * size]))
        paths.append(path)
    settle(folder)
    return paths


def assert_log_watch(workplace: Workplace, files: list[Path]) -> None:
    for table, expected in oracles.log_watch(files).items():
        assert not oracles.differences(expected, rows(workplace, "log_watch/lines", table), ids=True), table


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "logwatch").is_dir(), reason="the shared data is absent")
@pytest.mark.parametrize("parts", [5, 37])
def test_log_watch_on_the_real_log_equals_the_oracle(workplace: Workplace, tmp_path: Path, parts: int) -> None:
    files = cut(DATA / "logwatch" / "Linux.log", tmp_path / "inbox", parts)
    run_once(workplace, opened("log_watch", tmp_path / "inbox"), max_group=-(-parts // 2))
    assert_log_watch(workplace, files)


@pytest.mark.seed("V177")
def test_attacks_in_generated_logs_equal_the_oracle(workplace: Workplace, tmp_path: Path) -> None:
    """All kinds of attack occur; the same remote hosts attack several hosts; attacks continue from file to file."""
    made = write_syslog(tmp_path / "inbox", seed=4, hosts=HOSTS[:2], files_per_host=4, lines_per_file=150)
    settle(tmp_path / "inbox")
    files = sorted(tmp_path / "inbox" / file.name for file in made)
    run_once(workplace, opened("log_watch", tmp_path / "inbox"), max_group=8)
    assert_log_watch(workplace, files)
    found = rows(workplace, "log_watch/lines", "log_watch_attacks")
    assert {row["kind"] for row in found} == {"burst", "user_enumeration", "success_after_failures"}
    broken_into = {(file.host, remote, user) for file in made for remote, user in file.break_ins.items()}
    got_in = {(row["host"], row["remote_host"], row["user"]) for row in found if row["user"] is not None}
    assert broken_into
    assert broken_into <= got_in


@pytest.mark.seed("V177")
def test_alerts_correlations_and_campaigns_equal_the_oracle(workplace: Workplace, tmp_path: Path) -> None:
    """Every rule finds something; a lookup, a handler and two joins in three stages; then the second region."""
    made = write_syslog(tmp_path / "inbox", seed=46, hosts=HOSTS[:2], files_per_host=2, lines_per_file=150)
    settle(tmp_path / "inbox")
    files = sorted(tmp_path / "inbox" / file.name for file in made)
    names = [{"network": name, "owner": owner, "is_trusted": trusted} for name, (owner, trusted) in NETWORKS.items()]
    write_deltalake(str(workplace.home / "lake" / "host_watch_networks"), pa.Table.from_pylist(names))
    application = opened("host_watch", tmp_path / "inbox")
    run_once(workplace, application, region="host_watch/lines", max_group=4)
    tables = oracles.host_watch(files, NETWORKS)
    for table, expected in tables.items():
        assert expected, table
        assert not oracles.differences(expected, rows(workplace, "host_watch/lines", table), ids=True), table
    assert {row["rule"] for row in tables["host_watch_tickets"]} == RULES
    assert {row["owner"] for row in tables["host_watch_tickets"]} == {"an office", "a provider", None}
    campaigns = application.region("host_watch/attacks_seen")
    scan(workplace, application, campaigns)
    drive(region_run(workplace, application, campaigns))
    wanted = oracles.host_watch_campaigns(files)
    assert wanted, "a campaign is against several hosts"
    assert not oracles.differences(wanted, rows(workplace, campaigns.name, "host_watch_campaigns"))


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "logwatch").is_dir(), reason="the shared data is absent")
def test_host_watch_on_the_real_log_equals_the_oracle(workplace: Workplace, tmp_path: Path) -> None:
    """There are no networks: nobody made the table that is looked up."""
    files = cut(DATA / "logwatch" / "Linux.log", tmp_path / "inbox", 5)
    run_once(workplace, opened("host_watch", tmp_path / "inbox"), region="host_watch/lines", max_group=3)
    for table, expected in oracles.host_watch(files).items():
        assert not oracles.differences(expected, rows(workplace, "host_watch/lines", table), ids=True), table


def write_messages(inbox: Path) -> list[Path]:
    """Write e-mails of random words, some empty, into the folders that the sources of `enron_fs` read; sorted."""
    draw = Random(42)
    words = ("gas", "Power", "trade", "re", "don't", "caf\u00e9", "x2y")
    for number in range(12):
        path = inbox / "14567"[number % 5] / f"{number:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"Subject: {number}\n\n{' '.join(draw.choices(words, k=30))}\n" if number % 6 else "")
    settle(inbox)
    return sorted(inbox.rglob("*.txt"), key=str)


@pytest.mark.seed("V42", "V175")
def test_each_message_is_a_state_and_its_words_are_counted(workplace: Workplace, tmp_path: Path) -> None:
    files = write_messages(tmp_path / "inbox")
    run_once(workplace, opened("enron_ds", tmp_path / "inbox"))
    states = workplace.history("enron_ds/messages").states
    assert [str(row.trigger_uri) for _, row in sorted(states.items())] == [str(path) for path in files]
    expected = oracles.enron_ds(files)
    for table in ("enron_words", "enron_messages"):
        assert not oracles.differences(expected[table], rows(workplace, "enron_ds/messages", table), ids=True), table


@pytest.mark.seed("V176")
def test_five_sources_of_messages_feed_one_count(workplace: Workplace, tmp_path: Path) -> None:
    files = write_messages(tmp_path / "inbox")
    names = ("first", "fourth", "fifth", "sixth", "last")
    application = open_application("enron_fs", inputs=[f"{name}={tmp_path / 'inbox'}" for name in names])
    scan(workplace, application, application.region())
    drive(region_run(workplace, application, application.region()))
    counts = {row["word"]: row["count"] for row in rows(workplace, "enron_fs/fifth", "enron_fs_words")}
    assert counts == {row["word"]: row["count"] for row in oracles.enron_ds(files)["enron_words"]}


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "enron").is_dir(), reason="the shared data is absent")
def test_enron_word_count_equals_the_oracle(workplace: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    messages = sorted((DATA / "enron" / "messages").rglob("*.txt"))[:100]
    for path in messages:
        target = inbox / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    settle(inbox)
    run_once(workplace, opened("enron_ds", inbox))
    files = sorted(inbox.rglob("*.txt"), key=str)
    expected = oracles.enron_ds(files)
    for table in ("enron_words", "enron_messages"):
        assert not oracles.differences(expected[table], rows(workplace, "enron_ds/messages", table), ids=True), table


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "enron").is_dir(), reason="the shared data is absent")
def test_enron_by_folder_in_slices_equals_the_oracle(workplace: Workplace, tmp_path: Path) -> None:
    """Five sources feed one state; slices of a megabyte give the same result as whole files (V40)."""
    inbox = tmp_path / "inbox"
    messages = [path for n in "145678" for path in sorted((DATA / "enron" / "messages" / n).glob("*.txt"))[:60]]
    for path in messages:
        target = inbox / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    settle(inbox)
    workplace.settings = workplace.settings.model_copy(update={"slice_bytes": 1_000_000})
    names = ("first", "fourth", "fifth", "sixth", "last")
    application = open_application("enron_fs", inputs=[f"{name}={inbox}" for name in names])
    scan(workplace, application, application.region())
    assert workplace.registry.pending_count("enron_fs/fifth") > 1
    drive(region_run(workplace, application, application.region()))
    expected = oracles.enron_ds(sorted(inbox.rglob("*.txt"), key=str))["enron_words"]
    counts = {row["word"]: row["count"] for row in rows(workplace, "enron_fs/fifth", "enron_fs_words")}
    assert counts == {row["word"]: row["count"] for row in expected}
    assert sum(state.bytes_in or 0 for state in workplace.history("enron_fs/fifth").states.values()) == sum(
        path.stat().st_size for path in messages
    )
