"""`StartHandler`: the base class for a source with rows that come from a thread and cannot be requested again."""

from __future__ import annotations

from typing import Any

from drainmark.jobs.state.handlers.state_handler import StateHandler


class StartHandler(StateHandler):
    """Base class for a source with its own thread, for `dm.ThreadedStart`.

    Its rows are cut when it asks for a cut, or by the limits `rows` and `seconds`. A cut has the rows since the
    previous cut and the state after them, both or none, and is durable. The region makes it a consistent state.

    | when | calls, in this order |
    |---|---|
    | a run begins, or the region is reset | `reset` to the newest cut; `reset_to_initial_state` if there is none and the handler is not fresh |
    | then | `run`, in a thread of its own; if it is still under way, once it has returned |
    | a cut | `drain`, `checkpoint`; with `non_blocking` `drain`, `prepare_for_non_blocking_checkpoint`, and, while `run` goes on, `checkpoint` |
    | every operator of the region has the state | `region_checkpointed` |
    | no rewind within the horizon replays the cut | `retire_checkpoint`, with the number of the cut |

    A region that is reset replays the cuts that are not committed. A reset, and the end of a run, lose the rows that
    were submitted since the newest cut; the handler makes them again from the state of that cut. So `run` reads its
    state after it has taken a permit.

    Cuts get their ids when the region takes them, so `checkpoint.sequence_id` and `context.sequence_id` count cuts;
    `region_checkpointed` gets the sequence id, and `context.committed_cut` is then the cut that it covers.

    Example:
        @dataclass
        class Numbers(dm.StartHandler):
            at: int = 0

            def run(self, context):
                while not context.wait(1.0):
                    with context.permit(), self.lock:
                        context.submit(pa.table({"n": [self.at]}))
                        self.at += 1
                    with context.permit():
                        context.make_consistent()  # False: the region was reset

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.ThreadedStart(handler=Numbers, schema="n bigint"))
        def numbers(scanned):
            return scanned
    """  # noqa: E501 - a table's rows cannot be broken

    def run(self, context: Any) -> None:
        """Take rows and submit them under permits, until there are no more or `context.wait` says that the run is over.

        An error in it fails the run, and counts as an attempt. After a reset of the region it is called again; if it is
        still under way, once it has returned: rows that it submitted may be gone.
        """
        raise NotImplementedError
