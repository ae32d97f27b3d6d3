"""The owner of a region: it commits, which makes an id final (`commit_point`), and refuses late writes.

Read on in this order: `claim`, `staged_group`, `commit_point`, `publish/publication`, `publish/visible_tables`,
`rewind`. `halts` writes all halts. `region_owner` lists the places that refuse late writes of a former owner.
"""
