"""A table's model: what a party computes with its own rows, whatever the model is."""
