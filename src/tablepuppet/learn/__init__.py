"""Learning over a relation: losses, one file per algorithm, estimators."""
