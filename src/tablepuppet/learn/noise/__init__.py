"""Noise as numbers: how much is added, how often, and how much of what comes back is to be believed."""
