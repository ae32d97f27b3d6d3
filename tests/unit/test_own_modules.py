"""Modules in the folder of an application's file: each application has its own, and never those of an earlier load."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import SOON, eventually

from drainmark.jobs.errors import UsageError
from drainmark.jobs.errors.environment import AnalysisTimeout
from drainmark.jobs.graph.application import load_application
from drainmark.jobs.graph.own_modules import own_modules, texts_of
from drainmark.orchestration.workplace.workplace import open_in_time
from drainmark.resources.spark.worker_code import archive_of

pytestmark = pytest.mark.seed("AU2")

APPLICATION = """
import drainmark as dm
from helping_words import WORD

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*.txt", format="text"))
def lines(scanned):
    return scanned

def late():
    import helping_later
    return helping_later.WORD

dm.sink(lines, dm.DeltaAppend(WORD))
"""


@pytest.fixture(autouse=True)
def path_restored() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def write(folder: Path, word: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "helping_words.py").write_text(f"WORD = {word!r}\n")
    (folder / "helping_later.py").write_text(f"WORD = {word!r} + ' later'\n")
    (folder / "app.py").write_text(APPLICATION)
    return folder / "app.py"


def words(path: Path) -> tuple[str, str]:
    """Return the words that an application gets from its modules at import, and later."""
    application = load_application(str(path))
    (table,) = (table for operator in application.operators for table in operator.tables)
    return table, sys.modules["drainmark_application_app"].late()


def test_each_application_has_the_modules_beside_it(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", "first"), write(tmp_path / "b", "second")
    found = [words(first), words(second), words(first)]
    assert found == [("first", "first later"), ("second", "second later"), ("first", "first later")]


def test_what_was_edited_is_loaded_anew(tmp_path: Path) -> None:
    before = words(write(tmp_path, "before"))
    assert (before, words(write(tmp_path, "afterwards"))) == (
        ("before", "before later"),
        ("afterwards", "afterwards later"),
    )


def test_an_edit_in_the_second_of_a_load_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes bytecode of the same second, for a file of the same size, as that of the file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    second = int(time.time()) * 10**9

    def loaded(word: str, nanosecond: int) -> tuple[str, str]:
        application = write(tmp_path, word)
        for file in tmp_path.glob("helping_*.py"):
            os.utime(file, ns=(0, second + nanosecond))
        found = words(application)
        for file in tmp_path.glob("__pycache__/helping_*.pyc"):
            os.utime(file, ns=(0, second + nanosecond + 1))
        return found

    assert loaded("one", 10) == ("one", "one later")
    assert loaded("two", 20) == ("two", "two later")


def test_own_modules_are_found_wherever_they_are_imported(tmp_path: Path) -> None:
    path = write(tmp_path, "word")
    (tmp_path / "helping_words.py").write_text("from helping_package import thing\nimport json, numpy\nWORD = 'w'\n")
    (tmp_path / "helping_package" / "deep").mkdir(parents=True)
    for name in ("__init__", "thing", "deep/thing"):
        (tmp_path / "helping_package" / f"{name}.py").write_text("")
    for name in ("json", "unused"):
        (tmp_path / f"{name}.py").write_text("")
    own = own_modules(path)
    assert set(own) == {"helping_words", "helping_later", "helping_package"}
    assert set(texts_of(own)) == {
        "helping_words.py", "helping_later.py", "helping_package/__init__.py", "helping_package/thing.py",
        "helping_package/deep/thing.py",
    }  # fmt: skip


def test_a_wrong_declaration_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("import drainmark as dm\n\nslow = dm.percentile('ms', 95)\n")
    with pytest.raises(UsageError) as raised:
        load_application(str(path))
    assert str(raised.value.location) == f"{path}:3"
    assert f"{path}:3" in str(raised.value)


def test_equal_files_are_shipped_as_equal_archives() -> None:
    """The time and the order of reading do not matter: a session refuses a different archive of the same name."""
    texts = {"helping/b.py": b"B = 1\n", "helping/a.py": b"A = 1\n"}
    packed = archive_of(texts)
    assert packed == archive_of(dict(reversed(texts.items())))
    assert packed != archive_of({**texts, "helping/a.py": b"A = 2\n"})
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {member.filename: archive.read(member) for member in archive.infolist()} == texts


def test_a_name_that_an_installed_module_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "word")
    (tmp_path / "app.py").write_text(f"import psutil\n{APPLICATION}")
    (tmp_path / "psutil.py").write_text("")
    with pytest.raises(UsageError) as refused:
        load_application(str(path))
    assert refused.value.location is not None
    assert refused.value.location.file == str(path)
    assert "psutil.py" in (refused.value.remedy or "")


@pytest.mark.seed("AU10")
def test_a_load_that_was_given_up_before_its_turn_takes_none(tmp_path: Path) -> None:
    slow, hanging, begun = write(tmp_path / "slow", "slow"), tmp_path / "hanging.py", tmp_path / "begun"
    begins = f"import pathlib, time\n\nbegun = pathlib.Path({str(begun)!r})\nbegun.touch()\n"
    slow.write_text(f"{begins}while begun.exists():\n    time.sleep(0.01)\n{APPLICATION}")
    hanging.write_text("import time\n\ntime.sleep(600)\n")
    first = threading.Thread(target=open_in_time, args=(None, str(slow)))
    first.start()
    eventually(begun.exists)
    try:
        with pytest.raises(AnalysisTimeout) as waited:
            open_in_time(None, str(hanging), most_seconds=0.2)
    finally:
        begun.unlink()
    assert waited.value.location is None, "it did not begin"
    first.join()
    assert open_in_time(None, str(write(tmp_path / "well", "well")), most_seconds=SOON).plan.name == "app"


def test_a_load_that_waits_for_its_turn_hides_no_names_of_the_one_under_way(tmp_path: Path) -> None:
    """Dataclasses, for one, look up what an annotation means in the module of that name."""
    path, begun = write(tmp_path, "word"), tmp_path / "begun"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(1)\n"
        f"@dataclass\nclass Rule:\n    kind: ClassVar[str] = 'a rule'\n    name: str\n{APPLICATION}"
    )
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load_application, str(path))
        eventually(begun.exists)
        second = pool.submit(load_application, str(path))
        assert (first.result().name, second.result().name) == ("app", "app")
