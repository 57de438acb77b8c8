"""Step times: measured here, by a client of any server, or by others; and how well they predict.

Each module is imported by itself: those that measure no engine in this process load no torch.
"""
