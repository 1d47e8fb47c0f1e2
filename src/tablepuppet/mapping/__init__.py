"""Which rows meet: the join of blinded keys and the `TableMapping` it gives."""
