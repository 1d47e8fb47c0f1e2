"""Pages for a browser: what runs do, for the analyst, and what a party was asked, for its operator.

The two are separate programs: neither reads what the other reads.
"""
