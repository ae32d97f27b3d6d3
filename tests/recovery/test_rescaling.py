"""A region in stages that goes on with another number of cores after each kill, batches being in flight: what these are,
and what the stages keep, is read again by any number of partitions (F6, F24, AU9)."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from order_files import Row, add_orders, numbered, orders_of
from scene import Build, Scene
from staged_graphs import app_in

from drainmark.orchestration.testing.crash.children import Nursery

PATIENCE = 300.0
GROUP = 2
CORES = (1, 4, 2)


def rescaled(mode: str, nursery: Nursery, master: str, folder: Path) -> Scene:
    scene = Scene(
        nursery=nursery,
        master=master,
        folder=folder,
        app=app_in(mode, "rescaled", folder),
        region="rescaled/orders",
        inputs=(f"orders={folder / 'orders'}",),
        oracle=oracle,
        sinks=("rescaled_nth", "rescaled_taken", "rescaled_customers"),
    )
    scene.gate.open()
    add_orders(scene)
    return scene


def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Row]]:
    by_file = [list(of_customers(orders_of(path))) for path in files]
    taken = [row for rows in numbered(by_file) for row in rows]
    orders, amounts = Counter[str](), Counter[str]()
    for row in taken:
        orders[row["customer"]] += 1
        amounts[row["customer"]] += row["amount"]
    customers = [{"customer": name, "orders": count, "amount": amounts[name]} for name, count in orders.items()]
    nth = [row for rows in by_file for row in rows]
    return {"rescaled_nth": nth, "rescaled_taken": taken, "rescaled_customers": customers}


def of_customers(orders: Sequence[Row]) -> Iterator[Row]:
    """Yield the orders of a file, each with the number that it is of its customer's."""
    seen: Counter[str] = Counter()
    for order in orders:
        seen[order["customer"]] += 1
        yield {**order, "nth": seen[order["customer"]]}


def on(scene: Scene, cores: int) -> None:
    """Let a scene go on with so many cores, and partitions of an exchange."""
    conf = {"spark.sql.shuffle.partitions": cores, "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    scene.master = f"local[{cores}]"
    scene.settings = {
        **scene.settings,
        "small_group_bytes": 0,
        "spark_conf": {"spark.driver.memory": "1g", **{name: str(value) for name, value in conf.items()}},
    }


def tasks(scene: Scene) -> int:
    """Return how many partitions there were since this was asked last."""
    found = list(scene.folder.glob("task-*"))
    for path in found:
        path.unlink()
    return len(found)


def kill_after(scene: Scene, ids: int, is_so: Callable[[Scene], bool]) -> None:
    """Run until the slow stage has done so many ids more and hangs, the rest being in flight; kill the run then."""
    scene.gate.open()
    scene.gate.hold(after=ids)
    child = scene.start(["scan"], ["run", GROUP])
    try:
        deadline = time.monotonic() + PATIENCE
        while not (scene.gate.is_held and is_so(scene)):
            assert time.monotonic() < deadline, f"it did not come so far: {child.events()}\n{child.log_text()[-3000:]}"
            time.sleep(0.05)
    finally:
        child.signal(signal.SIGKILL)
        code = child.wait().code
        scene.gate.open()
    assert code == -signal.SIGKILL


@pytest.mark.seed("F6", "F24", "AU9")
@pytest.mark.parametrize("mode", ["aligned", "unaligned", pytest.param("durable", marks=pytest.mark.recovery)])
def test_each_change_of_cores_finds_what_was_in_flight(build: Callable[[Build], Scene], mode: str) -> None:
    scene = build(lambda nursery, _, folder: rescaled(mode, nursery, "", folder))

    def has_come(ids: int) -> Callable[[Scene], bool]:
        """Is all that the slow stage has done committed, and is everything else begun?"""
        if mode == "aligned":
            return lambda scene: len(scene.history.states) == ids
        return lambda scene: (
            len(scene.history.states) == len(scene.files) and scene.history.flow.through["slow"] == scene.id_after(ids)
        )

    for cores, done in zip(CORES, (GROUP, 2 * GROUP), strict=False):
        on(scene, cores)
        kill_after(scene, GROUP, has_come(done))
        assert bool(scene.history.flow.batches) == (mode != "aligned")
        assert (tasks(scene) > 1) == (cores > 1)
    on(scene, CORES[-1])
    ended = scene.start(["run", GROUP]).wait(PATIENCE)
    assert ended.code == 0, ended
    scene.assert_golden()
