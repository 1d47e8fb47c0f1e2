"""What happens in a run: events."""
