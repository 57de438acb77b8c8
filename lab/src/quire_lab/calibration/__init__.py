"""What steps cost: measured here, by a client of any server, or by others; and whether it is so.

Each module is imported by itself: those that measure no engine in this process load no torch.
"""
