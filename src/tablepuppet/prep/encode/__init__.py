"""Rows as numbers: what a party builds of its columns for a learner."""
