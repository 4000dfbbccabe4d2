"""
Every SQL text that a store on PostgreSQL sends, each under a name; what runs in the server is in `postgres_schema`.

A statement calls one function of ours and answers with one row, which begins with the number that the call gave it, and
then the server's time. All values are bound, in binary form. Every name is qualified: what a session's `search_path`
says decides nothing. The one name that is put into a text is the schema's, which is checked and quoted.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from minutebook.errors import InvalidOption
from minutebook.model.shown import type_alone

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Column(msgspec.Struct, frozen=True):
    """What may stand in one column of a row, and of a list in each of its places."""

    kinds: frozenset[type]
    elements: frozenset[type] = frozenset()

    __repr__ = type_alone

    def takes(self, value: Any) -> bool:
        """Return whether a value is such a one."""
        if type(value) not in self.kinds:
            return False
        return value is None or list not in self.kinds or self.elements.issuperset(map(type, value))


_NULL: Final = type(None)
_COUNT: Final = Column(frozenset({int}))
_COUNT_OR_NOT: Final = Column(frozenset({int, _NULL}))
_WORD: Final = Column(frozenset({str}))
_BYTES: Final = Column(frozenset({bytes, _NULL}))
_COUNTS: Final = Column(frozenset({list, _NULL}), frozenset({int}))
_IDS: Final = Column(frozenset({list, _NULL}), frozenset({bytes}))
_PACKS: Final = Column(frozenset({list, _NULL}), frozenset({bytes, _NULL}))
"""Of records a NULL is damage, which is told where it is read."""


class Statement(msgspec.Struct, frozen=True, cache_hash=True):
    """A text of SQL, in which `{schema}` stands for the schema's quoted name. Made in these two files alone."""

    text: str
    columns: tuple[Column, ...] = ()
    """Those of its row, for a method of a remote."""
    writes: bool = False

    __repr__ = type_alone

    def answers(self, row: Sequence[object]) -> bool:
        """Return whether a row has its columns; a function of another's making may answer with others."""
        return len(row) == len(self.columns) and all(
            column.takes(value) for column, value in zip(self.columns, row, strict=True)
        )


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
WITH RECURSIVE found (nonce, schema, owner) AS (
    SELECT %b, n.oid, d.datdba
    FROM pg_catalog.pg_database AS d
    LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname OPERATOR(pg_catalog.=) CAST(%b AS pg_catalog.name)
    WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
), ours (oid, name) AS (
    SELECT c.oid, c.relname
    FROM found AS f JOIN pg_catalog.pg_class AS c ON c.relnamespace OPERATOR(pg_catalog.=) f.schema
    WHERE c.relname OPERATOR(pg_catalog.=) ANY (CAST(
        ARRAY['version', 'namespace', 'conversation', 'entry', 'receipt'] AS pg_catalog.name[]
    ))
), kept (oid) AS (
    SELECT o.oid FROM ours AS o
    UNION
    SELECT i.inhrelid
    FROM kept AS k JOIN pg_catalog.pg_inherits AS i ON i.inhparent OPERATOR(pg_catalog.=) k.oid
), reached (class, oid) AS (
    SELECT named.class, named.oid
    FROM found AS f, LATERAL (
        SELECT CAST('pg_catalog.pg_class' AS pg_catalog.regclass), o.oid FROM ours AS o
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
        SELECT d.refclassid, d.refobjid
        FROM pg_catalog.pg_depend AS d
        WHERE d.classid OPERATOR(pg_catalog.=) r.class AND d.objid OPERATOR(pg_catalog.=) r.oid
          AND d.refclassid OPERATOR(pg_catalog.<>) ALL (CAST(
              ARRAY['pg_catalog.pg_namespace', 'pg_catalog.pg_extension', 'pg_catalog.pg_language']
              AS pg_catalog.regclass[]
          ))
          AND (d.classid OPERATOR(pg_catalog.<>) ALL (CAST(
                   ARRAY['pg_catalog.pg_constraint', 'pg_catalog.pg_class'] AS pg_catalog.regclass[]
               )) OR d.refclassid OPERATOR(pg_catalog.<>) CAST('pg_catalog.pg_class' AS pg_catalog.regclass))
        UNION ALL
        SELECT r.class, i.inhrelid
        FROM pg_catalog.pg_inherits AS i
        WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
          AND i.inhparent OPERATOR(pg_catalog.=) r.oid
        UNION ALL
        SELECT r.class, i.inhparent
        FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) i.inhrelid
        WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
          AND i.inhrelid OPERATOR(pg_catalog.=) r.oid AND c.relispartition
        UNION ALL
        SELECT r.class, k.conrelid
        FROM pg_catalog.pg_depend AS d JOIN pg_catalog.pg_constraint AS k ON k.oid OPERATOR(pg_catalog.=) d.objid
        WHERE d.refclassid OPERATOR(pg_catalog.=) r.class AND d.refobjid OPERATOR(pg_catalog.=) r.oid
          AND d.classid OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_constraint' AS pg_catalog.regclass)
          AND r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
          AND k.confrelid OPERATOR(pg_catalog.=) r.oid
    ) AS next (class, oid)
), concerned (role, class, oid) AS (
    SELECT made.role, CAST('pg_catalog.pg_namespace' AS pg_catalog.regclass), n.oid
    FROM found AS f JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) f.schema, LATERAL (
        SELECT n.nspowner
        UNION ALL
        SELECT a.grantee
        FROM pg_catalog.aclexplode(n.nspacl) AS a
        WHERE a.privilege_type OPERATOR(pg_catalog.=) CAST('CREATE' AS pg_catalog.text)
    ) AS made (role)
    UNION ALL
    SELECT owned.role, r.class, r.oid
    FROM reached AS r, LATERAL (
        SELECT c.relowner
        FROM pg_catalog.pg_class AS c
        WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
          AND c.oid OPERATOR(pg_catalog.=) r.oid
          AND c.relkind OPERATOR(pg_catalog.<>) CAST('S' AS pg_catalog."char")
        UNION ALL
        SELECT p.proowner
        FROM pg_catalog.pg_proc AS p
        WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_proc' AS pg_catalog.regclass)
          AND p.oid OPERATOR(pg_catalog.=) r.oid
        UNION ALL
        SELECT o.oprowner
        FROM pg_catalog.pg_operator AS o
        WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_operator' AS pg_catalog.regclass)
          AND o.oid OPERATOR(pg_catalog.=) r.oid
        UNION ALL
        SELECT t.typowner
        FROM pg_catalog.pg_type AS t
        WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_type' AS pg_catalog.regclass)
          AND t.oid OPERATOR(pg_catalog.=) r.oid
          AND t.typtype OPERATOR(pg_catalog.=) CAST('d' AS pg_catalog."char")
    ) AS owned (role)
    UNION ALL
    SELECT a.grantee, r.class, r.oid
    FROM reached AS r, LATERAL (
        SELECT c.relacl FROM pg_catalog.pg_class AS c WHERE c.oid OPERATOR(pg_catalog.=) r.oid
        UNION ALL
        SELECT c.attacl FROM pg_catalog.pg_attribute AS c WHERE c.attrelid OPERATOR(pg_catalog.=) r.oid
    ) AS granted (acl), pg_catalog.aclexplode(granted.acl) AS a
    WHERE r.class OPERATOR(pg_catalog.=) CAST('pg_catalog.pg_class' AS pg_catalog.regclass)
      AND a.privilege_type OPERATOR(pg_catalog.=) ANY (CAST(ARRAY['TRIGGER', 'REFERENCES'] AS pg_catalog.text[]))
)
SELECT f.nonce, f.schema IS NOT NULL,
       (SELECT CAST(pg_catalog.array_agg(o.name ORDER BY o.name) AS pg_catalog.text[]) FROM ours AS o),
       (
           SELECT pg_catalog.concat(c.relname)
           FROM kept AS k JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) k.oid
           WHERE c.relpersistence OPERATOR(pg_catalog.<>) CAST('p' AS pg_catalog."char")
             AND c.relkind OPERATOR(pg_catalog.<>) CAST('p' AS pg_catalog."char")
           LIMIT 1
       ),
       (
           SELECT pg_catalog.concat(i.type, ' ', i.identity)
           FROM concerned AS o, pg_catalog.pg_identify_object(o.class, o.oid, 0) AS i
           WHERE NOT pg_catalog.pg_has_role(o.role, CURRENT_USER, 'MEMBER')
             AND o.role OPERATOR(pg_catalog.<>) f.owner
             AND pg_catalog.pg_get_userbyid(o.role) OPERATOR(pg_catalog.<>) CAST('pg_database_owner' AS pg_catalog.name)
           LIMIT 1
       )
