"""Learning over relations, against the same model trained on the materialised join."""
