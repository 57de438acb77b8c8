"""The page at / of a server: files that a browser takes as they are. Data only."""
