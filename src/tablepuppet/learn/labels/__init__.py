"""Labels: asking for them, with or without noise, and measuring on them where they are."""
