"""The peer of part `recovery` as a program: `python recovery_peer.py INBOX HOME FILES_A_TRIGGER`, killed and restarted.

It runs the two queries of `bench_peer` from their last checkpoints until no input is left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import bench_peer

from drainmark.resources.spark.session import SparkEngine


def main(inbox: Path, home: Path, files: int) -> None:
    """Run both queries until the folder is done."""
    home.mkdir(parents=True, exist_ok=True)
    engine = SparkEngine("local[*]", {}, home / "spark")
    job = bench_peer.Job(session=engine.session, inbox=inbox, home=home, files=files, upsert=False)
    for query in bench_peer.two_queries(job):
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)
