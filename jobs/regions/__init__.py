"""The compiler: it turns a declared graph into region plans, or into a list of the rules that the graph breaks. Pure.

Read on in this order: `reachability`, `merging`, `rules`, `plan`, `explain`.
"""
