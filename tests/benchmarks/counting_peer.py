"""Program that runs the job of part `counting` in streamz and prints the result as JSON.

`python counting_peer.py BATCHES ROUNDS`, with streamz on PYTHONPATH (`make bench-streamz-setup`).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import counting_job
from streamz import Stream
from streamz.core import RefCounter

_PATIENCE_SECONDS = 60.0


def main(batches: int, rounds: int) -> dict[str, Any]:
    """Measure, and wait until the counts of all data have fallen to zero."""
    data = counting_job.batches(batches)
    totals, plain_totals, done = counting_job.Totals(), counting_job.Totals(), [0, 0]

    def emitting(source: Any, number: int) -> counting_job.Emit:
        def called_back() -> None:
            done[number] += 1

        return lambda datum: source.emit(datum, metadata=[{"ref": RefCounter(cb=called_back)}])

    source, plain = Stream(), Stream()
    counting_job.build(source, totals)
    counting_job.build(plain, plain_totals)
    shares = counting_job.shares(emitting(source, 0), plain.emit, data, rounds)
    light, light_plain = Stream(), Stream()
    counting_job.build_plain(light)
    counting_job.build_plain(light_plain)
    seconds = counting_job.seconds_a_datum(emitting(light, 1), light_plain.emit)
    until = time.monotonic() + _PATIENCE_SECONDS
    while done[0] < batches * (rounds + 1) and time.monotonic() < until:  # its event loop calls back
        time.sleep(0.01)
    return {
        "shares": shares, "seconds": seconds, "done": done[0], "rows": totals.rows, "plain_rows": plain_totals.rows,
        "total": totals.total,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
