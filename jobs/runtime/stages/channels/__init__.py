"""Channels: bounded FIFOs of batches between the stages of a region; one contract, two kinds.

A run holds an `Exchange`: the channels of a region, the progress of each stage, and one lock over both, so that a
checkpoint sees them at one moment. A stage works through its `StageEnds`: it takes a group and hands over the results.
Below are `Channel` (the FIFO, its bounds and its fence), `ChannelRows` (the rows of a batch, in memory or in files) and
`Spool` (the folder for staged rows). Nothing here starts Spark; frames are only passed on.
"""
