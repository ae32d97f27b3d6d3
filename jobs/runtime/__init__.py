"""Run: a region from its claim to its release, group after group.

Read on in the order of a group: `region_run`, `scan/`, `commit/claim`, `id_assignment`, `input/`, `group_work`,
`output_staging`, `checkpoint_pipeline`, `commit/commit_point`, `commit/publication`; a failure goes to
`failure_handling`. A region that is cut has its own loop in `stages/`.
"""
