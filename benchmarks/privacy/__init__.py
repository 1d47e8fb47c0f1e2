"""What noise costs a model, and what it does to attacks."""
