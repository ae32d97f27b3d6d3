"""Unreadable rows and files are quarantined or halt the region; nothing is lost or silently null (I3, I9–I12, I19)."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import APP, QUARANTINE, REGION, Fate, copying, fates, run, write
from followed import follow
from harness import LONG_AGO, rows, run_once, settle

from drainmark.jobs.errors import BadInput, Halted, UnknownName, UsageError
from drainmark.jobs.tasks import read_files
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_assets.checks import QUARANTINE_RATIO, judgements
from drainmark.orchestration.inspection.status import history_entries
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.inputs.quarantine import carry_out, plan_redrive, quarantined_files, quarantined_rows
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

CSV = {"format": "csv", "schema": "id bigint, name string", "options": {"header": "true"}}
FILES: Mapping[str, bytes] = {
    "a.csv": b"id,name\n1,a\n2,b\n",
    "b.csv": b'id,name\n1,a\nx,"q"\n\n2,b,c\n3,c\n4,caf\xe9\n5,"open\n99999999999999999999,f\n'
    b"7,g\n8,h\n9,i\n6,j\n6,k\n",
    "c.csv": b"name,id\na,1\n",
    "d.csv": b"id,name\nx,y\nz,w\n1,a\n",
    "e.csv": "id,name\n1,a\n".encode("utf-16"),
    "f.csv.gz": gzip.compress(b"id,name\n" + b"1,a\n" * 1000)[:-9],
    "g.csv": b"",
    "h.csv": b"id,name\n1,a\n  \n2,b",
    "i.csv": b"id,name\n",
}
BAD_LINES = {
    3: "column 'id': 'x' is no bigint",
    5: "has 3 columns, declared are 2",
    7: "not UTF-8: byte 0xe9 at 6",
    8: "a quote is not closed",
    9: "column 'id': '99999999999999999999' is no bigint: it is not from -9223372036854775808 to 9223372036854775807",
}


@pytest.fixture
def large(tmp_path: Path, engine: SparkEngine) -> Iterator[Workplace]:
    """Yield a home in which Spark's tasks read the files of a group; that this process gives the same is shown by the
    other tests, and by `test_executors.py`."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, small_group_bytes=0))
    place.use_engine(engine)
    yield place
    place.registry.close()


def plain(found: Mapping[str, Fate]) -> dict[str, Any]:
    return {
        name: (fate.rows_in, sorted((row["id"], row["name"]) for row in fate.rows), fate.lines) for name, fate in
        found.items()
    }  # fmt: skip


