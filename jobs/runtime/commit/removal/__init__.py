"""What leaves a region alone, and leaves the rest as it is: a file that was bad, a table that left the code.

A retraction is a state, and rewinds withdraw it; a drop deletes a table that no code has.
"""
