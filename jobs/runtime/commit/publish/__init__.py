"""Publishing: the files that a checkpoint row names become visible in the tables; `runtime/after_publish` tells others.

`adopted_table_checks` finds rows that a table would refuse, before the commit. The steps of a rewind are in
`jobs/protocol/rewind_steps.py`.
"""