@pytest.mark.seed("I11", "I12", "I19", "H16")
def test_bad_rows_and_files_are_quarantined_in_one_group_and_all_others_are_in(
    large: Workplace, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    write(inbox, FILES)
    found = run(large, inbox, **CSV)
    assert set(found) == set(FILES)
    assert plain(found)["a.csv"] == (2, [(1, "a"), (2, "b")], {})
    assert found["b.csv"].lines == BAD_LINES
    assert [row["raw"] for row in found["b.csv"].bad][:3] == ['x,"q"', "2,b,c", "4,caf\\xe9"]
    assert sorted(row["id"] for row in found["b.csv"].rows) == [1, 3, 6, 6, 7, 8, 9]
    assert {name for name, fate in found.items() if fate.refused} == {"c.csv", "d.csv", "e.csv", "f.csv.gz"}
    assert found["d.csv"].refused == (
        "nothing is read of a file of which more than 50% is bad: 2 of 3 rows; "
        "the first, line 2: column 'id': 'x' is no bigint"
    )
    assert plain(found)["h.csv"] == (2, [(1, "a"), (2, "b")], {})
    assert (found["g.csv"].rows_in, found["i.csv"].rows_in) == (0, 0)
    history = large.history(REGION)
    assert (history.epoch, history.attempts) == (1, 0)
    assert not list((tmp_path / "home").glob("inbox/*/*/*")), "no copy of a file is left behind"


def test_the_same_is_quarantined_however_the_files_are_grouped_and_after_a_rewind(
    workplace: Workplace, tmp_path: Path
) -> None:
    """Groups of one, and after a rewind to the beginning one group, give the same verdicts; only the ids differ."""
    inbox = tmp_path / "inbox"
    write(inbox, FILES)
    run_once(workplace, copying(inbox, **CSV), max_group=1)
    apart = fates(workplace, inbox)
    owner = region_owner(workplace, REGION)
    owner.claim()
    owner.rewind(0, 1000)
    assert rows(workplace, REGION, QUARANTINE) == [], "the quarantine is rewound with the sinks"
    from drainmark.jobs.protocol.history import Outcome

    owner.release(Outcome.CLEAN)
    assert plain(run(workplace, inbox, **CSV)) == plain(apart)


@pytest.mark.parametrize(
    ("name", "policy", "said"),
    [
        ("b.csv", "on_bad", "line 3: column 'id': 'x'"),
        ("d.csv", "on_bad", "line 2: column 'id'"),
        ("c.csv", "on_schema", "header"),
    ],
)
def test_the_other_policy_is_to_halt_before_anything_of_the_file_is_taken(
    name: str, policy: str, said: str, workplace: Workplace, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    write(inbox, {"a.csv": FILES["a.csv"], name: FILES[name]})
    with pytest.raises(Halted) as caught:
        run_once(workplace, copying(inbox, **CSV, **{policy: "halt"}))
    cause = caught.value.__cause__
    assert isinstance(cause, BadInput)
    assert said in cause.message
    assert str(inbox / name) in cause.message
    assert [row.trigger_uri for row in workplace.history(REGION).states.values()] == [str(inbox / "a.csv")]


@pytest.mark.parametrize(
    ("encoding", "options"),
    [("ISO-8859-1", {}), ("UTF-16", {"multiLine": "true"}), ("UTF-16LE", {"lineSep": "\n"})],
)
def test_files_in_a_declared_encoding_are_read_as_they_are(
    workplace: Workplace, tmp_path: Path, encoding: str, options: Mapping[str, str]
) -> None:
    write(tmp_path / "inbox", {"a.csv": "id,name\n1,é\n2,b\n".encode(encoding)})
    given = {"header": "true", "encoding": encoding, **options}
    found = run(workplace, tmp_path / "inbox", **{**CSV, "options": given})
    assert plain(found)["a.csv"] == (2, [(1, "é"), (2, "b")], {})


def test_a_higher_ratio_takes_the_good_rows_of_a_bad_file(workplace: Workplace, tmp_path: Path) -> None:
    write(tmp_path / "inbox", {"d.csv": FILES["d.csv"]})
    found = run(workplace, tmp_path / "inbox", **CSV, max_bad_ratio=0.7)
    assert plain(found)["d.csv"][:2] == (3, [(1, "a")])


def test_json_that_does_not_fit_its_columns_is_never_null(workplace: Workplace, tmp_path: Path) -> None:
    good = {"i": 1, "d": 1.5, "day": "2026-02-01", "a": [1], "s": {"x": 1}, "t": "text"}
    wrong = [
        ({"i": 3_000_000_000}, "field 'i': '3000000000' is no int: it is not from"),
        ({"i": "1"}, "field 'i': \"1\" is no int: JSON writes it as a number without quotes"),
        ({"i": 1.5}, "field 'i': '1.5' is no int: it has a point"),
        ({"d": 12345.5}, "field 'd': '12345.5' is no decimal(5,2): it has more than 3 digits before the point"),
        ({"day": "2026-02-30"}, "field 'day': '2026-02-30' is no date: there is no such day"),
        ({"a": {"x": 1}}, "field 'a': an object is no array<int>"),
        ({"a": [1, "q"]}, "field 'a[1]': \"q\" is no int"),
        ({"s": {"x": "q"}}, "field 's.x': \"q\" is no int"),
    ]
    lines = [json.dumps({**good, **bad}) for bad, _ in wrong] + [json.dumps(good)] * 10
    write(tmp_path / "inbox", {"a.json": "\n".join(lines).encode()})
    schema = "i int, d decimal(5,2), day date, a array<int>, s struct<x: int>, t string"
    found = run(workplace, tmp_path / "inbox", format="json", schema=schema)["a.json"]
    assert list(found.lines) == list(range(1, len(wrong) + 1))
    for said, (_, reason) in zip(found.lines.values(), wrong, strict=True):
        assert said.startswith(reason)
    assert len(found.rows) == 10


def test_parquet_with_a_broken_page_is_taken_out_and_the_others_are_read(large: Workplace, tmp_path: Path) -> None:
    """Footers are whole, but a bit of a page is wrong, behind rows that were read already."""
    inbox = tmp_path / "inbox"
    table = pa.table({"id": list(range(5000)), "name": [f"n{number}" for number in range(5000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, row_group_size=1000)
    good = sink.getvalue().to_pybytes()
    at = len(good) * 2 // 3
    broken = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    write(inbox, {f"{n}.parquet": broken if n in (1, 3, 4) else good for n in range(6)})
    found = run(large, inbox, format="parquet", schema="id bigint, name string")
    refused = {name: fate.refused for name, fate in found.items() if fate.refused}
    assert set(refused) == {"1.parquet", "3.parquet", "4.parquet"}
    assert all("pages that cannot be read" in str(why) for why in refused.values())
    assert [len(fate.rows) for fate in found.values()] == [5000, 0, 5000, 0, 0, 5000]


@pytest.mark.seed("I3", "V113")
def test_a_file_that_changes_while_it_is_read_is_scanned_anew_and_not_called_bad(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = tmp_path / "inbox"
    write(inbox, {"a.csv": FILES["a.csv"]})
    opened, times = read_files.opened, [0]

    def changing(file: Any) -> Any:
        if not times[0]:
            (inbox / "a.csv").write_bytes(b"garbage\xff")
        times[0] += 1
        return opened(file)

    monkeypatch.setattr(read_files, "opened", changing)
    application = copying(inbox, **CSV, on_bad="halt", on_schema="halt")
    assert run_once(workplace, application) == []
    history = workplace.history(REGION)
    assert (dict(history.states), history.halt, history.attempts) == ({}, None, 0)
    write(inbox, {"a.csv": FILES["a.csv"] + b"3,c\n"})
    run_once(workplace, application)
    assert sorted(row["id"] for row in rows(workplace, REGION, "copied")) == [1, 2, 3]


@pytest.mark.seed("I7", "V199")
def test_equal_content_under_two_names_is_processed_twice(workplace: Workplace, tmp_path: Path) -> None:
    write(tmp_path / "inbox", {"a.csv": FILES["a.csv"], "copy of a.csv": FILES["a.csv"]})
    found = run(workplace, tmp_path / "inbox", **CSV)
    assert [len(fate.rows) for fate in found.values()] == [2, 2]


# --- looking, and taking in again ---------------------------------------------------------------------------------


@pytest.fixture
def quarantined(workplace: Workplace, tmp_path: Path) -> Workplace:
    write(tmp_path / "inbox", {name: FILES[name] for name in ("a.csv", "b.csv", "c.csv")})
    run_once(workplace, copying(tmp_path / "inbox", **CSV))
    return workplace


def test_the_quarantine_is_listed_and_shown(quarantined: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    listed = quarantined_files(quarantined, REGION)
    assert [(entry["file"], entry["is_whole"], entry["rows_quarantined"], entry["rows_in"]) for entry in listed] == [
        (str(inbox / "b.csv"), False, 5, 12),
        (str(inbox / "c.csv"), True, 1, 1),
    ]
    assert [row["position"] for row in quarantined_rows(quarantined, REGION, "b.csv")] == list(BAD_LINES)
    assert len(quarantined_rows(quarantined, REGION)) == 6
    with pytest.raises(UnknownName):
        quarantined_rows(quarantined, REGION, "a.csv")
    entries = history_entries(quarantined, REGION)
    assert [entry["rows_quarantined"] for entry in entries] == [0, 5, 1]
    assert entries[2]["reason"].startswith("has a header that differs")
    checks = {check.name: check for check in judgements(quarantined, copying(inbox, **CSV).region())}
    check = checks[QUARANTINE_RATIO]
    assert not check.passed
    assert check.metadata == {"drainmark/rows_quarantined": 6, "drainmark/files_quarantined": 1}


def test_a_mended_file_is_taken_in_again_under_an_id_of_its_own(quarantined: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    with pytest.raises(UsageError, match="still the file that was quarantined"):
        plan_redrive(quarantined, REGION, "c.csv")
    (inbox / "c.csv").rename(inbox / "away")
    with pytest.raises(UsageError, match=r"c\.csv"):
        plan_redrive(quarantined, REGION, "c.csv")
    (inbox / "away").rename(inbox / "c.csv")
    with pytest.raises(UsageError, match="less 5 of 12 rows"):
        plan_redrive(quarantined, REGION, "b.csv")
    bound = []
    for content in (b"id,name\n1,mended once\n", b"id,name\n1,mended\n"):
        (inbox / "c.csv").write_bytes(content)
        os.utime(inbox / "c.csv", (LONG_AGO, LONG_AGO))
        bound.append(orders.redrive(quarantined, REGION, "c.csv").bound)
    assert bound[0] != bound[1], "the plan is of this content"
    done = carry_out(quarantined, plan_redrive(quarantined, REGION, "c.csv"))
    assert (done["quarantined_as"], done["queued"], done["pending_triggers"]) == (3, 1, 1)
    run_once(quarantined, copying(inbox, **CSV))
    assert [row["name"] for row in rows(quarantined, REGION, "copied") if row["_sequence_id"] == 4] == ["mended"]
    assert quarantined_files(quarantined, REGION)[1]["redriven_as"] == 4
    (inbox / "c.csv").write_bytes(b"id,name\n1,mended\n2,more\n")
    os.utime(inbox / "c.csv", (LONG_AGO, LONG_AGO))
    with pytest.raises(UsageError, match="read again as 4") as refused:  # its row would be counted twice
        plan_redrive(quarantined, REGION, "c.csv")
    follow(refused.value.remedy, "backfill", quarantined.home)
    run_once(quarantined, copying(inbox, **CSV))
    assert [row["name"] for row in rows(quarantined, REGION, "copied") if row["_sequence_id"] > 3] == ["mended", "more"]


def test_a_mended_file_that_is_scanned_before_it_is_redriven_is_taken_and_halts_nothing(
    quarantined: Workplace, tmp_path: Path
) -> None:
    """No row of the file was taken, so it is no change of a committed file (I4) with the default `on_change="halt"`."""
    mended = tmp_path / "inbox" / "c.csv"
    mended.write_bytes(b"id,name\n1,mended\n")
    os.utime(mended, (LONG_AGO, LONG_AGO))
    run_once(quarantined, copying(tmp_path / "inbox", **CSV))
    assert [row["name"] for row in rows(quarantined, REGION, "copied") if row["_sequence_id"] == 4] == ["mended"]


def test_the_verbs_print_what_they_found(
    quarantined: Workplace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ("--home", str(quarantined.home))
    assert invoke([*home, "quarantine", "list", APP, "--json"]) == 0
    assert [entry["rows_quarantined"] for entry in json.loads(capsys.readouterr().out)] == [5, 1]
    assert invoke(["quarantine", "show", APP, "--file", "b.csv", *home]) == 0
    assert "column 'id': 'x' is no bigint" in capsys.readouterr().out
    assert invoke(["quarantine", "redrive", APP, "--file", "b.csv", "--json", *home]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    of_a = [row["name"] for row in rows(quarantined, REGION, "copied") if row["_sequence_id"] == 1]
    fixed = tmp_path / "inbox" / "b.csv"
    fixed.write_bytes(b"id,name\n5,fixed\n")
    os.utime(fixed, (LONG_AGO, LONG_AGO))
    follow(error["remedy"], "reset", quarantined.home)
    run_once(quarantined, copying(tmp_path / "inbox", **CSV))
    assert sorted(row["name"] for row in rows(quarantined, REGION, "copied")) == sorted([*of_a, "fixed"])
    capsys.readouterr()
    assert invoke(["quarantine", "list", "nobody", *home]) == UnknownName.exit_code


# --- many files ---------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
@pytest.mark.seed("I18")
@pytest.mark.parametrize(
    ("files", "taken", "group"), [(2_000, 200, 100), pytest.param(50_000, 6000, None, marks=pytest.mark.slow)]
)
def test_so_many_files_are_scanned_at_once_and_taken_group_by_group(
    workplace: Workplace, tmp_path: Path, files: int, taken: int, group: int | None
) -> None:
    import psutil

    from drainmark.orchestration.discovery.region_scan import scan_region

    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number in range(files):
        (inbox / f"{number:06d}.txt").write_bytes(b"a\n")
    settle(inbox)
    application = copying(inbox)
    assert len(scan_region(workplace, application.region()).new) == files
    before = psutil.Process().memory_info().rss
    reports = run_once(workplace, application, scan=False, max_triggers=taken, max_group=group)
    assert sum(report.triggers for report in reports) == taken
    assert workplace.registry.pending_count(REGION) == files - taken
    assert psutil.Process().memory_info().rss - before < 200 * 1024 * 1024
