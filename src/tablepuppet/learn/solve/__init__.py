"""Solvers that work for several kinds of models, and how long they may go on."""
