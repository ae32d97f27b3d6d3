"""A region in stages that goes on with another number of cores after each kill with batches in flight: any number of
partitions reads these batches and the states of the stages (F6, F24, AU9)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest
from order_files import Row, numbered, orders_of, orders_text
from scene import Build, Scene
from staged_graphs import app_in
from waiting import eventually

from drainmark.orchestration.testing.crash.children import Nursery

PATIENCE = 600.0
FILES = 4
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
        sinks=("rescaled_taken", "rescaled_customers"),
    )
    scene.gate.open()
    chance = Random(11)
    for number in range(FILES):
        scene.add(folder / "orders" / f"{number}.csv", orders_text(chance))
    return scene


def oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Row]]:
    taken = [row for rows in numbered([list(of_customers(orders_of(path))) for path in files]) for row in rows]
    orders, amounts = Counter[str](), Counter[str]()
    for row in taken:
        orders[row["customer"]] += 1
        amounts[row["customer"]] += row["amount"]
    customers = [{"customer": name, "orders": count, "amount": amounts[name]} for name, count in orders.items()]
    return {"rescaled_taken": taken, "rescaled_customers": customers}


def of_customers(orders: Sequence[Row]) -> Iterator[Row]:
    """Yield the orders of a file, each with its number among the orders of its customer."""
    seen: Counter[str] = Counter()
    for order in orders:
        seen[order["customer"]] += 1
        yield {**order, "nth": seen[order["customer"]]}


def on(scene: Scene, cores: int) -> None:
    """Let a scene go on with so many cores, and so many partitions of an exchange."""
    conf = {"spark.sql.shuffle.partitions": cores, "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    scene.master = f"local[{cores}]"
    scene.settings = {
        **scene.settings,
        "small_group_bytes": 0,
        "spark_conf": {"spark.driver.memory": "1g", **{name: str(value) for name, value in conf.items()}},
    }


def tasks(scene: Scene) -> int:
    """Return the number of partitions that ran since the last call."""
    found = list(scene.folder.glob("task-*"))
    for path in found:
        path.unlink()
    return len(found)


def kill_after(scene: Scene, is_so: Callable[[Scene], bool]) -> None:
    """Run until the slow stage has done one more file and hangs, with the rest in flight; then kill the run."""
    scene.gate.hold(after=1)
    child = scene.start()
    try:
        eventually(lambda: scene.gate.is_held and is_so(scene), lambda: f"{child.events()}\n{child.log_text()[-3000:]}")
    finally:
        child.signal(signal.SIGKILL)
        code = child.wait(PATIENCE).code
        scene.gate.open()
    assert code == -signal.SIGKILL


@pytest.mark.recovery
@pytest.mark.timeout(2000)
@pytest.mark.seed("F6", "F24", "AU9")
@pytest.mark.parametrize("mode", ["aligned", "unaligned", "durable"])
def test_each_change_of_cores_finds_what_was_in_flight(build: Callable[[Build], Scene], mode: str) -> None:
    scene = build(lambda nursery, _, folder: rescaled(mode, nursery, "", folder))

    def has_come(files: int) -> Callable[[Scene], bool]:
        """Return a predicate: the slow stage has done so many files, as committed; if unaligned, all are committed."""
        if mode == "aligned":
            return lambda scene: len(scene.history.states) == files
        return lambda scene: (
            len(scene.history.states) == FILES and scene.history.flow.through["slow"] == scene.id_after(files)
        )

    for done, cores in enumerate(CORES[:-1], 1):
        on(scene, cores)
        kill_after(scene, has_come(done))
        assert len(scene.history.flow.batches) == (0 if mode == "aligned" else FILES - done)
        assert (tasks(scene) > 1) == (cores > 1)
    on(scene, CORES[-1])
    ended = scene.start(["run"]).wait(PATIENCE)
    assert ended.code == 0, ended
    scene.assert_golden()
