"""A saved model: parameters that parties keep, and a folder with the rest."""
