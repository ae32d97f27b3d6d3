"""Values of declared columns: what a text becomes, and which values a parser would change or Python cannot hold."""
