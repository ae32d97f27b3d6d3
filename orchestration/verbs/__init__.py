"""The actions of an operator on a region, as values and functions; `orchestration/cli` has the commands."""
