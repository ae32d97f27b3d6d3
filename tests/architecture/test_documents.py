"""What ARCHITECTURE.md says is tested, is."""

from __future__ import annotations

import re

from architecture.tree import ROOT

_NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_invariant_names_a_test_that_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    invariants = re.split(r"^(?=\d+\. \*\*)", text.partition("## Invariants")[2].partition("\n## ")[0], flags=re.M)[1:]
    assert len(invariants) >= 15
    defined = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), flags=re.M)
    }
    for invariant in invariants:
        named = _NAMED.findall(invariant)
        assert named, f"no test is named in: {invariant.splitlines()[0]}"
        assert set(named) <= defined, invariant.splitlines()[0]
