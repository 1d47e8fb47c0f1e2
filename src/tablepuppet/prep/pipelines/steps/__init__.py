"""The steps of a pipeline: what each learns from statistics, and which fitted steps it makes of them."""
