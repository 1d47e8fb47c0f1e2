"""Data preparation over a relation: statistics and encoders, computed where the rows are."""
