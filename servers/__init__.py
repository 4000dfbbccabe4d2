"""
Real servers for the tests and the benchmark, on ports and in folders of their own; they end with whoever started them.

Where a machine has no such server, what needs one raises `unittest.SkipTest`, which pytest counts as skipped.
"""
