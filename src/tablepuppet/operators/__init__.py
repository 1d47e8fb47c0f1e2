"""How work is pushed through join and union to the base tables."""
