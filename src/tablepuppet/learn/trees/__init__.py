"""Boosted trees over a relation: bins, splits, growth level by level, saved trees, Shapley values, export."""
