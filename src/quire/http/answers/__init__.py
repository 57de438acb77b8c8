"""From what the engine gives to the bytes of an answer."""
