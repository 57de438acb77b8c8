"""The laboratory: how many users fit, how fast, and how true that is. Never imported by a server."""
