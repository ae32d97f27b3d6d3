"""What a text, a token of JSON or a stored value becomes in a declared column: a value, or a misfit with its reason."""
