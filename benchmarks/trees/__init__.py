"""Boosted trees beside XGBoost, LightGBM and scikit-learn on the pooled join."""
