"""Ranks as processes: how they are started, find each other, are watched and ended."""
