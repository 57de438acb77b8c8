"""Who holds which block, who runs next, what a step is. Standard library only."""
