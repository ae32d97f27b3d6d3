"""The groups of a run: stages work on them, a pipeline commits what the stages have done, one commit point as always.

`run` is the loop and the controller, `pipeline` the way of groups. A region without channels has a `sole_stage`; others
have `connected_stages`: one thread per stage, channels between the stages.
"""
