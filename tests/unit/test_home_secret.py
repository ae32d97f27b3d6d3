"""The secret of a home: one for all processes, unreadable for others, and no key tells another one."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drainmark.resources.home_secret import home_key


def test_all_who_begin_at_once_get_the_same_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = list(pool.map(lambda _: home_key(tmp_path, "desk"), range(64)))
    assert len(set(keys)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_each_purpose_and_each_home_has_a_key_of_its_own(tmp_path: Path) -> None:
    homes = [tmp_path / "one", tmp_path / "other"]
    for home in homes:
        home.mkdir()
    keys = {home_key(home, purpose) for home in homes for purpose in ("desk", "spark")}
    assert len(keys) == 4
    assert not any((home / "secret").read_text() in keys for home in homes)


@pytest.mark.parametrize(("content", "mode"), [("", 0o600), ("00" * 31, 0o600), ("\xe4", 0o600), ("ab" * 32, 0o640)])
def test_a_secret_that_others_may_know_is_replaced(tmp_path: Path, content: str, mode: int) -> None:
    """A file that a loss of power left empty, or a backup that was put back for all to read."""
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(mode)
    key = home_key(tmp_path, "desk")
    assert home_key(tmp_path, "desk") == key
    assert len(path.read_text()) == 64
    assert path.read_text() != content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_others_cannot_read_it(tmp_path: Path) -> None:
    home_key(tmp_path, "desk")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
