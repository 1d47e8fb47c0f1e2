"""Pure functions by which parties keep privacy promises."""
