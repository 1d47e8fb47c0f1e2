"""Noise as numbers: how much is added, how often, and how much of a noisy value is signal."""
