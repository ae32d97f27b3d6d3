"""A terminal as all verbs have it: options, completion, examples in the help, output, tables, orders."""
