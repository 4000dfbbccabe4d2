"""
The figures of performance, each as a ratio to what the same machine can do at best in the same minute.

Every figure interleaves three kinds of subject in one process, round by round: the raw limit (a few lines of sqlite3
with the same bytes and the same durability), minutebook, and the sessions of the OpenAI Agents SDK. Times are never
compared across runs. See docs/performance.md for a full run and for what each figure compares.
"""
