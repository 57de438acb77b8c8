"""What requests can ask for beyond a text: each capability is a folder of its own."""
