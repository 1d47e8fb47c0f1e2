"""Choosing and judging models: folds, searches over settings, slices with large errors, drift of the data."""
