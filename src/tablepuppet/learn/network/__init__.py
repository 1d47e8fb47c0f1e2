"""Networks: one small network for each table, whose scores are added up."""
