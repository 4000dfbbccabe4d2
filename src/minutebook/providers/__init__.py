"""How each provider is asked and read: interfaces, counting, endpoints, streams and the wire formats."""
