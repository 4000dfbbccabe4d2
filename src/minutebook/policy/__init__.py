"""Pure functions over a record: what a window holds, and whether calls and results belong together."""
