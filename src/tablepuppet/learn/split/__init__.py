"""Networks across parties: bottom networks at the tables, a top network at the coordinator."""
