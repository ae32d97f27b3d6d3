"""Runs: `region_run` claims a region, `one_stage_run` loops over its groups, `failure_handling` judges failures.

Read on in the order of a group: `scan/`, `region_run`, `commit/claim`, `one_stage_run`, `group/backlog`,
`input/`, `group/group_work`, `group/output_staging`, `group_pipeline`, `commit/commit_point`,
`commit/publish/publication`. A region with several stages has its own loop in `stages/`.
"""
