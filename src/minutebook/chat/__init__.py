"""What face A, `agent.py`, is made of: a chat as it is said, read back, shortened and sent. Not public."""
