"""Run: a region from its claim to its release, group after group.

Read on in the order of a group: `region_run`, `scan/`, `commit/claim`, `group/id_assignment`, `input/`,
`group/group_work`, `group/output_staging`, `checkpoint_pipeline`, `commit/commit_point`, `commit/publish/publication`;
a failure goes to `failure_handling`. A region that is cut has its own loop in `stages/`.
"""
