"""The run of a region of several stages: one thread per stage, channels between the stages, one commit point as always.

A region of one stage does not use this package: `orchestration.runs.region_runs` chooses once whether `OneStageRun` or
`MultiStageRun` runs the groups of a `RegionRun`.
"""
