"""Feature privacy: what noise is added, how often, and what it promises."""
