"""COUNT: streams of Python objects in one process that know when each object is done.

    from drainmark import counting

    acknowledged = counting.Acknowledged(consumer.commit)
    source = counting.Stream()
    source.map(parse).map_async(enrich, parallelism=8).partition(100).sink(store)
    for offset, message in messages:
        source.emit(message, metadata=[{"ref": acknowledged.begin(offset)}])

`commit` gets an offset when all data up to and including it went through the whole graph, in any order. `StreamStart`
puts such a stream at the beginning of a consistent region. Pure Python: no Spark, no Dagster, no disk.

Example:
    done = []
    acknowledged = dm.counting.Acknowledged(done.append)
    numbers = dm.counting.Stream()
    numbers.map(int).partition(2).sink(print)  # (1, 2)
    for position, text in enumerate(["1", "2"]):
        numbers.emit(text, metadata=[{"ref": acknowledged.begin(position)}])
    print(done)
"""

from __future__ import annotations

from drainmark.jobs.streams.acknowledgement import Acknowledged
from drainmark.jobs.streams.graph_run import nodes
from drainmark.jobs.streams.manual_threads import ManualThreads
from drainmark.jobs.streams.references import RefCounter
from drainmark.jobs.streams.stream import References, Stream
from drainmark.jobs.streams.stream_start import BOUNDARY, Boundary, StreamStart
from drainmark.jobs.streams.threads import RealThreads, Threads

__all__ = [
    "BOUNDARY",
    "Acknowledged",
    "Boundary",
    "ManualThreads",
    "RealThreads",
    "RefCounter",
    "References",
    "Stream",
    "StreamStart",
    "Threads",
    "nodes",
]
