"""Where records live: journals for RAM and SQLite, and the store that is written once over any journal."""
