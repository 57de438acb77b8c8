"""What all chat doors share: from turns to prompts, from text to what was said."""
