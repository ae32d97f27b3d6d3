"""The secret of a home: one for all processes, unreadable for others, and no key tells another one."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def test_others_cannot_read_it(tmp_path: Path) -> None:
    home_key(tmp_path, "desk")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
