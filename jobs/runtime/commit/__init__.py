"""The owner of a region: it commits, which makes an id final (`commit_point`), and refuses what comes late.

Read on in this order: `claim`, `staged_group`, `commit_point`, `publish/publication`, `publish/visible_tables`,
`rewind`. `halts` writes all halts. What a former owner still tries after a take-over is refused in `region_owner`.
"""
