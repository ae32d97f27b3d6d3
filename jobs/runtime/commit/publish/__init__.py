"""Publishing: what a checkpoint row names becomes visible in the tables; `runtime/after_publish` tells others.

`adopted_table_checks` is asked before the commit: what a table would refuse is to be known by then. What a rewind takes
back is in `jobs/protocol/rewind_steps.py`.
"""
