"""A person leaves every byte of a home, and what is left is as if the rows had never come (ER1 to ER6)."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from followed import follow
from hand_runs import NoSpark, engine, without_spark
from harness import done, ids, settle
from killed_commands import KILLED, killed_at
from sliced_by_hand import sliced

import drainmark as dm
from drainmark.jobs import failpoints
from drainmark.jobs.errors.environment import ErasedInput
from drainmark.jobs.protocol.persons import Person
from drainmark.jobs.runtime.group.backlog import IdAssignment
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.removals.erase import erase
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta.keyed import keyed_merge
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.database_tables import DatabaseTable
from drainmark.resources.sinks.file_tables import FileTable

__all__ = ["engine", "without_spark"]

APPLICATION = """
import drainmark as dm

@dm.consistent(trigger="operator-driven", rewind_horizon=50)
@dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="item string, customer string, n bigint",
                            pattern="*.csv", settle=0))
def rows(scanned):
    return scanned

totals = dm.aggregate(rows, keys=["customer"], values={"n": dm.sum("n"), "rows": dm.count()}, name="totals")
dm.sink(rows, dm.DeltaAppend("all_rows"))
dm.sink(rows, dm.DeltaAppend("by_customer", partition_by=["customer"]))
dm.sink(rows, dm.DeltaUpsert("newest", keys=["item"], merge="on-read"))
dm.sink(rows, dm.DeltaOverwrite("snapshot"))
dm.sink(rows, dm.DatabaseAppend("crm", "copied"))
dm.sink(rows, dm.DatabaseUpsert("crm", "copied_newest", keys=["item"]))
dm.sink(rows, dm.FileSink("out", format="csv"))
dm.sink(totals, dm.DeltaUpsert("customer_totals", keys=["customer"]))
dm.sink(totals, dm.DatabaseUpsert("crm", "copied_totals", keys=["customer"]))
"""
PERSON = "canary-17@example.org"
WHERE = f"customer = '{PERSON}'"
COMMAND = ("erase", "--where", WHERE, "--yes")
TABLES = ("all_rows", "by_customer", "newest", "snapshot", "copied", "copied_newest", "out", "customer_totals",
          "copied_totals", "state/app/totals")  # fmt: skip
FILES = (
    f"tea,ann,1\ncup,{PERSON},2\n",
    f"cup,bob,4\npot,{PERSON},x\npot,{PERSON},3\n",
    f"cup,{PERSON},5\n",
    "tea,ann,7\n",
    f"jug,{PERSON},1\nmug,bob,9\n",
)
SHOWN = {
    "state/app/totals": 4, "lake/all_rows": 4, "lake/by_customer": 4, "state/app/newest_sink": 4, "lake/newest": 3,
    "state/app/snapshot_sink": 4, "lake/snapshot": 1, "state/app/crm_copied_sink": 4, "database/crm/copied": 4,
    "state/app/crm_copied_newest_sink": 4, "database/crm/copied_newest": 3, "state/app/out_sink": 4, "files/out": 4,
    "lake/customer_totals": 1, "database/crm/copied_totals": 1, "lake/app_quarantine": 1,
}  # fmt: skip
"""The rows of the person that each table shows before."""

LATER = "cup,eve,1\njug,ann,2\n"
"""The key `cup` is the person's, another's, and the person's again; a line of the second file is bad."""


