"""Where rows live: databases, snapshots, blinded keys, policies and ops."""
