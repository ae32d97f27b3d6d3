"""The protocol played by seeds: `python -m simulation`; CONTRIBUTING.md says how."""

import os

for _threads in ("TOKIO_WORKER_THREADS", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"):  # a sixth of the time of a history
    os.environ.setdefault(_threads, "1")
