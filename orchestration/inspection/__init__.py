"""What a region is and has done, as values: commands print them, pages show them."""

SHOWN_STATES = 200
"""The default number of states, and of groups, that a report shows."""
