"""From a row of a table to its state, its input and the code that made it, across regions: `drainmark trace`."""
