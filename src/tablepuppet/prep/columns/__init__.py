"""Columns of tables, as parties count and send them."""
