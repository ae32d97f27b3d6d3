"""The assets in Dagster, with their checks, metadata and events.

Dagster's web pages (1.13) render as GitHub's Markdown, with images and links also to their own server: descriptions of
assets, checks and their results, events, jobs, graphs, ops, their inputs and outputs, resources, types and columns; and
metadata of the type `md`. What is not ours in these goes through `markdown`, `markdown_block` or `markdown_code` of
`jobs/printable.py`: `tests/integration/test_what_dagster_renders.py` walks all of them and finds a place without it.

They show as plain text: other metadata and their names, keys of assets, tags, skip reasons, errors of runs and ticks,
descriptions of sensors and schedules, help of config fields, and log lines, in which a whole `http://` address is a
link to itself. There `printable` is enough. In the graph, descriptions of assets lose their Markdown.
"""
