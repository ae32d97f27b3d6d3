"""What leaves a region alone, and leaves the rest as it is: a file that was bad, a table that left the code.

A retraction is a state, and rewinds withdraw it; a drop deletes a table that no code has. An erasure of a person writes
files and rows again: `runtime/maintenance/erasure` has its steps, `resources/erasure` what they do.
"""
