"""What is asked: SQL becomes a `Query`, a `Query` a `Plan`. No data here."""
