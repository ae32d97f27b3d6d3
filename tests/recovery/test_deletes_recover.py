"""Keys that are deleted stay deleted, and others stay, if a process is killed while it publishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import drainmark as dm
from drainmark.orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.seed("DL1", "DL2")]

APP = Path(__file__).parent / "apps" / "mirrored.py"
FILES = {
    "1.csv": "ann,1,\nbob,2,\ncy,3,\n",
    "2.csv": "ann,1,x\nbob,2,x\nbob,5,\nnobody,9,x\n",
    "3.csv": "ann,7,\ncy,3,x\n",
    "4.csv": "",
}


@pytest.mark.recovery
def test_the_mirror_has_the_keys_that_are_not_gone_also_after_a_rewind(run_app: Callable[..., Result]) -> None:
    result = run_app(APP, FILES, max_group=2)

    def mirror() -> dict[str, int]:
        return {row["customer"]: row["n"] for row in result.sink("mirror")}

    for to, wanted in ((3, {"ann": 7, "bob": 5}), (2, {"bob": 5, "cy": 3}), (1, {"ann": 1, "bob": 2, "cy": 3})):
        result.rewind(to)
        assert mirror() == wanted, to
        assert len(result.sink("newest_lines")) == FILES[f"{to}.csv"].count("\n")
    result.run()
    assert mirror() == {"ann": 7, "bob": 5}
    assert result.sink("newest_lines") == []


@pytest.mark.recovery
def test_deletes_survive_sigkill_while_they_are_published() -> None:
    proofs = dm.testing.assert_exactly_once(
        APP, FILES, fail_points=["publish.before_commit", "publish.after_commit"], groupings=(2,), actions=["kill"]
    )
    assert [(proof.states, len(proof.failures)) for proof in proofs] == [(4, 2)]


APPLIED = APP.with_name("applied.py")
CHANGES = {
    "1.csv": "ann,1,Rome,\nbob,2,Oslo,\nann,4,Bern,\n",
    "2.csv": "bob,5,,d\nann,3,Lima,\n",
    "3.csv": "bob,4,Kyiv,\nann,4,Bern,\n",  # behind its delete, and again
    "4.csv": "ann,6,,d\nbob,7,Wien,\n",
}


@pytest.mark.recovery
@pytest.mark.seed("AC1", "AC2")
def test_applied_changes_survive_sigkill_between_state_and_table() -> None:
    proofs = dm.testing.assert_exactly_once(
        APPLIED,
        CHANGES,
        fail_points=["publish.before_commit", "publish.after_commit"],
        groupings=(2,),
        actions=["kill"],
    )
    assert [(proof.states, len(proof.failures)) for proof in proofs] == [(4, 2)]
