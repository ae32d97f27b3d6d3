"""Compile: a declared graph becomes region plans, or the list of the rules it breaks. Pure.

Read on in this order: `reachability`, `merging`, `operator_ports`, `rules`, `plan`, `explain`.
"""
