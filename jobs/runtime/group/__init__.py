"""One group: its size, its ids, what it computes, stages and puts aside, and its numbers. Nothing here commits."""
