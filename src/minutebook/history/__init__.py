"""
The history: one conversation's story, told over a journal.

    open     the reservation and the input go in together, durable before any request is made
    window   what of the record is sent: read newest first, as far as the limits reach
    commit   what came back goes in; the last commit of a turn settles it and gives the reservation back
    abandon  what failed is marked, leaves every window, and stays visible to an operator

Nothing is held between two calls but the reservation: no transaction, no lock, no connection. Sizes come with the
entries, so a step costs its new bytes and its window, whatever the length of the conversation (SPEC B1). The core
starts no task and takes no lock; it runs the same under any event loop and under none.
"""

from minutebook.history.conversation import History, opening_id
from minutebook.history.hold import Hold
from minutebook.history.standing import Standing

__all__ = ["History", "Hold", "Standing", "opening_id"]
