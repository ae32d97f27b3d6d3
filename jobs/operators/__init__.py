"""The operator library: one file for each operator. Begin a new one with a copy of `row_wise/filter.py`.

The file has a subclass of `Operator` (`jobs/graph/operator.py`). The catalogue finds a new file by itself;
`drainmark/api.py` puts its name into `dm.`. Its oracle in plain Python is in `tests/property/operator_cases.py`.
"""
