"""Linear models: their solvers work on Gram matrices of tables."""