FROM found AS f
""")
"""
Whether the schema is there, which tables of our names are in it, which of them or of their partitions a crash would
empty, since it is in no log, and what a stranger could have put there for us to run; null for none. Catalogues alone
are read: `to_regclass` would answer from before another process made them, and `pg_partition_tree` wait for a lock.

Functions, triggers and all that computes on a table run as whoever calls or writes. So `reached` is what a call of ours
can come to, from our tables and functions on: what PostgreSQL would drop along with a thing, as it does a table's
triggers, rules, policies, constraints and indexes, a view's query and a domain's checks, while what a publication lists
runs nothing; what a thing refers to, as the condition of a trigger does to a function, and an array to the type of its
elements; partitions, and the tables that a thing is a partition of, by whose keys the server sees that a row belongs
there; and the tables whose foreign keys refer to one. A schema, an extension and a language run nothing,
nor does a table on the other side of a foreign key. Where the owner of a thing says what it runs, of a function, an
operator, a domain, and a relation other than a sequence, that must be a role that could act as this one anyway, itself,
its members and superusers, or the database's owner; and nobody else may make anything in the schema, a trigger on such
a table, or a foreign key to it. Who made a trigger is told nowhere. Owners are read where they stand: `pg_shdepend` has
no row for the server's own roles, as `pg_monitor` is, nor for arrays and the rows of tables.
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

