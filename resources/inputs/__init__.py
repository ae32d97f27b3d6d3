"""Where inputs lie, how they are listed and read, and what becomes of them."""
