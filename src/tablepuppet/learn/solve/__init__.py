"""Solvers that work for several kinds of models, and how many rounds they may run."""
