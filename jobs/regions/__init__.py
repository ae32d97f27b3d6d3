"""Compile: a declared graph becomes region plans, or the list of the rules it breaks (spec.md §1.3–1.6). Pure.

Read on in this order: `reachability`, `merging`, `ports`, `rules`, `plan`, `explain`.
"""
