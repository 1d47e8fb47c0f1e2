"""How it travels: messages, engines and the meter."""
