"""Pipelines: how the steps that prepare columns are fitted over all shards."""
