"""
Every SQL text that a store on PostgreSQL sends, each under a name; what runs in the server is in `postgres_schema`.

A statement calls one function of ours and answers with one row, which begins with the number that the call gave it, and
then the server's time. All values are bound, in binary form. Every name is qualified: what a session's `search_path`
says decides nothing. The one name that is put into a text is the schema's, which is checked and quoted.
"""

from __future__ import annotations

import functools
import re
from typing import Final

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.shown import type_alone

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Statement(msgspec.Struct, frozen=True):
    """A text of SQL, in which `{schema}` stands for the schema's quoted name. Made in these two files alone."""

    text: str
    columns: int = 0
    """How many its row has, for a method of a remote."""
    writes: bool = False

    __repr__ = type_alone


def check_schema(schema: object) -> str:
    """
    Return a schema's name, checked.

    Raises:
        InvalidOption: not of lower-case ASCII letters, digits and `_`, too long, or one of PostgreSQL's own.
    """
    if type(schema) is not str or not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidOption(
            "a schema's name has up to 63 lower-case ASCII letters, digits and _, no digit first, and not pg_ either",
            option="schema",
        )
    return schema


@functools.lru_cache(maxsize=256)
def within(statement: Statement, schema: str) -> bytes:
    """Return the text of a statement in a schema, whose name is checked."""
    return statement.text.replace("{schema}", f'"{check_schema(schema)}"').encode()


# --- opening ---------------------------------------------------------------------------------------------------------

GREET: Final = Statement("""
SELECT %b, pg_catalog.current_setting('server_encoding'), pg_catalog.current_setting('synchronous_commit'),
       pg_catalog.current_setting('synchronous_standby_names'),
       pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
       pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only'),
       CAST(pg_catalog.current_setting('server_version_num') AS pg_catalog.int4), pg_catalog.pg_backend_pid()
""")
"""What a server is, how it keeps what it acknowledges, and which process answers; asked on each new connection."""

FIND_SCHEMA: Final = Statement("""
SELECT %b, n.oid IS NOT NULL,
       EXISTS (
           SELECT 1 FROM pg_catalog.pg_class AS c
           WHERE c.relname OPERATOR(pg_catalog.=) CAST('version' AS pg_catalog.name)
             AND c.relnamespace OPERATOR(pg_catalog.=) n.oid
       ),
       EXISTS (
           SELECT 1 FROM (
               SELECT n.nspowner
               UNION ALL
               SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) AS a
               WHERE a.privilege_type OPERATOR(pg_catalog.=) CAST('CREATE' AS pg_catalog.text)
               UNION ALL
               SELECT c.relowner FROM pg_catalog.pg_class AS c
               WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid
                 AND c.relname OPERATOR(pg_catalog.=) ANY (CAST(
                     ARRAY['version', 'namespace', 'conversation', 'entry', 'receipt'] AS pg_catalog.name[]
                 ))
               UNION ALL
               SELECT p.proowner FROM pg_catalog.pg_proc AS p
               WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid
                 AND p.proname OPERATOR(pg_catalog.=) ANY (CAST(
                     ARRAY['present', 'unsafe', 'look', 'write', 'page', 'receipts', 'names', 'stale', 'totals']
                     AS pg_catalog.name[]
                 ))
               UNION ALL
               SELECT a.grantee FROM pg_catalog.pg_class AS c, pg_catalog.aclexplode(c.relacl) AS a
               WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid
                 AND a.privilege_type OPERATOR(pg_catalog.=) CAST('TRIGGER' AS pg_catalog.text)
               UNION ALL
               SELECT p.proowner FROM pg_catalog.pg_trigger AS t
               JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid
               JOIN pg_catalog.pg_proc AS p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
               WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid AND NOT t.tgisinternal
           ) AS o (role)
           WHERE n.oid IS NOT NULL
             AND NOT pg_catalog.pg_has_role(o.role, CURRENT_USER, 'MEMBER')
             AND o.role OPERATOR(pg_catalog.<>) d.datdba
             AND pg_catalog.pg_get_userbyid(o.role) OPERATOR(pg_catalog.<>) CAST('pg_database_owner' AS pg_catalog.name)
       )
FROM pg_catalog.pg_database AS d
LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname OPERATOR(pg_catalog.=) CAST(%b AS pg_catalog.name)
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
""")
"""
Whether the schema is there, whether our tables are in it, and whether a stranger could put something there for us to
run. `to_regclass` would answer from before another process made them.

Functions and triggers run as whoever calls them. So all of it must belong to roles that could act as this one anyway,
itself, its members and superusers, or to the database's owner, and nobody else may create anything beside it, a trigger
on a table included.
"""

