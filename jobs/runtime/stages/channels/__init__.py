"""Channels: bounded FIFOs of batches between the stages of a region; one contract, two kinds.

`Exchange` is what a run holds: the channels of a region, how far each stage has come, and one lock over both, so that
a checkpoint sees them at one moment. A stage works through its `StageEnds`: take a group, hand over what it made.
Below are `Channel` (the FIFO, its bounds and its fence), `Rows` (where the rows of a batch are) and `Spool` (where they
are staged). Nothing here starts Spark; frames are handed through.
"""
