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
WITH RECURSIVE found (nonce, schema, database, owner) AS (
    SELECT %b, n.oid, d.oid, d.datdba
    FROM pg_catalog.pg_database AS d
    LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname OPERATOR(pg_catalog.=) CAST(%b AS pg_catalog.name)
    WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
), reached (class, oid) AS (
    SELECT named.class, named.oid
    FROM found AS f, LATERAL (
        SELECT CAST('pg_catalog.pg_class' AS pg_catalog.regclass), c.oid
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace OPERATOR(pg_catalog.=) f.schema
          AND c.relname OPERATOR(pg_catalog.=) ANY (CAST(
              ARRAY['version', 'namespace', 'conversation', 'entry', 'receipt'] AS pg_catalog.name[]
          ))
        UNION ALL
        SELECT CAST('pg_catalog.pg_proc' AS pg_catalog.regclass), p.oid
        FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace OPERATOR(pg_catalog.=) f.schema
          AND p.proname OPERATOR(pg_catalog.=) ANY (CAST(
              ARRAY['present', 'unsafe', 'look', 'write', 'page', 'receipts', 'names', 'stale', 'totals']
              AS pg_catalog.name[]
          ))
    ) AS named (class, oid)
    UNION
    SELECT next.class, next.oid
    FROM reached AS r, LATERAL (
        SELECT d.classid, d.objid
        FROM pg_catalog.pg_depend AS d
        WHERE d.refclassid OPERATOR(pg_catalog.=) r.class AND d.refobjid OPERATOR(pg_catalog.=) r.oid
          AND d.deptype OPERATOR(pg_catalog.<>) CAST('n' AS pg_catalog."char")
          AND d.classid OPERATOR(pg_catalog.<>) CAST('pg_catalog.pg_publication_rel' AS pg_catalog.regclass)
        UNION ALL
        SELECT r.class, i.inhrelid
        FROM pg_catalog.pg_inherits AS i
        WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
          AND i.inhparent OPERATOR(pg_catalog.=) r.oid
        UNION ALL
        SELECT r.class, k.conrelid
        FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_constraint AS k ON k.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) r.class AND d.refobjid OPERATOR(pg_catalog.=) r.oid
          AND d.classid OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_constraint' AS pg_catalog.regclass)
          AND r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
          AND k.confrelid OPERATOR(pg_catalog.=) r.oid
    ) AS next (class, oid)
), concerned (role) AS (
    SELECT n.nspowner
    FROM found AS f JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) f.schema
    UNION
    SELECT a.grantee
    FROM found AS f JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) f.schema,
         pg_catalog.aclexplode(n.nspacl) AS a
    WHERE a.privilege_type OPERATOR(pg_catalog.=) CAST('CREATE' AS pg_catalog.text)
    UNION
    SELECT a.grantee
    FROM reached AS r, LATERAL (
        SELECT c.relacl FROM pg_catalog.pg_class AS c WHERE c.oid OPERATOR(pg_catalog.=) r.oid
        UNION ALL
        SELECT c.attacl FROM pg_catalog.pg_attribute AS c WHERE c.attrelid OPERATOR(pg_catalog.=) r.oid
    ) AS granted (acl), pg_catalog.aclexplode(granted.acl) AS a
    WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
      AND a.privilege_type OPERATOR(pg_catalog.=) ANY (CAST(ARRAY['TRIGGER', 'REFERENCES'] AS pg_catalog.text[]))
    UNION
    SELECT s.refobjid
    FROM reached AS r, LATERAL (
        SELECT r.class, r.oid
        UNION ALL
        SELECT d.refclassid, d.refobjid
        FROM pg_catalog.pg_depend AS d
        WHERE d.classid OPERATOR(pg_catalog.=) r.class AND d.objid OPERATOR(pg_catalog.=) r.oid
    ) AS used (class, oid), found AS f, pg_catalog.pg_shdepend AS s
    WHERE s.dbid OPERATOR(pg_catalog.=) f.database
      AND s.classid OPERATOR(pg_catalog.=) used.class AND s.objid OPERATOR(pg_catalog.=) used.oid
      AND s.deptype OPERATOR(pg_catalog.=) CAST('o' AS pg_catalog."char")
)
SELECT f.nonce, f.schema IS NOT NULL,
       EXISTS (
           SELECT 1 FROM pg_catalog.pg_class AS c
           WHERE c.relname OPERATOR(pg_catalog.=) CAST('version' AS pg_catalog.name)
             AND c.relnamespace OPERATOR(pg_catalog.=) f.schema
       ),
       EXISTS (
           SELECT 1 FROM concerned AS o
           WHERE NOT pg_catalog.pg_has_role(o.role, CURRENT_USER, 'MEMBER')
             AND o.role OPERATOR(pg_catalog.<>) f.owner
             AND pg_catalog.pg_get_userbyid(o.role) OPERATOR(pg_catalog.<>) CAST('pg_database_owner' AS pg_catalog.name)
       )
FROM found AS f
""")
"""
Whether the schema is there, whether our tables are in it, and whether a stranger could have put something there for us
to run. `to_regclass` would answer from before another process made them.

Functions, triggers and all that computes on a table run as whoever calls or writes. So `reached` is what a call of ours
can come to: our tables and functions; what PostgreSQL would drop along with them, as it does their triggers, rules,
policies, constraints and indexes, while what a publication lists runs nothing; their partitions; and the tables whose
foreign keys refer to one. All of that, and what it refers to, as the condition of a trigger does to a function, must
belong to roles that could act as this one anyway, itself, its members and superusers, or to the database's owner; and
nobody else may make anything in the schema, a trigger on such a table, or a foreign key to it. Who made a trigger is
told nowhere. What belongs to the server's first superuser is in no list of owners.
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
