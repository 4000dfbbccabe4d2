"""minutebook."""
