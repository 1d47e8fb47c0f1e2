"""Statistics of the joined rows, for whoever looks at them."""
