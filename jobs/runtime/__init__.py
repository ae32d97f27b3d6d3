"""Runs: `region_run` claims a region, `stages/run` loops over its groups, `failure_handling` judges failures.

Read on in the order of a group: `scan/`, `region_run`, `commit/claim`, `stages/run`, `stages/pipeline`,
`group/backlog`, `stages/sole_stage`, `group/group_work`, `input/`, `group/group_flow`, `group/output_staging`,
`commit/commit_point`, `commit/publish/publication`. Several stages with channels between them are in
`stages/connected_stages`.
"""
