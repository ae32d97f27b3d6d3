"""The owner of a region and its commits.

Read on in this order: `claim`, `staged_group`, `commit_point`, `publish/publication`, `publish/visible_tables`,
`rewind`. What a former owner still tries after it was taken over is refused in `region_owner`.
"""
