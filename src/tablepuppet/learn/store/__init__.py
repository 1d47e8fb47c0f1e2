"""Where the parameters of a model are: with parties, with the coordinator, or in files."""