@pytest.fixture(scope="module")
def ran(engine: NoSpark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Return a project that has read five files, the last one twice, with images of its states; and a copy of it."""
    folder, kept = tmp_path_factory.mktemp("ran"), tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patched:
        make(folder, FILES, patched)
        shutil.copytree(folder, kept / "all", ignore=shutil.ignore_patterns("inbox"))
        yield folder, kept / "all"


@pytest.fixture
def root(ran: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return that project, as it was; its inputs stay where they are, since another inode is another file."""
    restore(*ran)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
    monkeypatch.chdir(ran[0])
    yield ran[0]
    failpoints.arm("")


@pytest.fixture(scope="module")
def cleared(ran: tuple[Path, Path]) -> Path:
    """Return a copy of that project after the erasure."""
    restore(*ran)
    copy = ran[1].with_name("cleared")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(ran[0])
        erased(ran[0])
    shutil.copytree(ran[0], copy, ignore=shutil.ignore_patterns("inbox"))
    return copy


@pytest.fixture
def after(ran: tuple[Path, Path], cleared: Path, root: Path) -> Path:
    """Return the project after the erasure."""
    restore(root, cleared)
    return root


def restore(folder: Path, kept: Path) -> None:
    failpoints.arm("")
    for path in folder.iterdir():
        if path.name == "inbox":
            for file in path.iterdir():
                if int(file.stem) >= len(FILES):
                    file.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.copytree(kept, folder, dirs_exist_ok=True)


def make(folder: Path, files: Sequence[str], patched: pytest.MonkeyPatch) -> None:
    """Make a project whose last file was read, withdrawn and read again; rows of `newest` leave by deletion vectors."""
    patched.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
    patched.setattr(keyed_merge, "_MUCH_OF_TABLE", 0)
    patched.setattr(keyed_merge, "_MOST_MARKED", 1)
    (folder / "inbox").mkdir(parents=True)
    (folder / "app.py").write_text(APPLICATION)
    (folder / "drainmark.toml").write_text(
        f'applications = ["app.py"]\nhome = "home"\n[databases]\ncrm = "sqlite:///{folder}/crm.db"\n'
    )
    patched.chdir(folder)
    for number, text in enumerate(files):
        write(folder, number, text)
        done("run", "app.py")
        if number == len(FILES) - 1:
            done("reset", "app", "--by", "1")
            done("run", "app.py")


def write(root: Path, number: int, text: str) -> None:
    (root / "inbox" / f"{number:03}.csv").write_text(text)
    settle(root / "inbox")


def erased(root: Path, name: str = "certificate.json", *more: str) -> dict[str, Any]:
    done("erase", "--where", WHERE, "--certificate", str(root / name), *more)
    found: dict[str, Any] = json.loads((root / name).read_text())
    return found


def remedy_of(root: Path) -> str:
    """Return the remedy of the halt in force."""
    place = Workplace(Settings(home=root / "home", project_root=root))
    try:
        halt = place.history("app/rows").halt
    finally:
        place.registry.close()
    assert halt is not None
    assert halt.detail["error"]["id"] == "ERASED_INPUT"
    return str(halt.detail["error"]["remedy"])


def statuses(capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert invoke(["status", "app", "--json"]) in (0, 3)
    return json.loads(capsys.readouterr().out)


def read(table: str, at: int | None = None) -> Counter[str]:
    return Counter(map(str, dm.read("app", table, at=at).to_pylist()))


def found_in(folder: Path, canary: str = PERSON) -> dict[str, str]:
    """Return the files below a folder in which a value is found: in the columns of Parquet, or in any bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        name = str(path.relative_to(folder))
        if canary.encode() in data:
            found[name] = "bytes"
        elif data[:4] == b"PAR1" and canary in str(pq.read_table(io.BytesIO(data)).to_pydict()):
            found[name] = "rows"
    return found


def places_of(root: Path) -> dict[str, str]:
    return {name: how for name, how in found_in(root).items() if not name.startswith(("inbox/", "app.py", ".ruff"))}


def past(root: Path) -> dict[tuple[str, int], Counter[str]]:
    """Return all tables at all ids; of a state, whose images repeat rows, each row once."""
    found = {(table, number): read(table, number) for table in TABLES for number in ids(root)}
    return {
        (table, at): Counter({*rows}) if table.startswith("state/") else rows for (table, at), rows in found.items()
    }


def now() -> dict[str, Counter[str]]:
    return {table: read(table) for table in TABLES if not table.startswith("state/")}


def cleaned(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if PERSON not in line)


@pytest.fixture(scope="module")
def other(engine: NoSpark, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Counter[str]]:
    """Return the tables, by their name and an id, of a project whose files never held the person."""
    folder = tmp_path_factory.mktemp("other")
    with pytest.MonkeyPatch.context() as patched:
        make(folder, [*map(cleaned, (*FILES, LATER))], patched)
        return past(folder)


@pytest.mark.seed("ER1", "ER2")
def test_a_person_leaves_every_byte_and_every_state(root: Path, other: dict[tuple[str, int], Counter[str]]) -> None:
    before = ids(root)
    assert len(places_of(root)) > 10
    assert [*(root / "home/lake/newest").glob("deletion_vector_*.bin")]
    certificate = erased(root)
    assert places_of(root) == {}
    assert certificate["found_afterwards"] == []
    assert PERSON not in (root / "certificate.json").read_text()
    assert ids(root) == before
    found = past(root)
    assert {key: (found[key], other[key]) for key in found if found[key] != other[key]} == {}
    done("doctor", "--quick")
    again = erased(root, "again.json")
    assert [table["table"] for table in again["regions"][0]["tables"]] == [
        table["table"] for table in certificate["regions"][0]["tables"]
    ]
    assert past(root) == found


@pytest.mark.seed("ER2")
@pytest.mark.parametrize("to", [0, 1, 2, 3, 4])
def test_a_rewind_gives_the_past_without_the_person(
    after: Path, other: dict[tuple[str, int], Counter[str]], to: int
) -> None:
    done("reset", "app", "--to", str(to))
    assert {table: (rows, other[table, to]) for table, rows in now().items() if rows != other[table, to]} == {}
    assert places_of(after) == {}


@pytest.mark.seed("ER1", "ER3")
def test_a_run_goes_on_and_reads_nothing_again_that_held_the_person(
    after: Path, other: dict[tuple[str, int], Counter[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    root = after
    write(root, len(FILES), LATER)
    done("run", "app.py")
    last = max(ids(root))
    assert {table: (rows, other[table, last]) for table, rows in now().items() if rows != other[table, last]} == {}
    done("reset", "app", "--to", "3")
    done("run", "app.py", code=3)
    assert "ERASED_INPUT" in json.dumps(statuses(capsys))
    assert places_of(root) == {}, "nothing came back"
    follow(remedy_of(root), "skip", root / "home")
    done("run", "app.py")
    wanted = [row for row in values(other["all_rows", last]) if "mug" not in row]
    assert sorted(values(read("all_rows"))) == sorted(wanted)


@pytest.mark.seed("ER3")
def test_one_halt_names_all_inputs_of_the_person(after: Path) -> None:
    done("reset", "app", "--to-initial")
    done("run", "app.py", code=3)
    named = [name for name in (f"{number:03}.csv" for number in range(len(FILES))) if name in remedy_of(after)]
    assert named == [f"{number:03}.csv" for number, text in enumerate(FILES) if PERSON in text]
    follow(remedy_of(after), "skip", after / "home")
    done("run", "app.py")
    whole = [row for row in values(read("all_rows")) if PERSON in row]
    assert whole == []
    assert places_of(after) == {}


@pytest.mark.seed("ER3")
def test_an_input_without_the_person_is_read_again(after: Path, other: dict[tuple[str, int], Counter[str]]) -> None:
    root = after
    done("reset", "app", "--to", "4")
    done("run", "app.py", code=3)
    file = root / "inbox" / "004.csv"
    held = file.read_text()
    kept = file.rename(root / "004.held")
    try:
        write(root, len(FILES) - 1, cleaned(held))
        follow(remedy_of(root), "resume", root / "home")
        done("run", "app.py")
        assert sorted(values(read("all_rows"))) == sorted(values(other["all_rows", max(at for _, at in other) - 1]))
        assert places_of(root) == {"004.held": "bytes"}
    finally:
        kept.rename(file)


@pytest.mark.seed("ER3")
@pytest.mark.parametrize("way", ["moved", "copied"])
def test_a_person_does_not_come_back_with_a_project_that_lies_elsewhere(
    engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its files are read again from their new place, as the refusal of the first run says."""
    before, root = tmp_path / "before", tmp_path / "after"
    make(before, FILES[:4], monkeypatch)
    erased(before)
    if way == "copied":
        shutil.copytree(before, root)
        shutil.rmtree(before)
    else:
        before.rename(root)
    monkeypatch.chdir(root)
    done("run", "app.py", code=2)
    done("reset", "app/rows", "--to-initial", "--accept-loss")
    done("run", "app.py", code=3)
    assert places_of(root) == {}
    follow(remedy_of(root), "skip", root / "home")
    done("run", "app.py")
    assert [row for row in values(read("all_rows")) if PERSON in row] == []
    assert [row for row in values(read("all_rows")) if "'n': 7" in row], "other files are read"


@pytest.mark.seed("ER3")
@pytest.mark.parametrize(("first", "person", "halts"), [(4, 6, True), (4, 4, True), (6, 6, True), (5, 4, False)])
def test_records_of_a_person_do_not_come_back_with_slices_that_are_cut_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, person: int, *, halts: bool
) -> None:
    """Retention takes records while slices wait; `resume --accept-loss` cuts them with other bounds."""
    fed = sliced(tmp_path, monkeypatch, 3)
    for records in (0, 2, 2):
        fed.came(records)
    erase(fed.workplace, Person.parse(f"value = '{person}'"), fed.workplace.own_regions())
    fed.reset(1)
    fed.log.first = first
    orders.resume(fed.workplace, fed.region, "they are gone", accept_loss=True).act()
    fed.log.append(1)
    fed.scan()
    with fed.owning() as owner:
        waiting = fed.workplace.registry.triggers.pending(fed.region, 9)
        if halts:
            with pytest.raises(ErasedInput) as refused:
                IdAssignment(owner).assign(waiting)
            assert refused.value.facts["trigger"] == waiting[-1].uri
        else:
            assert len(IdAssignment(owner).assign(waiting)) == 2, "the record itself is lost"
    fed.log.append(2)
    fed.scan()
    with fed.owning() as owner:
        (*_, newest) = fed.workplace.registry.triggers.pending(fed.region, 9)
        assert len(IdAssignment(owner).assign([newest])) == 1, "what comes behind was never read"
    fed.workplace.registry.close()


@pytest.mark.seed("ER3")
@pytest.mark.parametrize("name", ["b", "z"])
def test_a_halt_for_a_period_names_its_files_and_the_one_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A changed file is no part of a period, so to take the rows out is no remedy."""
    fed = sliced(tmp_path, monkeypatch)
    fed.came(a="ann\n", **{name: f"{PERSON}\nbob\n"}, c="eve\n")
    fed.came(d="dan\n")
    found = erase(fed.workplace, Person.parse(f"value = '{PERSON}'"), fed.workplace.own_regions())
    (period,) = [each for each in found["inputs"] if not each["state"]]
    assert [Path(file).name for file in period["files"]] == [f"{name}.csv"]
    fed.reset(0)
    with fed.owning() as owner, pytest.raises(ErasedInput) as refused:
        IdAssignment(owner).assign(fed.next(2))
    assert f"{name}.csv" in refused.value.message
    assert "a.csv" not in refused.value.message
    assert [command.split()[1] for command in refused.value.commands] == ["skip"]
    assert "resume" not in str(refused.value.remedy)
    follow(str(refused.value.remedy), "skip", fed.workplace.home)
    with fed.owning() as owner:
        assert len(IdAssignment(owner).assign(fed.next(2))) == 1
    fed.drain()
    assert fed.only_values() == ["dan"]
    fed.workplace.registry.close()


@pytest.mark.seed("ER3")
def test_a_halt_for_records_of_a_topic_names_the_one_way_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = sliced(tmp_path, monkeypatch, 3)
    for records in (0, 2, 1):
        fed.came(records)
    erase(fed.workplace, Person.parse("value = '4'"), fed.workplace.own_regions())
    fed.reset(0)
    with fed.owning() as owner, pytest.raises(ErasedInput) as refused:
        IdAssignment(owner).assign(fed.next(9))
    assert [command.split()[1] for command in refused.value.commands] == ["skip"]
    follow(str(refused.value.remedy), "skip", fed.workplace.home)
    fed.drain()
    assert fed.only_values() == ["0", "1", "2", "5"]
    fed.workplace.registry.close()


def values(rows: Counter[str]) -> list[str]:
    """Return rows without their ids, which differ from run to run."""
    return [re.sub(r"'_sequence_id': \d+", "", row) for row in rows.elements()]


POINTS = [
    *(("erase.noted", 1), ("erase.before_commit", 4), ("erase.sink", 2), ("erase.purged", 1)),
    *(pytest.param(*each, marks=pytest.mark.slow)
      for each in (("erase.after_commit", 12), ("repair.after_commit", 1), ("erase.log", 1))),
]  # fmt: skip
"""A passing of each point; another slow test goes through all of them."""


@pytest.mark.seed("ER4")
@pytest.mark.parametrize(("point", "number"), POINTS)
def test_an_erasure_that_was_killed_goes_on(
    root: Path, other: dict[tuple[str, int], Counter[str]], point: str, number: int
) -> None:
    assert killed_at(f"{point}:kill:{number}", *COMMAND) == KILLED, "the point was not passed"
    certificate = erased(root)
    assert places_of(root) == {}
    found = past(root)
    assert {key: (found[key], other[key]) for key in found if found[key] != other[key]} == {}
    assert certificate["regions"][0]["ids"] == [1, 2, 3, 5, 7]
    assert {table["table"]: table["rows"] for table in certificate["regions"][0]["tables"]} == SHOWN
    assert len(certificate["regions"][0]["removed"]) >= 60


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.seed("ER4")
@pytest.mark.parametrize("point", ["erase.before_commit", "erase.after_commit", "erase.log", "erase.sink"])
def test_an_erasure_that_was_killed_anywhere_goes_on(
    ran: tuple[Path, Path], root: Path, other: dict[tuple[str, int], Counter[str]], point: str
) -> None:
    for number in range(1, 100):
        restore(*ran)
        if killed_at(f"{point}:kill:{number}", *COMMAND) == 0:
            break
        erased(root)
        assert places_of(root) == {}
        found = past(root)
        assert {key: (found[key], other[key]) for key in found if found[key] != other[key]} == {}, number
    assert number > 4


def tidied(root: Path, horizon: int) -> None:
    """Drop what no rewind needs, compact all tables, and the checkpoint table twice."""
    place = Workplace(Settings(home=root / "home", project_root=root, databases={"crm": f"sqlite:///{root}/crm.db"}))
    with owning(region_owner(place, "app/rows")) as owner:
        maintain_region(owner, horizon=horizon)
        assert owner.outside.store.checkpoint.compact(files_at_least=2)
    place.registry.close()


@pytest.mark.seed("ER2")
def test_a_person_leaves_what_maintenance_left(root: Path, other: dict[tuple[str, int], Counter[str]]) -> None:
    """Where older rows of a key are kept as their outcome only, the key leaves with its last row."""
    tidied(root, 2)
    certificate = erased(root)
    assert certificate["found_afterwards"] == []
    assert places_of(root) == {}
    last = max(ids(root))
    assert {table: (now()[table], read(table, last)) for table in now() if now()[table] != read(table, last)} == {}
    assert now()["all_rows"] == other["all_rows", last]
    assert now()["copied"] == other["copied", last]
    assert now()["customer_totals"] == other["customer_totals", last]
    wanted = {table: read(table, 4) for table in now()}
    tidied(root, 2)
    write(root, len(FILES), LATER)
    done("run", "app.py")
    done("reset", "app", "--to", "4")
    assert now() == wanted
    done("doctor", "--quick")


@pytest.mark.seed("ER2")
def test_the_registry_is_rebuilt_from_rows_without_the_person(after: Path) -> None:
    before, states = now(), ids(after)
    for path in (after / "home").glob("registry.db*"):
        path.unlink()
    invoke(["doctor", "--repair", "--yes"])  # without Spark, one of its checks fails
    assert (now(), ids(after)) == (before, states)
    done("reset", "app", "--to", "3")
    done("run", "app.py", code=3)


@pytest.mark.seed("ER1")
def test_rows_that_were_replaced_leave_too(root: Path, other: dict[tuple[str, int], Counter[str]]) -> None:
    """A region of append tables whose first file was processed again: the rows of before are kept for rewinds."""
    (root / "app.py").write_text(APPLICATION.partition("totals = ")[0] + 'dm.sink(rows, dm.DeltaAppend("all_rows"))\n')
    shutil.rmtree(root / "home")
    done("run", "app.py", "--max-group", "1")
    done("backfill", "app", "--input", str(root / "inbox" / "000.csv"), "--again")
    done("run", "app.py")
    certificate = erased(root)
    assert certificate["found_afterwards"] == []
    assert places_of(root) == {"crm.db": "bytes", **{f"out/{path.name}": "bytes" for path in held_in(root / "out")}}
    assert sorted(values(read("all_rows"))) == sorted(values(other["all_rows", 7]))
    done("reset", "app", "--to", "5")
    assert sorted(values(read("all_rows"))) == sorted(values(other["all_rows", 7]))
    assert sorted(values(read("all_rows", 1))) == sorted(values(other["all_rows", 1]))


def held_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file() and PERSON in path.read_text()]


def test_an_instance_elsewhere_is_masked_but_nothing_that_lies_beside_it(root: Path) -> None:
    from dagster import AssetMaterialization

    from drainmark.orchestration.dagster_assets.instance import instance_at, remember_instance
    from drainmark.resources.settings import load_settings

    platform = root / "platform"
    platform.mkdir()
    with instance_at(platform) as instance:
        instance.report_runless_asset_event(AssetMaterialization("all_rows", metadata={"said": f"bad: {PERSON}, x"}))
        remember_instance(load_settings(), instance)
    (log := platform / "storage" / "run" / "compute_logs" / "step.err").parent.mkdir(parents=True)
    for path in (log, mine := platform / "mine.csv"):
        path.write_text(f"cannot read {PERSON}, x\n")
    try:
        erased(root)
        assert [path for path in platform.rglob("*") if path.is_file() and PERSON.encode() in path.read_bytes()] == [
            mine
        ]
    finally:
        shutil.rmtree(platform)
        (root / "home" / "dagster_home").unlink()


@pytest.mark.seed("ER5")
def test_dagster_pages_and_messages_hold_nothing_of_the_person(root: Path) -> None:
    from dagster import AssetKey, AssetMaterialization, DagsterInstance

    from drainmark.orchestration.dagster_assets.instance import instance_at

    home = root / "home" / "dagster"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with instance_at(home) as instance:
        instance.report_runless_asset_event(AssetMaterialization("all_rows", metadata={"said": f"bad: {PERSON}, x"}))
    (log := home / "storage" / "run" / "compute_logs" / "step.err").parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"cannot read {PERSON}, x\n")
    write(root, len(FILES), f"cup,{PERSON},x\n")
    done("report", "app")
    assert "home/dagster/storage/run/compute_logs/step.err" in places_of(root)
    certificate = erased(root)
    assert places_of(root) == {}
    assert certificate["found_afterwards"] == []
    with instance_at(home) as instance:
        assert isinstance(instance, DagsterInstance)
        (event,) = instance.fetch_materializations(AssetKey("all_rows"), limit=5).records
        assert event.asset_materialization is not None
        assert "[erased]" in str(event.asset_materialization.metadata)


@pytest.mark.seed("ER1")
def test_what_operators_said_holds_nothing_of_the_person(
    engine: NoSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each verb that takes a reason stores it."""
    said = ("--reason", f"asked for by {PERSON}, in a letter")
    plain = APPLICATION.partition("totals =")[0]
    monkeypatch.setitem(globals(), "APPLICATION", f'{plain}dm.sink(rows, dm.DeltaAppend("all_rows"))\n')
    make(tmp_path, FILES[:1], monkeypatch)
    code = (tmp_path / "app.py").read_text()
    (tmp_path / "app.py").write_text(f'{code}dm.sink(rows, dm.DeltaAppend("left"))\n')
    for number, text in enumerate(("x,y,1\n", "z,y,1\n", "w,y,1\n"), start=1):
        write(tmp_path, number, text)
    done("run", "app.py")
    (tmp_path / "app.py").write_text(code)
    done("retract", "app/rows", "001.csv", *said)
    done("reset", "app/rows", "--to", "3")
    done("skip", "app/rows", "--file", "003.csv", *said)
    done("halt", "app/rows", *said)
    done("resume", "app/rows", *said)
    write(tmp_path, 4, "v,y,1\n")
    done("run", "app.py")
    done("tables", "drop", "left", *said)
    assert places_of(tmp_path)
    found = erased(tmp_path)
    assert (places_of(tmp_path), found["found_afterwards"]) == ({}, [])
    capsys.readouterr()
    done("history", "app/rows", "--all", "--json")
    assert capsys.readouterr().out.count("[erased]") >= 5


@pytest.mark.seed("ER4")
@pytest.mark.parametrize("sink", [FileTable, DatabaseTable])
def test_what_a_killed_erasure_left_where_no_reader_looks_leaves_with_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch, sink: type[Any]
) -> None:
    def killed(table: object) -> None:
        raise KeyboardInterrupt

    databases = {"crm": f"sqlite:///{root}/crm.db"}
    place = Workplace(Settings(home=root / "home", project_root=root, databases=databases))
    with monkeypatch.context() as dying:
        dying.setattr(sink, "forget_removed", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(place, Person.parse(WHERE), place.own_regions())
    assert places_of(root) != {}
    erased(root)
    assert places_of(root) == {}


@pytest.mark.seed("ER2")
def test_a_crash_after_an_erasure_takes_nothing_of_the_past_along(root: Path) -> None:
    """What only rewinds read, such as an image in place of dropped changes, lies in folders of no row's attempt."""
    tidied(root, 2)
    erased(root)
    last = max(ids(root))
    wanted, files = read("state/app/totals", last), {*(root / "home/state").rglob("erased-*.parquet")}
    killed = killed_at("claim.after_commit:kill:1", "reset", "app", "--to", "4", "--yes")
    assert killed == KILLED
    place = Workplace(Settings(home=root / "home", project_root=root, databases={"crm": f"sqlite:///{root}/crm.db"}))
    with owning(region_owner(place, "app/rows")) as owner:
        assert owner.history.last_claim is not None
        assert owner.history.last_claim.detail["previous"] == "crashed"
    assert files
    assert {*(root / "home/state").rglob("erased-*.parquet")} == files
    assert read("state/app/totals", last) == wanted
