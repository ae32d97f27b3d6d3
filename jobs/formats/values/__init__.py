"""Values of declared columns: their texts, and the values that a parser would change or Python cannot hold."""
