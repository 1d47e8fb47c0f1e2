"""Networks across parties: SplitNN, FedOnce and TabVFL on the data sets of their papers."""
