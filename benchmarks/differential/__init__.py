"""Random federations, and the same question to DuckDB, NumPy, pandas, SciPy, statsmodels and scikit-learn."""
