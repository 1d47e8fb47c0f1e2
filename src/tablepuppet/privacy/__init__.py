"""Pure functions that parties call to keep a promise."""
