"""The laboratory: how many users fit, how fast, and how true that is. No server imports it."""
