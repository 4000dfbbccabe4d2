"""Where records live: a journal for each kind of database, and the store that is written once over any journal."""
