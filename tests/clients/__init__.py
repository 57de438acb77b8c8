"""Other people's clients, unchanged, against a server of ours: ``make test-clients``."""
