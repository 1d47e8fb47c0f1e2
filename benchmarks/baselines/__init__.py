"""What the papers compare their networks with, trained on pooled rows."""
