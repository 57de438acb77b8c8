"""The engine on a virtual clock: who fits, how fast, and where the memory goes. Never torch."""
