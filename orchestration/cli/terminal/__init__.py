"""Code that all verbs share: options, completion, examples in the help, output, tables, orders."""
