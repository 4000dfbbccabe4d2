"""
The SQLite files that a test leaves open, closed with it.

A process has one writer for a file, which stays until the last journal on it is closed, with its descriptors and its
thread: what one test leaves, all tests behind it would carry along.
"""

from minutebook.stores import sqlite_writer


def close_journals() -> None:
    """Give back every writer that is still held; a journal that is closed later does nothing more."""
    registry = sqlite_writer._registry
    for writer in list(registry.writers.values()):
        while writer.holders > 0:
            registry.release(writer)


def is_writing(writer: sqlite_writer.Writer) -> bool:
    """Whether another thread has the writer's lock just now."""
    free = writer._lock.acquire(blocking=False)
    if free:
        writer._lock.release()
    return not free
