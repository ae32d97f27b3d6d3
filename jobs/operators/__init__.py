"""The operator library: one operator a file. Begin a new one with a copy of `row_wise/filter.py`.

It has a class below `Operator` (`jobs/graph/operator.py`). A new file is in the catalogue by itself, and its name in
`dm.` by `drainmark/api.py`. Its oracle in plain Python is in `tests/property/operator_cases.py`.
"""