GET_VERSIONS: Final = Statement("""
SELECT pg_catalog.array_agg(CAST(v.version AS pg_catalog.text)) FROM {schema}.version AS v
""")
"""The version of our tables, one; whatever a table of this name holds that is not ours."""

GET_RIGHTS: Final = Statement("""
SELECT pg_catalog.bool_and(pg_catalog.has_table_privilege(pg_catalog.concat('{schema}.', t.name), p.privilege))
FROM pg_catalog.unnest(ARRAY['namespace', 'conversation', 'entry', 'receipt']) AS t (name),
     pg_catalog.unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p (privilege)
""")
"""Whether this role may do to our tables what a store does."""

LOCK_SCHEMA: Final = Statement("SELECT pg_catalog.pg_advisory_xact_lock(5567421339210473)")
"""Have one process at a time make or migrate tables; the transaction's end gives it back."""

SET_VERSION: Final = Statement("""
INSERT INTO {schema}.version (version) VALUES (%b) ON CONFLICT (one) DO UPDATE SET version = excluded.version
""")
"""Note the version that the tables have now; there is one row."""

BEGIN: Final = Statement("BEGIN ISOLATION LEVEL READ COMMITTED")
"""Begin a migration; what others did while it waited for its turn is seen, whatever level the role has."""

COMMIT: Final = Statement("COMMIT")
"""Make a migration's changes lasting."""

# --- the methods of a remote -----------------------------------------------------------------------------------------

TIME: Final = Statement("""
SELECT %b, coalesce(%b, CAST(
    pg_catalog.floor(1000 OPERATOR(pg_catalog.*) EXTRACT(EPOCH FROM pg_catalog.clock_timestamp())) AS pg_catalog.int8
))
""")
"""The server's time as `present` tells it, where there are no functions of ours yet."""

LOOK: Final = Statement("SELECT * FROM {schema}.look(%b, %b, %b, %b, %b)", columns=5)
"""A conversation as it stands."""

WRITE: Final = Statement(
    """
SELECT *, pg_catalog.set_config('client_min_messages', 'warning', true) FROM {schema}.write(
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b,
    %b
)
""",
    writes=True,
)
"""
One change, or none.

That the server gave up waiting for its synchronous standby is told by a WARNING alone, and behind it the transaction is
committed. So it is asked for here, until the end of the transaction: a setting of the session would be another client's
behind a pooler, and one of the function would end before the commit.
"""

PAGE: Final = Statement("SELECT * FROM {schema}.page(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b)", columns=6)
"""Entries from one end of a range."""

RECEIPTS: Final = Statement("SELECT * FROM {schema}.receipts(%b, %b, %b, %b, %b, %b)", columns=5)
"""Receipts above a version."""

NAMES: Final = Statement("SELECT * FROM {schema}.names(%b, %b, %b, %b, %b, %b)", columns=5)
"""Conversations of a namespace, by id."""

STALE: Final = Statement("SELECT * FROM {schema}.stale(%b, %b, %b, %b, %b, %b)", columns=6)
"""Conversations that have expired, or were written to in the future."""

TOTALS: Final = Statement("SELECT * FROM {schema}.totals(%b, %b, %b, %b)", columns=6)
"""What a namespace holds."""
