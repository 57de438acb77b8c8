"""Other APIs than OpenAI's completions and chats: the doors that other clients come through."""
