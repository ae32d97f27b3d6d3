"""The hosting of operators written in Python, in the process of a run."""
