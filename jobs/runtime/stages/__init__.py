"""Runs a region of several stages: a thread a stage, channels between them, one commit point as ever.

A region of one stage knows nothing of this package: `orchestration.runs.region_runs` chooses once, between
`OneStageRun` and the `MultiStageRun` of here, what runs the groups of a `RegionRun`.
"""