LOOK: Final = Statement(
    "SELECT * FROM {schema}.look(%b, %b, %b, %b, %b)",
    columns=(_COUNT, _COUNT, _BYTES, _BYTES, _BYTES),
)
"""A conversation as it stands."""

WRITE: Final = Statement(
    """
SELECT *, pg_catalog.set_config('client_min_messages', 'warning', true) FROM {schema}.write(
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b,
    %b
)
""",
    columns=(_COUNT, _COUNT, _WORD, *[_BYTES] * 3, _COUNTS, _PACKS, _COUNT_OR_NOT, _COUNT_OR_NOT, _WORD),
    writes=True,
)
"""
One change, or none.

That the server gave up waiting for its synchronous standby is told by a WARNING alone, and behind it the transaction is
committed. So it is asked for here, until the end of the transaction: a setting of the session would be another client's
behind a pooler, and one of the function would end before the commit.
"""

PAGE: Final = Statement(
    "SELECT * FROM {schema}.page(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b)",
    columns=(_COUNT, _COUNT, _BYTES, _BYTES, _COUNTS, _PACKS),
)
"""Entries from one end of a range."""

RECEIPTS: Final = Statement(
    "SELECT * FROM {schema}.receipts(%b, %b, %b, %b, %b, %b)",
    columns=(_COUNT, _COUNT, _BYTES, _BYTES, _PACKS),
)
"""Receipts above a version."""

NAMES: Final = Statement(
    "SELECT * FROM {schema}.names(%b, %b, %b, %b, %b, %b)",
    columns=(_COUNT, _COUNT, _IDS, _PACKS, _PACKS),
)
"""Conversations of a namespace, by id."""

STALE: Final = Statement(
    "SELECT * FROM {schema}.stale(%b, %b, %b, %b, %b, %b)",
    columns=(_COUNT, _COUNT, _IDS, _PACKS, _PACKS, _COUNTS),
)
"""Conversations that have expired, or were written to in the future."""

TOTALS: Final = Statement(
    "SELECT * FROM {schema}.totals(%b, %b, %b, %b)",
    columns=(_COUNT,) * 6,
)
"""What a namespace holds."""
