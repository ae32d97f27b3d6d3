"""`pip install drainmark`, without any extra, has all that a run needs of other packages."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONNECT = {"extra": "connect"}
"""The extra of pyspark that names what its client needs."""

ROOT = Path(__file__).parents[2]


def base() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(each) for each in project["dependencies"]]


def test_it_has_the_client_of_the_resident_spark() -> None:
    """Without it, pyspark refuses to load the client."""
    asked = [Requirement(line) for line in requires("pyspark") or ()]
    of_client = {canonicalize_name(each.name) for each in asked if each.marker and each.marker.evaluate(CONNECT)}
    assert of_client
    assert of_client <= {"numpy", *(canonicalize_name(each.name) for each in base())}, "numpy comes with pandas"


def test_the_lock_has_every_package_that_is_asked_for() -> None:
    """`make requirements` writes it anew."""
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    unfit = [str(each) for each in base() if not each.specifier.contains(locked.get(canonicalize_name(each.name), "0"))]
    assert not unfit


def test_the_version_is_that_of_the_changelog() -> None:
    """Checkpoint rows name it, and an older Drainmark says to install it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## (\S+?)(, unreleased)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert version == (f"{newest[1]}.dev0" if newest[2] else newest[1])
