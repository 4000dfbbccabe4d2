"""PostgreSQL itself: what is refused at opening, poolers, time limits, first starts, broken connections (95 to 107)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from servers import postgres
from servers.proxy import proxy
from tests.budgets import budget
from tests.stores import postgres_lab
from tests.stores.labs import chat, in_threads, said

import minutebook
import minutebook.sync
from minutebook.errors import (
    DecisionHistoryAbsent,
    DecisionHistoryBusy,
    DecisionHistoryCorrupt,
    DecisionHistorySchemaUnsupported,
    DecisionHistoryStorageFailed,
    DecisionHistoryStorageLocked,
    DecisionHistoryStorageUnsafe,
    InvalidOption,
    StorageError,
    StoreClosed,
)
from minutebook.model.bounds import StoreBounds
from minutebook.model.keys import ConversationKey
from minutebook.ports import Journal, Totals
from minutebook.stores.journal import JournalStore
from minutebook.stores.postgres_statements import FIND_SCHEMA
from minutebook.testing import FrozenClock, drive
from minutebook.testing.conformance import JournalConformance
from minutebook.testing.conformance.samples import EVERYTHING, FORMAT, KEY, adding, append, entries, say

ROOT = Path(__file__).parents[2]
STARTS = budget(2, 20)


@pytest.fixture
def name() -> str:
    """A lab's name, so a schema, of its own."""
    return uuid.uuid4().hex


@pytest.fixture
def role() -> Iterator[str]:
    """A role of its own that may log in and nothing else."""
    made = "r_" + uuid.uuid4().hex[:12]
    server = postgres.shared()
    server.ask(f"CREATE ROLE {made} LOGIN PASSWORD '{postgres.PASSWORD}'")
    yield made
    server.ask(f"DROP OWNED BY {made} CASCADE")
    server.ask(f"DROP ROLE {made}")


def as_role(name: str, role: str, **options: Any) -> Any:
    """Return a blocking journal of a lab, opened as a role."""
    return postgres_lab.journal(name, url=postgres.shared().url(user=role), blocking=True, **options)


def all_of(error: BaseException | None) -> str:
    """Return all that an error and those behind it say, the connections that a driver's know included."""
    told = ""
    while error is not None:
        told += f" {error!r} {vars(error)} {getattr(error, 'pgconn', None)!r}"
        error = error.__cause__ or error.__context__
    return told


def run(blocking: bool, story: Any) -> Any:
    """Run a story in a loop of its own, or where nothing suspends."""
    return drive(story) if blocking else asyncio.run(story)


# --- stores by name --------------------------------------------------------------------------------------------------


def test_b2_a_store_by_its_url_in_both_colours(name: str) -> None:
    """What one colour writes the other reads, and a URL is all that it takes (B2, B11)."""
    options: Any = {"namespace": "tenant", "schema": postgres_lab.schema_of(name)}
    url = postgres.shared().url()
    with minutebook.sync.PostgresStore(url, **options) as store:
        talk = minutebook.sync.Conversation(store, "a", format="openai-chat")
        talk.append([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
        assert store.durable

    async def read() -> list[Any]:
        async with minutebook.PostgresStore(url, **options) as store:
            assert store.durable
            talk = minutebook.Conversation(store, "a", format="openai-chat")
            await talk.append([{"role": "user", "content": "r"}])
            await store.verify(talk.key)
            return [entry.seq async for entry in talk.entries()]

    assert asyncio.run(read()) == [1, 2, 3]


@pytest.mark.parametrize("faces", [minutebook, minutebook.sync])
def test_b10_a_url_names_the_schema_and_the_timeout(faces: Any, name: str) -> None:
    """What a store has of its own is in the URL as well, beside what the driver knows, so that commands reach it."""
    schema, url = postgres_lab.schema_of(name), postgres.shared().url()
    drive(append(postgres_lab.journal(name, blocking=True), ConversationKey("n", "a"), "one", say("q")))
    for query in (f"schema={schema}", f"timeout=7.5&application_name=a%26b&schema={schema}"):
        with minutebook.sync.open_store(f"{url}?{query}", namespace="n") as store:
            assert [each.key.id for each in store.list()] == ["a"]
    for query, option in (
        ("timeout=long", "timeout"),
        ("timeout=0", "timeout"),
        ("timeout=nan", "timeout"),
        ("schema=Upper", "schema"),
        ("schema=a&schema=b", "schema"),
        ("schemas=a", "url"),
    ):
        with pytest.raises(InvalidOption) as refused:
            faces.open_store(f"{url}?{query}", namespace="n")
        assert refused.value.option == option


@pytest.mark.parametrize(
    "options",
    [
        {"url": "postgresql://user:canary@[bad"},
        {"url": "canary canary"},
        {"url": "postgresql://u:canary%zz@h/d"},
        {"url": "postgresql://u:can ary@h:port/d canary"},
        {"url": "host=h password='canary"},
        {"url": "postgresql://u:canary@h/d?unknown=canary"},
        {"url": 7},
        {"url": "postgresql://localhost/x?connect_timeout=canary"},
        {"schema": "pg_mine"},
        {"schema": 'a"; DROP SCHEMA public'},
        {"schema": "Upper"},
        {"schema": ""},
        {"timeout": 0},
        {"timeout": "1"},
        {"max_connections": 0},
        {"max_sessions": True},
    ],
    ids=str,
)
def test_bad_input_51_options_are_refused_where_they_are_given(options: dict[str, Any]) -> None:
    """By name, before anything is connected, and without a word of the URL (51, I-37)."""
    with pytest.raises(InvalidOption) as refused:
        minutebook.PostgresStore(**{"url": "postgresql://localhost/x", "namespace": "n", **options})
    assert "canary" not in all_of(refused.value)


def test_b2_without_its_driver_a_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear line, and no traceback of an import (B2)."""
    for module in [module for module in sys.modules if module.startswith(("psycopg", "minutebook.stores.postgres"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for module in (minutebook, minutebook.sync):
        with pytest.raises(InvalidOption, match=r"minutebook\[postgres\]"):
            module.PostgresStore("postgresql://localhost/x", namespace="n")


def test_b1_o49_a_write_looks_up_one_receipt_however_many_there_are(name: str) -> None:
    """No write reads an index beyond what it asks for, though the tables have no statistics yet (B1, O-49)."""
    journal = postgres_lab.journal(name, StoreBounds(ttl_ms=60_000), blocking=True)
    for number in range(60):
        drive(append(journal, KEY, f"{number}", say("q")))
    assert len(drive(journal.receipts(KEY, 0, 99))) == 60
    drive(journal.close())
    asked = "SELECT indexrelname, idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = %s"

    def scans() -> dict[str, tuple[int, int]]:
        found = postgres.shared().ask(asked, (postgres_lab.schema_of(name),))
        return {index: (count, rows) for index, count, rows in found}

    # One look-up for each write but the first, which finds no conversation.
    postgres.until(lambda: scans()["receipt_pkey"][0] >= 59, "the server has counted")
    assert scans()["receipt_pkey"][0] == 59
    assert scans()["receipt_version"] == (1, 60)
    assert scans()["receipt_pkey"][1] <= 1
    assert scans()["conversation_age"][0] <= 4


# --- what is refused at opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["synchronous_commit", "transaction_read_only"])
def test_bad_input_97_settings_of_a_role_are_refused(setting: str, name: str, role: str) -> None:
    """A role under which commits are not durable, or that only reads, is refused by name (97)."""
    drive(postgres_lab.journal(name, blocking=True).header(KEY))
    value = {"synchronous_commit": "off", "transaction_read_only": "on"}[setting]
    parameter = setting.replace("transaction_", "default_transaction_")
    postgres.shared().ask(f"ALTER ROLE {role} SET {parameter} = {value}")
    with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
        drive(as_role(name, role).header(KEY))
    assert refused.value.problem == setting.removeprefix("transaction_")


@pytest.mark.parametrize("table", ["version", "namespace", "conversation", "entry", "receipt", "part"])
def test_b2_bad_input_97_tables_that_a_crash_empties_are_refused(table: str, name: str) -> None:
    """A table that is not in the server's log, or a partition of one, keeps nothing for sure: no call uses it (97)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "one", say("q")))
    if table == "part":
        server.ask(
            f"ALTER TABLE {schema}.entry RENAME TO part; CREATE TABLE {schema}.entry (LIKE {schema}.part) "
            f"PARTITION BY LIST (namespace); ALTER TABLE {schema}.entry ATTACH PARTITION {schema}.part DEFAULT"
        )
    server.ask(f"CREATE UNLOGGED TABLE {schema}.other (LIKE {schema}.entry)")
    drive(journal._remote._lines.close())  # so that the next call is made on a new connection
    drive(append(journal, KEY, "two", say("r")))
    server.ask(f"ALTER TABLE {schema}.{table} SET UNLOGGED")
    drive(journal._remote._lines.close())
    for opened in (journal, postgres_lab.journal(name, blocking=True)):
        for call in (opened.header(KEY), append(opened, KEY, "three", say("s"))):
            with pytest.raises(DecisionHistoryStorageUnsafe, match=f"`{table}`.* SET LOGGED") as refused:
                drive(call)
            assert refused.value.problem == "unlogged"
    server.ask(f"ALTER TABLE {schema}.{table} SET LOGGED")
    drive(append(journal, KEY, "three", say("s")))
    assert len(drive(entries(journal, KEY))) == 3
    drive(journal.close())


def test_b2_a_partition_that_is_locked_keeps_no_other_conversation_waiting(name: str) -> None:
    """B2: what a new connection looks at first are catalogues, whatever an operator has locked for long (95)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "one", say("q")))
    server.ask(
        f"ALTER TABLE {schema}.entry RENAME TO part; CREATE TABLE {schema}.entry (LIKE {schema}.part INCLUDING ALL) "
        f"PARTITION BY LIST (namespace); ALTER TABLE {schema}.entry ATTACH PARTITION {schema}.part DEFAULT; "
        f"CREATE TABLE {schema}.locked PARTITION OF {schema}.entry FOR VALUES IN ('\\x6162'); "
        f"CREATE UNLOGGED TABLE {schema}.other (LIKE {schema}.part)"
    )
    with psycopg.connect(server.url()) as operator:
        operator.execute(f"LOCK TABLE {schema}.locked IN ACCESS EXCLUSIVE MODE")
        opened = postgres_lab.journal(name, blocking=True, timeout=5)
        assert drive(opened.header(KEY)).version == 1
        drive(append(opened, KEY, "two", say("r")))
        operator.rollback()
        drive(opened.close())
    drive(journal.close())


def test_bad_input_106_another_encoding_is_refused(name: str) -> None:
    """A database that is not in UTF8 is refused by name, and nothing is made in it (106)."""
    server = postgres.shared()
    database = f"latin_{name[:12]}"
    server.ask(f"CREATE DATABASE {database} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    journal = postgres_lab.journal(name, url=server.url(database), blocking=True)
    with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
        drive(append(journal, KEY, "one", say("q")))
    assert refused.value.problem == "server_encoding"
    assert server.ask("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 't\\_%'", database=database) == [(0,)]
    server.ask(f"DROP DATABASE {database} WITH (FORCE)")


def test_bad_input_107_a_role_without_rights_is_told_what_it_needs(name: str, role: str) -> None:
    """Without the right to make a schema, or to use it or its tables, the refusal says which GRANT (107)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    with pytest.raises(DecisionHistoryStorageUnsafe, match="GRANT CREATE ON DATABASE"):
        drive(append(as_role(name, role), KEY, "one", say("q")))
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    for grant in (f"USAGE ON SCHEMA {schema}", f"SELECT, INSERT ON ALL TABLES IN SCHEMA {schema}"):
        with pytest.raises(DecisionHistoryStorageUnsafe, match="GRANT USAGE ON SCHEMA") as refused:
            drive(as_role(name, role).header(KEY))
        assert refused.value.problem == "rights"
        server.ask(f"GRANT {grant} TO {role}")
    with pytest.raises(DecisionHistoryStorageUnsafe, match="GRANT USAGE ON SCHEMA"):
        drive(append(as_role(name, role), KEY, "two", say("r")))
    server.ask(f"GRANT UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    journal = as_role(name, role)
    drive(append(journal, KEY, "two", say("r")))
    assert len(drive(entries(journal, KEY))) == 2
    drive(journal.close())


def test_bad_input_107_functions_that_not_everybody_may_call_are_named(name: str, role: str) -> None:
    """Where EXECUTE was taken from PUBLIC, as hardened default privileges do, the refusal says which GRANT (107)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    server.ask(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
    server.ask(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    server.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    journal = as_role(name, role)
    for call in (journal.header(KEY), append(journal, KEY, "two", say("r"))):
        with pytest.raises(DecisionHistoryStorageUnsafe, match="GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA") as refused:
            drive(call)
        assert refused.value.problem == "rights"
    server.ask(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}")
    drive(append(journal, KEY, "two", say("r")))
    assert len(drive(entries(journal, KEY))) == 2
    drive(journal.close())


@pytest.mark.parametrize("made", ["AUTHORIZATION {role}", "; GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}"])
def test_bad_input_107_a_schema_that_was_made_for_a_role_is_used(made: str, name: str, role: str) -> None:
    """A role that may make no schema makes its tables in the one that an administrator made for it (107)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    server.ask(f"CREATE SCHEMA {schema} {made.format(role=role, schema=schema)}")
    journal = as_role(name, role)
    assert drive(journal.header(KEY)) is None
    drive(append(journal, KEY, "one", say("q")))
    assert len(drive(entries(journal, KEY))) == 1
    drive(journal.close())


@pytest.fixture
def stranger(role: str) -> Iterator[str]:
    """A second role of its own, which the first has nothing to do with."""
    made = role.replace("r_", "s_")
    server = postgres.shared()
    server.ask(f"CREATE ROLE {made}")
    yield made
    server.ask(f"DROP OWNED BY {made} CASCADE")
    server.ask(f"DROP ROLE {made}")


OVERLOAD = "look(bigint, text, bytea, bytea, bytea) RETURNS int LANGUAGE sql AS 'SELECT 1'"
OF_A_STRANGER = """
CREATE SCHEMA {schema}x;
CREATE FUNCTION {schema}x.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
ALTER FUNCTION {schema}x.f() OWNER TO {stranger};
CREATE FUNCTION {schema}x.g(bytea) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
ALTER FUNCTION {schema}x.g(bytea) OWNER TO {stranger};
CREATE DOMAIN {schema}x.d AS bytea CHECK ({schema}x.g(VALUE) = 1);
ALTER DOMAIN {schema}x.d OWNER TO {stranger};
CREATE TABLE {schema}x.row (a bytea);
ALTER TABLE {schema}x.row OWNER TO {stranger};
CREATE TYPE {schema}x.pair AS (a {schema}x.d);
CREATE DOMAIN {schema}x.own AS bytea CHECK ({schema}x.g(VALUE) = 1);
CREATE OPERATOR {schema}x.@@ (FUNCTION = pg_catalog.byteaeq, LEFTARG = bytea, RIGHTARG = bytea);
ALTER OPERATOR {schema}x.@@ (bytea, bytea) OWNER TO {stranger};
CREATE VIEW {schema}x.view AS SELECT {schema}x.g('') AS a;
CREATE FUNCTION {schema}x.pinned() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
ALTER FUNCTION {schema}x.pinned() OWNER TO pg_monitor;
CREATE TABLE {schema}x.child () INHERITS ({schema}.entry);
CREATE TABLE {schema}x.key (namespace bytea, conversation bytea)
"""
KEY_TO_US = "ALTER TABLE {schema}x.key ADD FOREIGN KEY (namespace, conversation) REFERENCES {schema}.conversation"
KEYS_TO_US = (
    "CREATE TABLE {schema}x.keys (LIKE {schema}x.key) PARTITION BY LIST (namespace); ALTER TABLE {schema}x.keys ATTACH "
    "PARTITION {schema}x.key DEFAULT; " + KEY_TO_US.replace(".key ", ".keys ")
)
PARTED = "CREATE TABLE {schema}x.whole (LIKE {schema}.entry) PARTITION BY LIST "
PART_OF = (
    "ALTER TABLE {schema}x.child NO INHERIT {schema}.entry; "
    "ALTER TABLE {schema}x.whole ATTACH PARTITION {schema}.entry DEFAULT"
)
CHECK = "ALTER TABLE {schema}.entry ADD CHECK "
STRANGE = {
    "schema": "ALTER SCHEMA {schema} OWNER TO {stranger}",
    "table": "ALTER TABLE {schema}.receipt OWNER TO {stranger}",
    "version": "ALTER TABLE {schema}.version OWNER TO {stranger}",
    "function": "ALTER FUNCTION {schema}.write OWNER TO {stranger}",
    "overload": "CREATE FUNCTION {schema}." + OVERLOAD + "; ALTER FUNCTION {schema}.look(bigint, text, bytea, bytea, "
    "bytea) OWNER TO {stranger}",
    "CREATE": "GRANT CREATE ON SCHEMA {schema} TO {stranger}",
    "PUBLIC": "GRANT CREATE ON SCHEMA {schema} TO PUBLIC",
    "TRIGGER": "GRANT TRIGGER ON {schema}.entry TO {stranger}",
    "trigger": "CREATE TRIGGER t BEFORE INSERT ON {schema}.entry FOR EACH ROW EXECUTE FUNCTION {schema}x.f()",
    "condition": "CREATE TRIGGER t BEFORE UPDATE ON {schema}.conversation FOR EACH ROW "
    "WHEN ({schema}x.g(NEW.stamp) = 2) EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()",
    "rule": "CREATE RULE r AS ON INSERT TO {schema}.entry DO ALSO SELECT {schema}x.g(NEW.packed)",
    "policy": "CREATE POLICY p ON {schema}.entry USING ({schema}x.g(packed) = 1)",
    "index": "CREATE INDEX i ON {schema}.entry (seq) WHERE {schema}x.g(packed) = 1",
    "exclusion": "ALTER TABLE {schema}.entry ADD EXCLUDE ({schema}x.g(packed) WITH =) WHERE (seq < 0)",
    "generated": "ALTER TABLE {schema}.entry ADD more bigint GENERATED ALWAYS AS ({schema}x.g(packed)) STORED",
    "check": CHECK + "(CAST(packed AS {schema}x.d) IS NOT NULL)",
    "array": CHECK + "(CAST(CAST(seq AS text) AS {schema}x.d[]) IS NULL) NOT VALID",
    "row": CHECK + "(CAST(CAST(seq AS text) AS {schema}x.row) IS NULL) NOT VALID",
    "domain in a type": CHECK + "(CAST(CAST(seq AS text) AS {schema}x.pair[]) IS NULL) NOT VALID",
    "check of a domain": CHECK + "(CAST(packed AS {schema}x.own) IS NOT NULL)",
    "operator": CHECK + "(packed OPERATOR({schema}x.@@) packed)",
    "view": "CREATE POLICY p ON {schema}.entry USING (EXISTS (SELECT a FROM {schema}x.view))",
    "trigger of a role of the server's": "CREATE TRIGGER t BEFORE INSERT ON {schema}.entry FOR EACH ROW "
    "EXECUTE FUNCTION {schema}x.pinned()",
    "key of a role of the server's": KEY_TO_US + "; ALTER TABLE {schema}x.key OWNER TO pg_monitor",
    "default": "ALTER TABLE {schema}.entry ADD COLUMN more bigint DEFAULT {schema}x.g('')",
    "REFERENCES": "GRANT REFERENCES ON {schema}.conversation TO {stranger}",
    "REFERENCES of columns": "GRANT REFERENCES (namespace, conversation) ON {schema}.conversation TO {stranger}",
    "key": KEY_TO_US + " ON DELETE CASCADE; ALTER TABLE {schema}x.key OWNER TO {stranger}",
    "TRIGGER behind a key": KEY_TO_US + "; GRANT TRIGGER ON {schema}x.key TO {stranger}",
    "child": "ALTER TABLE {schema}x.child OWNER TO {stranger}",
    "trigger of a child": "CREATE TRIGGER t BEFORE INSERT ON {schema}x.child FOR EACH ROW EXECUTE FUNCTION "
    "{schema}x.f()",
    "key of a table that ours is a partition of": PARTED + "({schema}x.g(namespace)); " + PART_OF,
    "key above that": "CREATE TABLE {schema}x.top (LIKE {schema}.entry) PARTITION BY LIST ({schema}x.g(namespace)); "
    + PARTED
    + "(namespace); ALTER TABLE {schema}x.top ATTACH PARTITION {schema}x.whole DEFAULT; "
    + PART_OF,
    "table that ours is a partition of": PARTED
    + "(namespace); "
    + PART_OF
    + "; ALTER TABLE {schema}x.whole OWNER TO {stranger}",
    "key of a table that one with a key to ours is a partition of": "CREATE TABLE {schema}x.keys (LIKE {schema}x.key) "
    "PARTITION BY LIST ({schema}x.g(namespace)); ALTER TABLE {schema}x.keys ATTACH PARTITION {schema}x.key DEFAULT; "
    + KEY_TO_US,
    "partition of a table with a key to ours": KEYS_TO_US + "; ALTER TABLE {schema}x.key OWNER TO {stranger}",
    "TRIGGER on that": KEYS_TO_US + "; GRANT TRIGGER ON {schema}x.key TO {stranger}",
}


def test_bad_input_105_all_that_a_call_can_come_to_is_looked_at(name: str, role: str, stranger: str) -> None:
    """Whatever hangs on our tables, their children and those that refer to them, and all that it refers to (105)."""
    import psycopg

    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    server.ask(OF_A_STRANGER.format(schema=schema, stranger=stranger))
    with psycopg.connect(server.url()) as connection:

        def is_refused(made: str) -> bool:
            connection.execute(made.format(schema=schema, stranger=stranger).encode())
            connection.execute(f"SET LOCAL ROLE {role}".encode())
            (row,) = connection.execute(FIND_SCHEMA.text.encode(), (1, schema), binary=True)
            connection.rollback()
            return row[-1] is not None

        assert [what for what, made in STRANGE.items() if not is_refused(made)] == []
        assert not is_refused("")


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("schema", "schema {schema}"),
        ("function", "function {schema}.write("),
        ("CREATE", "schema {schema}"),
        ("TRIGGER", "table {schema}.entry"),
        ("condition", "function {schema}x.g("),
        ("REFERENCES", "table {schema}.conversation"),
        ("key", "table {schema}x.key"),
        ("trigger of a role of the server's", "function {schema}x.pinned("),
    ],
)
def test_bad_input_105_what_a_stranger_could_have_us_run_is_refused(
    what: str, named: str, name: str, role: str, stranger: str
) -> None:
    """Code runs as its caller: where a stranger owns some that is reached, or could make it, none is (105), by name."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    server.ask(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    server.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    server.ask(OF_A_STRANGER.format(schema=schema, stranger=stranger))
    opened = as_role(name, role)
    drive(append(opened, KEY, "two", say("r")))
    server.ask(STRANGE[what].format(schema=schema, stranger=stranger))
    drive(opened._remote._lines.close())  # so that the next call is made on a new connection
    for journal in (opened, as_role(name, role), postgres_lab.journal(name, blocking=True)):
        for call in (journal.header(KEY), append(journal, KEY, "three", say("s"))):
            with pytest.raises(DecisionHistoryStorageUnsafe, match=re.escape(named.format(schema=schema))) as refused:
                drive(call)
            assert refused.value.problem == "owner"
        drive(journal.close())
    assert server.ask(f"SELECT count(*) FROM {schema}.entry") == [(2,)]


def test_bad_input_105_a_schema_of_our_name_that_a_stranger_made_is_not_even_read(name: str, stranger: str) -> None:
    """Its `version` is a view that would have run as whoever reads it, a superuser here (105)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    for statement in (
        f"CREATE SCHEMA {schema} AUTHORIZATION {stranger}",
        f"SET ROLE {stranger}; CREATE TABLE {schema}.called (by name)",
        f"SET ROLE {stranger}; CREATE FUNCTION {schema}.trap() RETURNS int LANGUAGE sql AS "
        f"'INSERT INTO {schema}.called VALUES (CURRENT_USER) RETURNING 1'",
        f"SET ROLE {stranger}; CREATE VIEW {schema}.version AS SELECT {schema}.trap() AS version",
    ):
        server.ask(statement)
    journal = postgres_lab.journal(name, blocking=True)
    for call in (journal.header(KEY), append(journal, KEY, "one", say("q"))):
        with pytest.raises(DecisionHistoryStorageUnsafe, match="nothing of the schema was used") as refused:
            drive(call)
        assert refused.value.problem == "owner"
    drive(journal.close())
    assert server.ask(f"SELECT by FROM {schema}.called") == []
    server.ask(f"SELECT version FROM {schema}.version")  # the trap works
    assert server.ask(f"SELECT by FROM {schema}.called") == [(postgres.USER,)]


@pytest.mark.parametrize("owner", ["role", "member", "database", "superuser", "SET ROLE"])
def test_bad_input_107_a_schema_of_whom_the_role_can_trust_is_used(
    owner: str, name: str, role: str, stranger: str
) -> None:
    """Its own, one of a role that could act as it anyway, and of the database's owner: each goes, and goes on (107)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    database = f"d_{name[:12]}"
    server.ask(f"CREATE DATABASE {database}")
    whose = {"role": role, "superuser": postgres.USER}.get(owner, stranger)
    if owner == "member":
        server.ask(f"GRANT {role} TO {stranger}")
    if owner == "database":
        server.ask(f"ALTER DATABASE {database} OWNER TO {stranger}")
    drive(append(postgres_lab.journal(name, url=server.url(database), blocking=True), KEY, "one", say("q")))
    server.ask(f"ALTER SCHEMA {schema} OWNER TO {whose}", database=database)
    server.ask(f"GRANT USAGE ON SCHEMA {schema} TO {role}", database=database)
    server.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}", database=database)
    url = server.url(database, user=role)
    if owner == "SET ROLE":
        server.ask(f"GRANT {stranger} TO {role}")
        server.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {stranger}", database=database)
        url += f"?options=-c%20role%3D{stranger}"
    journal = postgres_lab.journal(name, url=url, blocking=True)
    drive(append(journal, KEY, "two", say("r")))
    assert len(drive(entries(journal, KEY))) == 2
    drive(journal.close())
    server.ask(f"DROP DATABASE {database} WITH (FORCE)")


OF_A_TEAM = (
    """
CREATE SCHEMA {schema}x;
GRANT USAGE ON SCHEMA {schema}x TO PUBLIC;
CREATE TABLE {schema}x.audit (at bigint);
GRANT INSERT ON {schema}x.audit TO PUBLIC;
CREATE FUNCTION {schema}x.note() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN INSERT INTO {schema}x.audit VALUES (NEW.seq); RETURN NEW; END';
CREATE FUNCTION {schema}x.large(bigint) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT $1 >= 0';
CREATE TRIGGER audit BEFORE INSERT ON {schema}.entry FOR EACH ROW WHEN ({schema}x.large(NEW.size))
    EXECUTE FUNCTION {schema}x.note();
CREATE INDEX large ON {schema}.entry (seq) WHERE {schema}x.large(size);
CREATE TABLE {schema}x.person (id bigint PRIMARY KEY);
ALTER TABLE {schema}x.person OWNER TO {stranger};
CREATE TYPE {schema}x.kind AS ENUM ('ticket');
ALTER TYPE {schema}x.kind OWNER TO {stranger};
CREATE TABLE {schema}x.numbered (number bigserial);
ALTER TABLE {schema}x.numbered OWNER TO {stranger};
CREATE TABLE {schema}x.base ();
ALTER TABLE {schema}x.base OWNER TO {role};
CREATE TABLE {schema}x.sibling () INHERITS ({schema}x.base);
ALTER TABLE {schema}x.sibling OWNER TO {stranger};
CREATE TABLE {schema}x.key (
    namespace bytea, conversation bytea, number bigint DEFAULT nextval('{schema}x.numbered_number_seq'),
    kind {schema}x.kind DEFAULT 'ticket', kinds {schema}x.kind[], person bigint REFERENCES {schema}x.person
) INHERITS ({schema}x.base);
ALTER TABLE {schema}x.key OWNER TO {role};
"""
    + KEY_TO_US
    + """ ON DELETE CASCADE;
INSERT INTO {schema}x.key SELECT namespace, conversation FROM {schema}.conversation;
CREATE PUBLICATION {schema} FOR TABLE {schema}.entry;
ALTER PUBLICATION {schema} OWNER TO {stranger};
GRANT SELECT ON {schema}.entry TO {stranger};
CREATE VIEW {schema}x.seen AS SELECT seq FROM {schema}.entry;
ALTER VIEW {schema}x.seen OWNER TO {stranger};
CREATE TABLE {schema}x.whole (LIKE {schema}.entry) PARTITION BY HASH (namespace, conversation);
ALTER TABLE {schema}x.whole OWNER TO {role};
ALTER TABLE {schema}x.whole ATTACH PARTITION {schema}.entry FOR VALUES WITH (MODULUS 1, REMAINDER 0);
ALTER SCHEMA {schema}x OWNER TO {stranger}
"""
)


def test_bad_input_107_what_those_one_can_trust_add_to_the_tables_is_used(name: str, role: str, stranger: str) -> None:
    """What they made runs as before, and what a stranger has beside it, and nobody runs, is no hindrance (107)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    server.ask(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    server.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    server.ask(OF_A_TEAM.format(schema=schema, role=role, stranger=stranger))
    journal = as_role(name, role)
    drive(append(journal, KEY, "two", say("r")))
    assert server.ask(f"SELECT at FROM {schema}x.audit") == [(2,)]
    drive(journal.delete(KEY))
    assert server.ask(f"SELECT * FROM {schema}x.key") == []
    drive(journal.close())


def test_bad_input_105_the_schema_public_is_used_where_nobody_else_may_create_in_it(name: str) -> None:
    """Its owner is the database's, by the name `pg_database_owner`; with CREATE for PUBLIC it is refused (105)."""
    from minutebook.stores.postgres import PostgresRemote
    from minutebook.stores.remote_journal import RemoteJournal

    server = postgres.shared()
    database = f"d_{name[:12]}"
    server.ask(f"CREATE DATABASE {database}")
    journal = RemoteJournal(PostgresRemote(server.url(database), schema="public", blocking=True))
    server.ask("GRANT CREATE ON SCHEMA public TO PUBLIC", database=database)
    with pytest.raises(DecisionHistoryStorageUnsafe):
        drive(append(journal, KEY, "one", say("q")))
    server.ask("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=database)
    drive(append(journal, KEY, "one", say("q")))
    assert len(drive(entries(journal, KEY))) == 1
    drive(journal.close())
    server.ask(f"DROP DATABASE {database} WITH (FORCE)")


def test_bad_input_105_every_table_and_function_of_ours_is_looked_at(name: str) -> None:
    """What a migration makes stands in the statement that looks at owners (105)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    made = "SELECT {0}name FROM pg_{1} WHERE {0}namespace = '{2}'::regnamespace"
    for prefix, catalog, only in (("rel", "class", " AND relkind <> 'i'"), ("pro", "proc", "")):
        names = {found for (found,) in server.ask(made.format(prefix, catalog, schema) + only)}
        (told,) = re.findall(
            rf"c?p?\.{prefix}name OPERATOR\(pg_catalog\.=\) ANY .*?ARRAY\[(.*?)\]", FIND_SCHEMA.text, re.DOTALL
        )
        assert names == set(re.findall(r"'(\w+)'", told))


@pytest.mark.parametrize("blocking", [True, False])
def test_i25_what_only_reads_makes_nothing(blocking: bool, name: str) -> None:
    """In an empty database every reading call finds nothing and leaves nothing; the first write makes the tables."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)

    async def story() -> None:
        journal = postgres_lab.journal(name, StoreBounds(ttl_ms=60_000), blocking=blocking)
        assert await journal.header(KEY) is None
        assert await journal.newest(KEY, 9, EVERYTHING) == await journal.oldest(KEY, 0, EVERYTHING) == ()
        assert await journal.receipts(KEY, 0, 9) == await journal.list("suite", "", 9) == ()
        assert await journal.receipt(KEY, "one") is None
        assert await journal.totals("suite") == Totals(conversations=0, bytes=0, reserved=0, expired=0)
        assert server.ask("SELECT nspname FROM pg_namespace WHERE nspname = %s", (schema,)) == []
        with pytest.raises(DecisionHistoryAbsent):
            await journal.delete(KEY)
        await append(journal, KEY, "one", say("q"))
        assert len(await entries(journal, KEY)) == 1
        await journal.close()

    run(blocking, story())


def test_i25_a_role_that_may_only_read_reads_everything(name: str, role: str) -> None:
    """With USAGE and SELECT alone: a listing, pages, receipts, counts and proofs, also beside what has expired."""
    server, schema, clock = postgres.shared(), postgres_lab.schema_of(name), FrozenClock()
    writer = postgres_lab.journal(name, StoreBounds(ttl_ms=1_000), clock, blocking=True)
    drive(append(writer, ConversationKey("suite", "old"), "one", say("q")))
    clock.advance(1_001)
    drive(append(writer, KEY, "one", say("q")))
    drive(append(writer, ConversationKey("suite", "held"), "one", say("q")))
    drive(writer.close())
    server.ask(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    server.ask(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    journal = as_role(name, role, bounds=StoreBounds(ttl_ms=1_000), clock=clock)
    store = JournalStore(journal, namespace="suite")
    assert [each.key.id for each in drive(store.list())] == [KEY.id, "held"]
    assert drive(journal.header(ConversationKey("suite", "old"))) is None
    assert drive(store.verify(KEY, receipt=drive(journal.receipt(KEY, "one")))).version == 1
    assert len(drive(entries(journal, KEY))) == 1
    assert drive(store.totals()).conversations == 2
    with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
        drive(append(journal, KEY, "two", say("r")))
    assert refused.value.problem == "rights"
    drive(journal.close())


def test_bad_input_105_a_search_path_is_not_followed(name: str, role: str) -> None:
    """Functions, operators and tables of our names in a schema of a stranger's are never called (105)."""
    server = postgres.shared()
    evil = "evil_" + name[:10]
    server.ask(f"CREATE SCHEMA {evil} AUTHORIZATION {role}")
    server.ask(f"CREATE TABLE {evil}.called (what text)")
    server.ask(f"GRANT ALL ON {evil}.called TO {role}")
    for type_ in ("bytea", "int8", "name", "int4", "text"):
        for operator, word in (("=", "equal"), ("<>", "other"), (">", "more"), (">=", "atleast")):
            function = f"{evil}.{word}_{type_}"
            server.ask(
                f"CREATE FUNCTION {function}({type_}, {type_}) RETURNS boolean LANGUAGE sql AS "
                f"$$ INSERT INTO {evil}.called VALUES ('{word}') RETURNING true $$"
            )
            server.ask(f"CREATE OPERATOR {evil}.{operator} (LEFTARG={type_}, RIGHTARG={type_}, FUNCTION={function})")
    for table in ("conversation", "namespace", "entry", "receipt", "version"):
        server.ask(f"CREATE TABLE {evil}.{table} (stolen text)")
    server.ask(
        f"CREATE FUNCTION {evil}.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        f"$$ INSERT INTO {evil}.called VALUES ('clock') RETURNING pg_catalog.clock_timestamp() $$"
    )
    server.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA {evil} TO {role}")
    server.ask(f"ALTER ROLE {role} SET search_path = {evil}, pg_catalog")
    server.ask(f"GRANT CREATE ON DATABASE postgres TO {role}")
    journal = as_role(name, role, bounds=StoreBounds(max_sessions=9, max_bytes=10**6, ttl_ms=60_000))
    drive(append(journal, KEY, "one", say("q")))
    drive(journal.totals("suite"))
    drive(journal.list("suite", "", 9))
    assert len(drive(entries(journal, KEY))) == 1
    drive(journal.delete(KEY))
    drive(journal.close())
    assert server.ask(f"SELECT * FROM {evil}.called") == []
    # The trap works: a statement that names no schema falls into it.
    import psycopg

    with psycopg.connect(server.url(user=role), autocommit=True) as connection:
        connection.execute("SELECT 'a'::bytea = 'a'::bytea")
    assert server.ask(f"SELECT DISTINCT what FROM {evil}.called") == [("equal",)]
    server.ask(f"DROP SCHEMA {evil} CASCADE")


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "127.0.0.1,a..b"])
def test_bad_input_51_a_host_that_none_can_be_is_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a URL where it is given, and in the environment when it is looked up, in both colours (51)."""
    for make in (minutebook.PostgresStore, minutebook.sync.PostgresStore):
        with pytest.raises(InvalidOption, match="no host can have the name") as refused:
            make(f"postgresql://user:{postgres.PASSWORD}@{host}/db", namespace="n")
        assert refused.value.option == "url"
        assert postgres.PASSWORD not in all_of(refused.value)
    monkeypatch.setenv("PGHOST", host)

    async def story(*, blocking: bool) -> None:
        journal = postgres_lab.journal("x", url="postgresql:///db", blocking=blocking, timeout=5)
        with pytest.raises(DecisionHistoryStorageFailed, match="nothing was sent") as failed:
            await journal.header(KEY)
        assert "no host can have that name" in str(failed.value)
        assert host not in all_of(failed.value)

    drive(story(blocking=True))
    asyncio.run(story(blocking=False))


def test_bad_input_51_names_of_hosts_that_there_may_be_are_taken() -> None:
    """Folders of sockets, addresses, and names in any alphabet are no names that none can have (51)."""
    for host in ("/var/run/" + "a" * 70, "@abstract..socket", "::1", "bücher.example", "under_score", "one,two", ""):
        minutebook.sync.PostgresStore(f"host='{host}' dbname=db", namespace="n").close()


def test_i37_no_password_in_anything_that_is_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wrong passwords, hosts and databases are told without the URL's words (I-37)."""
    caplog.set_level("DEBUG")
    server = postgres.shared()
    port = postgres.free_port()
    for url in (
        server.url(password="wrong-" + postgres.PASSWORD),
        server.url("absent_database"),
        server.url(port=port),
        f"postgresql://canary-user:{postgres.PASSWORD}@127.0.0.1:{server.port}/postgres",
    ):
        journal = postgres_lab.journal(name, url=url, blocking=True, timeout=5)
        with pytest.raises(DecisionHistoryStorageFailed, match="nothing was sent") as refused:
            drive(journal.header(KEY))
        assert postgres.PASSWORD not in f"{all_of(refused.value)} {journal!r} {vars(journal)} {caplog.text}"


@pytest.mark.parametrize("blocking", [True, False])
def test_i37_no_connection_behind_an_error_of_a_call(blocking: bool, name: str) -> None:
    """Whatever ends a call that was sent, no error behind ours has the connection, which knows the password (I-37)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)

    async def refused(journal: Any) -> str:
        with pytest.raises(StorageError) as error:
            await append(journal, KEY, "two", say("r"))
        return all_of(error.value)

    async def story(wire: Any) -> None:
        journal = postgres_lab.journal(name, url=server.url(port=wire.port), blocking=blocking, timeout=0.8)
        await append(journal, KEY, "one", say("q"))
        wire.silent = True
        told = await refused(journal)
        wire.silent = False
        wire.left = 3
        told += await refused(journal)
        wire.left = None
        server.ask(f"DROP FUNCTION {schema}.unsafe")
        told += await refused(journal)
        await journal.close()
        assert "deadline" in told
        assert "connection" in told
        assert postgres.PASSWORD not in told

    with proxy(server.port) as wire:
        run(blocking, story(wire))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_bad_input_106_an_encoding_of_the_client_changes_nothing(encoding: str, name: str) -> None:
    """Ids and records are bytes, and what the server is is told rightly (106)."""
    url = postgres.shared().url() + f"?client_encoding={encoding}"
    journal = postgres_lab.journal(name, url=url, blocking=True)
    key = ConversationKey("\u00e9", "\u4e16")
    drive(append(journal, key, "\u00fc", say("\u20ac")))
    assert [each.key for each in drive(journal.list("\u00e9", "", 9))] == [key]
    assert [entry.payload for entry in drive(entries(journal, key))] == [say("\u20ac").payload]
    drive(journal.close())


@pytest.mark.parametrize("blocking", [True, False])
def test_bad_input_97_a_server_that_begins_to_only_read_is_left(blocking: bool, name: str, role: str) -> None:
    """None of its connections is used again, idle ones included: its name may lead to the new primary by now (97)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)

    async def story() -> None:
        journal = postgres_lab.journal(
            name, url=server.url(user=role) + f"?application_name={schema}", blocking=blocking
        )
        await append(journal, KEY, "one", say("q"))
        sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"

        async def read_at_once() -> list[Any]:
            if blocking:
                in_threads([lambda: drive(journal.header(KEY))] * 4)
            else:
                await asyncio.gather(*(journal.header(KEY) for _ in range(4)))
            return server.ask(sessions, (schema,))

        while len(before := await read_at_once()) < 2:
            pass
        server.ask(
            f"CREATE OR REPLACE FUNCTION {schema}.unsafe() RETURNS text LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE SQLSTATE '25006'; END $$"
        )
        with pytest.raises(DecisionHistoryStorageUnsafe) as refused:
            await append(journal, KEY, "two", say("r"))
        assert refused.value.problem == "read_only"
        postgres.until(lambda: not set(before) & set(server.ask(sessions, (schema,))), "all of them are closed")
        await journal.close()

    server.ask(f"GRANT CREATE ON DATABASE postgres TO {role}")
    run(blocking, story())


@pytest.mark.parametrize(("state", "told"), [("40003", "unknown"), ("08007", "unknown"), ("58000", "nothing was")])
def test_i08_an_outcome_that_the_server_does_not_know_is_told_as_unknown(state: str, told: str, name: str) -> None:
    """By its code; of any other error that the server tells nothing is there (I-8)."""
    schema = postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "one", say("q")))
    postgres.shared().ask(
        f"CREATE OR REPLACE FUNCTION {schema}.unsafe() RETURNS text LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE SQLSTATE '{state}'; END $$"
    )
    with pytest.raises(DecisionHistoryStorageFailed, match=told):
        drive(append(journal, KEY, "two", say("r")))
    drive(journal.close())


# --- first starts, versions ------------------------------------------------------------------------------------------


def opened(schema: str, url: str) -> None:
    """Open a store in this process once the parent says so, and write into it."""
    print("ready", flush=True)
    sys.stdin.readline()
    with minutebook.sync.PostgresStore(url, namespace="n", schema=schema) as store:
        talk = minutebook.sync.Conversation(store, f"{os.getpid()}", format="openai-chat")
        talk.append([{"role": "user", "content": "q"}])
    print("done")


def test_i40_o47_eight_processes_open_an_empty_database_at_once(figure: Callable[[str], None]) -> None:
    """All succeed, and there is one version (O-47 a, I-40)."""
    server = postgres.shared()
    for _ in range(STARTS):
        schema = postgres_lab.schema_of(uuid.uuid4().hex)
        code = "import sys; from tests.stores.test_postgres import opened; opened(*sys.argv[1:])"
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code, schema, server.url()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for _ in range(8)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        assert [child.communicate()[0] for child in children] == ["done\n"] * 8
        assert server.ask(f"SELECT version FROM {schema}.version") == [(1,)]
        assert server.ask(f"SELECT conversations FROM {schema}.namespace") == [(8,)]
    figure(f"{STARTS} times 8 processes on an empty database, one version each")


def test_i40_o47_another_version_is_refused_and_a_failed_migration_leaves_nothing(name: str) -> None:
    """A newer schema is refused with both numbers; one that something is in the way of is not made in part (O-47 b)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    server.ask(f"CREATE SCHEMA {schema}")
    server.ask(f"CREATE TABLE {schema}.receipt (mine text)")
    journal = postgres_lab.journal(name, blocking=True)
    with pytest.raises(DecisionHistorySchemaUnsupported):
        drive(append(journal, KEY, "one", say("q")))
    assert server.ask("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,)) == [
        ("receipt",)
    ]
    server.ask(f"DROP TABLE {schema}.receipt")
    drive(append(journal, KEY, "one", say("q")))
    server.ask(f"UPDATE {schema}.version SET version = 7")
    with pytest.raises(DecisionHistorySchemaUnsupported) as refused:
        drive(postgres_lab.journal(name, blocking=True).header(KEY))
    assert (refused.value.found, refused.value.supported) == (7, 1)
    assert len(drive(entries(journal, KEY))) == 1


def test_i40_a_store_that_is_open_while_the_schema_is_renewed_stops(name: str) -> None:
    """Each new connection looks at the version again: a rolling upgrade ends the old version's writes (I-40)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, url=server.url() + f"?application_name={schema}", blocking=True)
    drive(append(journal, KEY, "one", say("q")))

    def cut() -> None:
        server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", (schema,))
        gone = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
        postgres.until(lambda: server.ask(gone, (schema,)) == [], "its connection is gone")

    server.ask(f"UPDATE {schema}.version SET version = 2")
    cut()
    for call in (append(journal, KEY, "two", say("r")), journal.header(KEY)):
        with pytest.raises(DecisionHistorySchemaUnsupported) as refused:
            drive(call)
        assert (refused.value.found, refused.value.supported) == (2, 1)
    server.ask(f"UPDATE {schema}.version SET version = 1")
    drive(append(journal, KEY, "two", say("r")))
    server.ask(f"DROP SCHEMA {schema} CASCADE")
    cut()
    with pytest.raises(DecisionHistorySchemaUnsupported, match="not there any more"):
        drive(append(journal, KEY, "three", say("r")))
    drive(journal.close())


def test_i40_a_greeting_that_the_first_write_overtakes_finds_its_tables(name: str) -> None:
    """A connection that looked before another one made the tables takes them for no lost ones (I-40, O-47)."""
    from minutebook.stores.postgres import PostgresRemote
    from minutebook.stores.remote_journal import RemoteJournal

    class Overtaken(PostgresRemote):
        later: Any = None

        async def _version(self, line: Any) -> int:
            version = await super()._version(line)
            if self.later is not None:
                later, self.later = self.later, None
                assert in_threads([lambda: drive(later)]) == [None]
            return version

    remote = Overtaken(postgres.shared().url(), schema=postgres_lab.schema_of(name), blocking=True)
    journal = RemoteJournal(remote)
    remote.later = append(journal, KEY, "one", say("q"))
    drive(append(journal, KEY, "two", say("r")))
    assert len(drive(entries(journal, KEY))) == 2
    drive(journal.close())


@pytest.mark.parametrize(
    "columns",
    [
        ("version text", "('x')"),
        ("version text", "('-1')"),
        ("version int", ""),
        ("version int", "(NULL)"),
        ("version int", "(1), (2)"),
        ("version int", "(-1)"),
        ("version int", "(0)"),
        ("version float", "(1.5)"),
        ("other int", "(1)"),
    ],
    ids=str,
)
def test_bad_input_102_a_table_of_versions_that_is_not_ours_is_refused(columns: tuple[str, str], name: str) -> None:
    """Whatever it holds, it is refused by name and left as it is, by what reads and by what writes (102, I-40)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    server.ask(f"CREATE SCHEMA {schema}")
    server.ask(f"CREATE TABLE {schema}.version ({columns[0]})")
    if columns[1]:
        server.ask(f"INSERT INTO {schema}.version VALUES {columns[1]}")
    before = server.ask(f"SELECT * FROM {schema}.version")
    journal = postgres_lab.journal(name, blocking=True)
    for call in (journal.header(KEY), append(journal, KEY, "one", say("q"))):
        with pytest.raises(DecisionHistorySchemaUnsupported, match="nothing was changed"):
            drive(call)
    assert server.ask(f"SELECT * FROM {schema}.version") == before
    drive(journal.close())


@pytest.mark.parametrize("what", ["TABLE {}.conversation", "FUNCTION {}.write", "TABLE {}.version"])
def test_bad_input_102_another_thing_of_our_name_is_refused(what: str, name: str) -> None:
    """What somebody put in the place of a table or function of ours is refused by name, and left alone (102)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    server.ask(f"DROP {what.format(schema)} CASCADE")
    if what.startswith("TABLE"):
        server.ask(f"CREATE {what.format(schema)} (mine text)")
        server.ask(f"INSERT INTO {what.partition(' ')[2].format(schema)} VALUES ('mine')")
    journal = postgres_lab.journal(name, blocking=True)
    for _ in range(2):
        with pytest.raises(DecisionHistorySchemaUnsupported):
            drive(append(journal, KEY, "two", say("r")))
    if what.startswith("TABLE"):
        assert server.ask(f"SELECT * FROM {what.partition(' ')[2].format(schema)}") == [("mine",)]
    assert server.ask(f"SELECT count(*) FROM {schema}.entry") == [(1,)]
    drive(journal.close())


@pytest.mark.parametrize(
    ("made", "called"),
    [
        ("VIEW {}.receipt_version AS SELECT 1", "receipt_version"),
        ("DOMAIN {}.receipt AS int", "receipt"),
        ("FUNCTION {}.present(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'", "present"),
    ],
    ids=str,
)
def test_bad_input_102_what_stands_where_a_table_or_function_would_be_made_is_named(
    made: str, called: str, name: str
) -> None:
    """In an application's own schema the first write says what is in the way, and makes nothing (102)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    server.ask(f"CREATE SCHEMA {schema}")
    server.ask(f"CREATE {made.format(schema)}")
    journal = postgres_lab.journal(name, blocking=True)
    for _ in range(2):
        assert drive(journal.header(KEY)) is None
        with pytest.raises(DecisionHistorySchemaUnsupported, match=f"named `{called}` that this library did not make"):
            drive(append(journal, KEY, "one", say("q")))
    assert server.ask("SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'version'", (schema,)) == []
    drive(journal.close())


LOOKS = "look(bigint, bigint, bytea, bytea, bytea, OUT bigint"
PAGES = "page(bigint, bigint, bytea, bytea, bigint, bigint, bigint, bigint, bigint, boolean, OUT bigint, OUT bigint"
OTHERWISE = {
    "fewer columns": LOOKS + ", OUT bigint) LANGUAGE sql AS 'SELECT $1, 1::bigint'",
    "words": LOOKS + ", OUT text, OUT text, OUT text, OUT text) LANGUAGE sql AS $$ SELECT $1, 'x', 'y', 'z', 'w' $$",
    "no time": LOOKS + ", OUT bigint, OUT bytea, OUT bytea, OUT bytea) LANGUAGE sql AS "
    "'SELECT $1, NULL::bigint, NULL::bytea, NULL::bytea, NULL::bytea'",
    "more numbers than entries": PAGES + ", OUT bytea, OUT bytea, OUT bigint[], OUT bytea[]) LANGUAGE sql AS "
    "$$ SELECT $1, 1::bigint, '\\x01'::bytea, '\\x02'::bytea, ARRAY[1, 2]::bigint[], ARRAY['\\x00']::bytea[] $$",
    "entries that are numbers": PAGES + ", OUT bytea, OUT bytea, OUT bigint[], OUT bigint[]) LANGUAGE sql AS "
    "$$ SELECT $1, 1::bigint, '\\x01'::bytea, '\\x02'::bytea, ARRAY[1]::bigint[], ARRAY[1]::bigint[] $$",
}


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("what", OTHERWISE)
def test_bad_input_102_a_function_that_answers_otherwise_is_refused(what: str, blocking: bool, name: str) -> None:
    """One of our name and arguments whose answer has another shape is another schema's, and no error is Python's."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)

    async def story() -> None:
        journal = postgres_lab.journal(name, blocking=blocking)
        await append(journal, KEY, "one", say("q"))
        made = OTHERWISE[what]
        server.ask(f"DROP FUNCTION {schema}.{made.partition('(')[0]}; CREATE FUNCTION {schema}.{made}")
        journal = postgres_lab.journal(name, blocking=blocking)
        for _ in range(2):
            call = journal.header(KEY) if made.startswith("look") else journal.oldest(KEY, 0, EVERYTHING)
            with pytest.raises(DecisionHistorySchemaUnsupported, match="answers otherwise"):
                await call
        await journal.close()

    run(blocking, story())


@pytest.mark.parametrize("column", ["header", "stamp"])
def test_i39_a_header_that_is_not_there_is_damage(column: str, name: str) -> None:
    """One that is NULL is told by what reads and what writes, and the conversation can be deleted (I-39, 102)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    for key in (KEY, ConversationKey(KEY.namespace, "z")):
        drive(append(journal, key, "one", say("q")))
    server.ask(f"ALTER TABLE {schema}.conversation ALTER header DROP NOT NULL, ALTER stamp DROP NOT NULL")
    server.ask(f"UPDATE {schema}.conversation SET {column} = NULL WHERE conversation = %s", (KEY.id.encode(),))
    journal = postgres_lab.journal(name, blocking=True)
    assert drive(journal.header(ConversationKey(KEY.namespace, "a"))) is None  # it knows the time, and may guess
    store = JournalStore(journal, namespace=KEY.namespace)
    begun = journal.reserve(KEY, "t", format=FORMAT)
    for call in (begun, journal.header(KEY), store.verify(KEY), append(journal, KEY, "two", say("r")), store.list()):
        with pytest.raises(DecisionHistoryCorrupt):
            drive(call)
    drive(store.delete(KEY))
    assert [each.key.id for each in drive(store.list())] == ["z"]
    drive(journal.close())


def test_i39_what_is_null_in_a_log_is_damage(name: str) -> None:
    """An entry or a receipt that is NULL is named as one that does not decode (I-39)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "one", say("q")))
    for table, call in (("entry", entries(journal, KEY)), ("receipt", journal.receipts(KEY, 0, 9))):
        server.ask(
            f"ALTER TABLE {schema}.{table} ALTER packed DROP NOT NULL; UPDATE {schema}.{table} SET packed = NULL"
        )
        with pytest.raises(DecisionHistoryCorrupt):
            drive(call)
    drive(journal.close())


DROPPED = "FOR EACH ROW EXECUTE FUNCTION {schema}.nothing()"
KEEPS_OUT = {
    "entry, INSERT": "CREATE TRIGGER t BEFORE INSERT ON {schema}.entry " + DROPPED,
    "entry, INSERT of some": "CREATE TRIGGER t BEFORE INSERT ON {schema}.entry FOR EACH ROW WHEN (NEW.seq % 2 = 0) "
    "EXECUTE FUNCTION {schema}.nothing()",
    "receipt, INSERT": "CREATE RULE r AS ON INSERT TO {schema}.receipt DO INSTEAD NOTHING",
    "receipt, INSERT of an earlier one": "CREATE TRIGGER t BEFORE INSERT ON {schema}.receipt FOR EACH ROW WHEN "
    "(NEW.version = 1) EXECUTE FUNCTION {schema}.nothing()",
    "conversation, INSERT": "CREATE TRIGGER t BEFORE INSERT ON {schema}.conversation " + DROPPED,
    "conversation, UPDATE": "CREATE TRIGGER t BEFORE UPDATE ON {schema}.conversation " + DROPPED,
    "conversation, UPDATE by a rule": "CREATE RULE r AS ON UPDATE TO {schema}.conversation DO INSTEAD NOTHING",
    "namespace, INSERT": "CREATE TRIGGER t BEFORE INSERT ON {schema}.namespace " + DROPPED,
    "namespace, UPDATE": "CREATE TRIGGER t BEFORE UPDATE ON {schema}.namespace " + DROPPED,
    "entry, CUT": "CREATE TRIGGER t BEFORE DELETE ON {schema}.entry " + DROPPED,
    "entry, DELETE": "CREATE TRIGGER t BEFORE DELETE ON {schema}.entry " + DROPPED,
    "receipt, DELETE": "CREATE RULE r AS ON DELETE TO {schema}.receipt DO INSTEAD NOTHING",
    "conversation, DELETE": "CREATE TRIGGER t BEFORE DELETE ON {schema}.conversation " + DROPPED,
    "namespace, DELETE": "CREATE TRIGGER t BEFORE DELETE ON {schema}.namespace " + DROPPED,
}


@pytest.mark.parametrize("what", KEEPS_OUT)
def test_i05_d23_bad_input_102_what_keeps_rows_out_is_found_by_the_write(what: str, name: str) -> None:
    """A trigger or rule that has a row not written, or not deleted, ends the write, and nothing of it is there."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    kept, other = ConversationKey("kept", "a"), ConversationKey("other", "b")
    for key, count in ((kept, 2), (other, 3)):
        for number in range(count):
            drive(append(journal, key, str(number), say("q")))
    server.ask(
        f"CREATE FUNCTION {schema}.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        + KEEPS_OUT[what].format(schema=schema)
    )
    tables = ("namespace", "conversation", "entry", "receipt")

    def rows() -> list[Any]:
        return [server.ask(f"SELECT t FROM {schema}.{table} AS t ORDER BY 1") for table in tables]

    store = JournalStore(journal, namespace="kept")
    calls: dict[str, Callable[[], Any]] = {
        "INSERT": lambda: append(journal, KEY, "one", say("q"), say("r")),
        "UPDATE": lambda: append(journal, kept, "one", say("x" * 100_000)),
        "CUT": lambda: journal.reserve(kept, "t", format=FORMAT, opening=adding("cut", cut=1), release=True),
        "DELETE": lambda: store.delete(kept),
    }
    if "earlier" in what:
        journal_of_copy = postgres_lab.journal(name + "from", blocking=True)
        for number in range(2):
            drive(append(journal_of_copy, ConversationKey("kept", "copied"), str(number), say("q")))
        origin = JournalStore(journal_of_copy, namespace="kept")
        calls["INSERT"] = lambda: origin.copy(ConversationKey("kept", "copied"), store)
    call, before = calls[what.split()[1]], rows()
    with pytest.raises(DecisionHistorySchemaUnsupported, match=r"keeps rows from being written.*nothing was written"):
        drive(call())
    assert rows() == before
    server.ask(f"DROP FUNCTION {schema}.nothing CASCADE")
    if "RULE" in KEEPS_OUT[what]:
        server.ask(f"DROP RULE r ON {schema}.{what.split(',')[0]}")
        drive(journal._remote._lines.close())  # a plan that such a rule left nothing of outlives it in its session
    drive(call())
    drive(journal.close())


@pytest.mark.parametrize(
    ("made", "called"),
    [
        ("DROP TABLE {}.version", "conversation"),
        ("ALTER TABLE {}.version RENAME TO old", "conversation"),
        ("DROP SCHEMA {0} CASCADE; CREATE SCHEMA {0}; CREATE TABLE {0}.receipt (id int)", "receipt"),
        ("DROP SCHEMA {0} CASCADE; CREATE SCHEMA {0}; CREATE TYPE {0}.entry AS (a int)", "entry"),
    ],
)
def test_i40_bad_input_102_tables_that_say_no_version_are_no_empty_store(made: str, called: str, name: str) -> None:
    """What reads refuses them as what writes does, by name, and nothing is made beside what they hold (I-40, 102)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    drive(append(postgres_lab.journal(name, blocking=True), KEY, "one", say("q")))
    server.ask(made.format(schema))
    there = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY 1"
    before = server.ask(there, (schema,))
    journal = postgres_lab.journal(name, blocking=True)
    for call in (journal.header(KEY), journal.totals("suite"), append(journal, KEY, "two", say("r"))):
        with pytest.raises(DecisionHistorySchemaUnsupported, match=f"`{called}`.* no table `version`"):
            drive(call)
    assert server.ask(there, (schema,)) == before
    drive(journal.close())


@pytest.mark.parametrize(
    ("made", "state", "call", "gone"),
    [
        (
            "CREATE TABLE {0}.key (a bytea, b bytea, FOREIGN KEY (a, b) REFERENCES {0}.conversation); "
            "INSERT INTO {0}.key SELECT namespace, conversation FROM {0}.conversation",
            "23503",
            lambda journal: journal.delete(KEY),
            "DROP TABLE {0}.key",
        ),
        (
            "ALTER TABLE {0}.entry ADD CONSTRAINT small CHECK (seq < 2)",
            "23514",
            lambda journal: append(journal, KEY, "two", say("r")),
            "ALTER TABLE {0}.entry DROP CONSTRAINT small",
        ),
    ],
    ids=["foreign key", "check"],
)
def test_bad_input_102_a_constraint_that_is_not_ours_is_told_as_such(
    made: str, state: str, call: Callable[[Any], Any], gone: str, name: str
) -> None:
    """It is no damage that a backup would mend, and without it the call goes through (102)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "one", say("q")))
    server.ask(made.format(schema))
    with pytest.raises(
        DecisionHistorySchemaUnsupported, match="a constraint that this library did not make"
    ) as refused:
        drive(call(journal))
    assert refused.value.sqlstate == state
    server.ask(gone.format(schema))
    drive(call(journal))
    drive(journal.close())


# --- poolers ---------------------------------------------------------------------------------------------------------


class TestBehindPooler(JournalConformance):
    """The whole suite through PgBouncer in transaction mode: another server connection for each call (103, O-46 b)."""

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def _pooler(request: pytest.FixtureRequest) -> Iterator[None]:
        with postgres.pooler(postgres.shared()) as port:
            request.cls.url = postgres.shared().url(port=port)
            yield

    async def fresh(self, bounds: StoreBounds, clock: FrozenClock) -> Journal:
        journal: Journal = postgres_lab.journal(uuid.uuid4().hex, bounds, clock, url=self.url)
        return journal


def test_bad_input_103_o46_many_workers_behind_a_pooler(name: str, figure: Callable[[str], None]) -> None:
    """Sixteen tasks over three server connections, that are changed under them: nothing is missed (103, O-46 b)."""
    server = postgres.shared()

    async def work(url: str) -> int:
        journal = postgres_lab.journal(name, url=url, max_connections=16)

        async def one(number: int) -> None:
            key = ConversationKey("pooled", f"{number}")
            for step in range(20):
                await append(journal, key, f"{step}", say(f"{step}"))

        await asyncio.gather(*map(one, range(16)))
        found = [len(await entries(journal, ConversationKey("pooled", f"{number}"))) for number in range(16)]
        await journal.close()
        return sum(found)

    with postgres.pooler(server) as port:
        assert asyncio.run(work(server.url(port=port))) == 320
    figure("16 tasks over 3 server connections of a pooler: 320 writes, all there")


def test_i30_a_write_that_waited_too_long_is_made_for_the_present(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind another's lock its time goes by: what it was made for is not written, it is made anew (I-30)."""
    import psycopg

    monkeypatch.setattr("minutebook.stores.remote_journal.drift_of", lambda _: 250)
    server, journal = postgres.shared(), postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "first", say("first")))
    schema = postgres_lab.schema_of(name)
    with psycopg.connect(server.url()) as holder:
        holder.execute(f"SELECT 1 FROM {schema}.conversation FOR UPDATE")
        writer = threading.Thread(target=lambda: drive(append(journal, KEY, "second", say("second"))))
        writer.start()
        waits = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%write%'"
        postgres.until(lambda: server.ask(waits), "the writer waits")
        holder.execute("SELECT pg_sleep(0.5)")
        freed = holder.execute("SELECT CAST(1000 * EXTRACT(EPOCH FROM clock_timestamp()) AS bigint)").fetchone()
        holder.rollback()
    writer.join(30)
    first, second = drive(entries(journal, KEY))
    assert freed is not None
    assert second.wall >= freed[0] - 250 > first.wall
    drive(journal.close())


def test_b2_a_write_that_lost_its_grant_holds_nothing_while_it_waits_to_count(name: str) -> None:
    """Locks are taken in one order, also where a grant is taken back from a write that waits for its row (B2)."""
    import psycopg

    server, journal = postgres.shared(), postgres_lab.journal(name, blocking=True)
    drive(append(journal, KEY, "first", say("first")))
    schema = postgres_lab.schema_of(name)
    waiting = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%write%'"
    counting = "SELECT 1 FROM pg_locks WHERE relation = %s::regclass AND mode = 'RowShareLock' AND pid <> ALL(%s)"
    take_back = f"UPDATE {schema}.conversation SET granted = bytes"
    with psycopg.connect(server.url()) as taker, psycopg.connect(server.url()) as other:
        taker.execute(take_back)
        writer = threading.Thread(target=lambda: drive(append(journal, KEY, "second", say("second"))))
        writer.start()
        postgres.until(lambda: server.ask(waiting), "the writer waits for the conversation")
        other.execute(f"SELECT 1 FROM {schema}.namespace FOR UPDATE")
        taker.commit()
        ours = [taker.info.backend_pid, other.info.backend_pid]
        place = (f"{schema}.namespace", ours)
        postgres.until(lambda: server.ask(counting, place) and server.ask(waiting), "the writer waits to count")
        other.execute("SET LOCAL lock_timeout = '500ms'")
        other.execute(take_back)
        other.commit()
    writer.join(30)
    assert [entry.seq for entry in drive(entries(journal, KEY))] == [1, 2]
    drive(journal.close())


def prepared_on(journal: Any) -> int:
    """Return how many statements are prepared on the connection that a blocking journal used last, or in its server."""
    connection = journal._remote._lines._idle.connections[-1]
    return int(connection.pgconn.exec_(b"SELECT count(*) FROM pg_prepared_statements").get_value(0, 0))


def test_bad_input_103_statements_are_kept_prepared_where_no_pooler_is_between(name: str) -> None:
    """Straight to a server calls are kept prepared; behind a pooler none of its connections keeps any (103)."""
    server = postgres.shared()
    with postgres.pooler(server) as port:
        for url, kept in ((server.url(), True), (server.url(port=port), False)):
            journal = postgres_lab.journal(name, url=url, blocking=True)
            key = ConversationKey("prepared", f"{kept}")
            for step in range(3):
                drive(append(journal, key, f"{step}", say(f"{step}")))
            assert len(drive(entries(journal, key))) == 3
            assert bool(prepared_on(journal)) is kept
            drive(journal.close())


@pytest.mark.parametrize("spoiled", ["DEALLOCATE ALL", "taken"])
def test_bad_input_103_a_prepared_statement_that_is_not_ours_any_more(name: str, spoiled: str) -> None:
    """Where statements were dropped, or a name is another's, a call goes on without, and is made once (103)."""
    journal = postgres_lab.journal(name, blocking=True)
    key = ConversationKey("prepared", "spoiled")
    drive(append(journal, key, "first", say("first")))
    connection = journal._remote._lines._idle.connections[-1]
    assert prepared_on(journal) > 0
    if spoiled == "taken":
        following = f"_pg3_{connection._prepared._prepared_idx}"
        connection.pgconn.exec_(f"PREPARE {following} AS SELECT 1".encode())
        drive(journal.receipt(key, "first"))
        drive(journal.receipts(key, 0, 5))  # not asked before on this connection: its statement would have that name
    else:
        connection.pgconn.exec_(spoiled.encode())
    drive(append(journal, key, "second", say("second")))
    assert journal._remote._lines._idle.connections == [connection]
    assert connection.prepare_threshold is None
    assert [entry.seq for entry in drive(entries(journal, key))] == [1, 2]
    drive(journal.close())


@pytest.mark.parametrize("packed", [b"", b"x", b"\x90", b"\xff" * 10, b"\x92\xc0\xc0"], ids=repr)
def test_i39_an_entry_that_is_none_is_named_by_its_number(packed: bytes, name: str) -> None:
    """Empty, cut, none or two of them: every way to read it tells which it is, and no error is Python's (I-39, 102)."""
    schema = postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    for number in range(3):
        drive(append(journal, KEY, f"{number}", say("q")))
    postgres.shared().ask(f"UPDATE {schema}.entry SET packed = %s WHERE seq = 2", (packed,))
    store = JournalStore(journal, namespace=KEY.namespace)
    for call in (entries(journal, KEY), store.verify(KEY), journal.newest(KEY, 9, EVERYTHING)):
        with pytest.raises(DecisionHistoryCorrupt) as damage:
            drive(call)
        assert damage.value.seq == 2
    drive(journal.close())


def test_i39_i03_a_receipt_under_an_id_that_is_not_its_own_is_damage(name: str) -> None:
    """Neither a look nor the refusal of a write that is made again takes another's receipt for its own (I-3, I-39)."""
    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    journal = postgres_lab.journal(name, blocking=True)
    for number in range(2):
        drive(append(journal, KEY, f"{number}", say(f"{number}")))
    server.ask(f"UPDATE {schema}.receipt SET packed = (SELECT packed FROM {schema}.receipt WHERE version = 2)")
    fresh = postgres_lab.journal(name, blocking=True)
    for call in (journal.receipt(KEY, "0"), append(journal, KEY, "0", say("0")), append(fresh, KEY, "0", say("0"))):
        with pytest.raises(DecisionHistoryCorrupt, match="not its own"):
            drive(call)
    assert drive(journal.receipt(KEY, "1")).version == 2
    drive(append(journal, KEY, "1", say("1")))
    assert len(drive(entries(journal, KEY))) == 2
    for each in (journal, fresh):
        drive(each.close())


@pytest.mark.parametrize("count", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("stray", [b"\xff\xfe", b" ", b"x" * 600])
def test_i31_i39_ids_that_are_none_end_nobody_elses_expiry(stray: bytes, count: int, name: str) -> None:
    """
    However many there are, what expired beside them is removed, and what was written in the future is brought back.

    Whoever writes is told nothing of them; a listing says what is damaged (I-31, I-39).
    """
    server, schema, clock = postgres.shared(), postgres_lab.schema_of(name), FrozenClock()
    bounds = StoreBounds(ttl_ms=1_000, max_sessions=count + 2)
    journal = postgres_lab.journal(name, bounds, clock, blocking=True)
    strays = [stray + b" " * number for number in range(count)]
    for number, each in enumerate(strays):
        drive(append(journal, ConversationKey("suite", f"{number}"), "one", say("q")))
        where = f"WHERE conversation = '{number}'::bytea"
        server.ask(f"UPDATE {schema}.conversation SET conversation = %s {where}", (each,))
    for each in "bc":
        drive(append(journal, ConversationKey("suite", each), "one", say("q")))
    with pytest.raises(DecisionHistoryCorrupt):
        drive(journal.list("suite", "", 9))
    clock.advance(1_001)
    drive(append(journal, KEY, "one", say("q")))
    found = server.ask(f"SELECT conversation FROM {schema}.conversation")
    assert sorted(bytes(each) for (each,) in found) == sorted([*strays, KEY.id.encode()])
    clock.advance(-1_000_000)
    again = postgres_lab.journal(name, bounds, clock, blocking=True)
    drive(append(again, ConversationKey("suite", "b"), "one", say("q")))
    told = server.ask(f"SELECT touched FROM {schema}.conversation WHERE conversation = %s", (KEY.id.encode(),))
    assert told == [(clock(),)]
    drive(journal.close())
    drive(again.close())


# --- time limits and conflicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_bad_input_104_time_limits_of_the_server(setting: str, name: str, role: str) -> None:
    """A call that the server ends for its time is a typed refusal, nothing is written, and the next one works (104)."""
    import psycopg

    server, schema = postgres.shared(), postgres_lab.schema_of(name)
    server.ask(f"ALTER ROLE {role} SET {setting} = '300ms'")
    server.ask(f"GRANT CREATE ON DATABASE postgres TO {role}")
    journal = as_role(name, role)
    drive(append(journal, KEY, "one", say("q")))
    with psycopg.connect(server.url()) as other:
        other.execute(f"SELECT 1 FROM {schema}.conversation FOR UPDATE")
        with pytest.raises(DecisionHistoryStorageLocked):
            drive(append(journal, KEY, "two", say("r")))
    drive(append(journal, KEY, "two", say("r")))
    assert len(drive(entries(journal, KEY))) == 2
    drive(journal.close())


def test_bad_input_104_serializable_by_default(name: str, role: str, figure: Callable[[str], None]) -> None:
    """Where every transaction is serializable, conflicts are tried again and no caller sees one (104)."""
    server = postgres.shared()
    server.ask(f"ALTER ROLE {role} SET default_transaction_isolation = 'serializable'")
    server.ask(f"GRANT CREATE ON DATABASE postgres TO {role}")
    journal = as_role(name, role, bounds=StoreBounds(max_sessions=100, max_bytes=10**6))

    def work(number: int) -> int:
        done = 0
        for step in range(15):
            with contextlib.suppress(DecisionHistoryBusy):
                drive(append(journal, ConversationKey("n", f"{step % 3}"), f"{number}-{step}", say("x" * 99)))
                done += 1
        return done

    done = in_threads([lambda number=number: work(number) for number in range(8)])
    assert all(type(count) is int for count in done), done
    found = sum(len(drive(entries(journal, ConversationKey("n", f"{step}")))) for step in range(3))
    assert found == sum(done)
    figure(f"8 threads, serializable: {found} writes, no conflict told")
    drive(journal.close())


# --- broken connections ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False])
def test_bad_input_95_half_open_connections_end_at_the_deadline(blocking: bool, name: str) -> None:
    """A server that says nothing any more is given up at the deadline, and what it wrote is found by its id (95)."""
    server = postgres.shared()

    async def story(port: int, wire: Any) -> None:
        journal = postgres_lab.journal(name, url=server.url(port=port), blocking=blocking, timeout=1.5)
        await append(journal, KEY, "one", say("q"))
        wire.silent = True
        begun = time.monotonic()
        with pytest.raises(DecisionHistoryStorageFailed) as refused:
            await append(journal, KEY, "two", say("r"))
        assert 1 < time.monotonic() - begun < 10
        assert refused.value.problem == "deadline"
        wire.silent = False
        assert await journal.receipt(KEY, "two") is not None
        await append(journal, KEY, "two", say("r"))
        assert len(await entries(journal, KEY)) == 2
        await journal.close()

    with proxy(server.port) as wire:
        if blocking:
            drive(story(wire.port, wire))
        else:
            asyncio.run(story(wire.port, wire))


@pytest.mark.parametrize("blocking", [True, False])
def test_bad_input_95_the_place_of_a_call_that_got_no_reply_is_free_once_its_connection_ends(
    blocking: bool, name: str
) -> None:
    """With one connection, that says nothing and then breaks: the next call says why it waits, the one after goes."""
    server = postgres.shared()

    async def story(port: int, wire: Any) -> None:
        options: Any = {"blocking": blocking, "timeout": 0.7, "max_connections": 1}
        journal = postgres_lab.journal(name, url=server.url(port=port), **options)
        await append(journal, KEY, "one", say("q"))
        wire.silent = True
        with pytest.raises(DecisionHistoryStorageFailed, match="ask for its receipt") as failed:
            await append(journal, KEY, "two", say("r"))
        assert failed.value.problem == "deadline"
        wire.silent = False
        with pytest.raises(DecisionHistoryStorageLocked, match="given up keep 1 until the server is done; nothing"):
            await journal.receipt(KEY, "two")
        wire.reset_all()
        assert await journal.receipt(KEY, "two") is not None
        await journal.close()

    with proxy(server.port) as wire:
        run(blocking, story(wire.port, wire))


@pytest.mark.parametrize("blocking", [True, False])
def test_b2_d23_a_connection_that_comes_back_while_the_store_is_closed_is_closed(blocking: bool, name: str) -> None:
    """Wherever `close` falls in a call's end, none of the connections stays open (B2, D23)."""

    class Closing(list[Any]):
        """Idle connections, of which the last one comes just after another thread has closed the store."""

        def append(self, connection: Any) -> None:
            in_threads([lambda: drive(lines.close())])
            super().append(connection)

    async def story() -> None:
        journal = postgres_lab.journal(name, blocking=blocking)
        assert await journal.header(KEY) is None
        nonlocal lines
        lines = journal._remote._lines
        idle = lines._idle if blocking else lines._of_this_loop()
        (connection,) = idle.connections
        idle.connections = Closing(idle.connections)
        assert await journal.header(KEY) is None
        assert idle.connections == []
        assert connection.closed

    lines: Any = None
    run(blocking, story())


@contextlib.contextmanager
def silent(hosts: int) -> Iterator[list[int]]:
    """Yield the ports of so many hosts that take connections and say nothing."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(hosts)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
            each.listen(50)
        yield [each.getsockname()[1] for each in sockets]


def at_hosts(server: postgres.Server, *ports: int) -> str:
    """Return the URL of a server as one of several hosts, by their ports."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return server.url().replace(f"127.0.0.1:{server.port}", hosts)


@pytest.mark.parametrize("blocking", [True, False])
def test_bad_input_95_a_silent_host_is_passed_over(blocking: bool, name: str) -> None:
    """Of several hosts each has its share of a call's time, so the primary behind silent ones is reached (95)."""
    server = postgres.shared()

    async def story(ports: list[int], options: str) -> None:
        url = at_hosts(server, *ports, server.port) + options
        journal = postgres_lab.journal(name, url=url, blocking=blocking, timeout=3)
        begun = time.monotonic()
        await append(journal, KEY, f"one{options}", say("q"))
        assert time.monotonic() - begun < 3
        await journal.close()

    with silent(2) as ports:
        run(blocking, story(ports, ""))
        run(blocking, story(ports, "?connect_timeout=1"))


@pytest.mark.parametrize("blocking", [True, False])
def test_bad_input_95_a_silent_address_of_a_name_is_passed_over(
    blocking: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with two addresses, the first of which says nothing, leads to the second (95)."""
    server = postgres.shared()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, server.port)) for each in ("127.0.0.2", "127.0.0.1")]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **named: found if host == "both" else real(host, *rest, **named)
    )

    async def story() -> None:
        url = server.url().replace("127.0.0.1", "both")
        journal = postgres_lab.journal(name, url=url, blocking=blocking, timeout=2)
        await append(journal, KEY, "one", say("q"))
        await journal.close()

    with socket.socket() as one:
        one.bind(("127.0.0.2", server.port))
        one.listen()
        run(blocking, story())


@pytest.mark.parametrize(
    "query", ["tcp_user_timeout=marker", "options=-c%20statement_timeout%3Dmarker", "sslmode=marker"]
)
def test_bad_input_51_an_option_of_the_connection_that_means_nothing_is_no_silence(query: str, name: str) -> None:
    """What the driver or the server does not take is told as that, whatever the option is called (51)."""
    journal = postgres_lab.journal(name, url=f"{postgres.shared().url()}?{query}", blocking=True)
    with pytest.raises(DecisionHistoryStorageFailed, match="has a value that it cannot have") as refused:
        drive(journal.header(KEY))
    assert "marker" not in str(refused.value)
    assert refused.value.sent is False


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("hosts", [1, 3])
def test_bad_input_95_a_call_without_a_server_ends_at_its_deadline(hosts: int, blocking: bool, name: str) -> None:
    """However many hosts say nothing, the call ends in time, and nothing of it was sent (95)."""

    async def story(ports: list[int]) -> None:
        url = at_hosts(postgres.shared(), *ports)
        journal = postgres_lab.journal(name, url=url, blocking=blocking, timeout=0.6)
        begun = time.monotonic()
        with pytest.raises(DecisionHistoryStorageFailed, match="it took too long; nothing was sent") as refused:
            await append(journal, KEY, "one", say("q"))
        assert 0.5 < time.monotonic() - begun < 1.5
        assert refused.value.problem == "connection"
        await journal.close()

    with silent(hosts) as ports:
        run(blocking, story(ports))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("blocking", [True, False])
def test_bad_input_96_a_reply_cut_after_each_byte(blocking: bool, name: str, figure: Callable[[str], None]) -> None:
    """Wherever a reply ends, the outcome is told as unknown, is found by its id, and nothing is written twice (96)."""
    server = postgres.shared()

    async def story(port: int, wire: Any) -> tuple[int, int]:
        journal = postgres_lab.journal(name, url=server.url(port=port), blocking=blocking)
        await append(journal, KEY, "warm", say("q"))
        before = wire.replied
        await append(journal, KEY, "measured", say("q"))
        size, unknown = wire.replied - before, 0
        step = budget(7, 1)
        for at in range(0, size, step):
            await journal.header(KEY)  # a connection is there
            wire.left = at
            try:
                await append(journal, KEY, f"cut-{at}", say(f"{at}"))
            except DecisionHistoryStorageFailed:
                unknown += 1
            wire.left = None
            if await journal.receipt(KEY, f"cut-{at}") is None:
                await append(journal, KEY, f"cut-{at}", say(f"{at}"))
            receipt = await journal.receipt(KEY, f"cut-{at}")
            await append(journal, KEY, f"cut-{at}", say(f"{at}"))
            assert receipt == await journal.receipt(KEY, f"cut-{at}")
        found = [entry.payload for entry in await entries(journal, KEY)]
        assert len(found) == len(range(0, size, step)) + 2
        await journal.close()
        return size, unknown

    with proxy(server.port) as wire:
        size, unknown = drive(story(wire.port, wire)) if blocking else asyncio.run(story(wire.port, wire))
    assert unknown > size // 10
    figure(f"{'blocking' if blocking else 'asyncio'}: a reply of {size} bytes cut, {unknown} outcomes unknown, 0 twice")


def test_b2_calls_beyond_the_connections_wait_for_their_turn(name: str) -> None:
    """More threads than connections: all get theirs, and none is refused (B2)."""
    journal = postgres_lab.journal(name, blocking=True, max_connections=2, timeout=20)
    keys = [ConversationKey("n", f"{number}") for number in range(16)]
    done = in_threads([lambda key=key: drive(append(journal, key, "one", say("q"))) for key in keys])
    assert not [each for each in done if isinstance(each, BaseException)]
    drive(journal.close())


def test_i17_a_forked_child_leaves_its_parents_connections_alone(name: str) -> None:
    """The child is refused, and when it ends and its objects with it, the parent goes on (I-17)."""
    server, application = postgres.shared(), f"i17-{name[:8]}"
    journal = postgres_lab.journal(name, url=server.url() + f"?application_name={application}", blocking=True)
    backends = (
        f"SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name = '{application}'"
    )
    drive(append(journal, KEY, "one", say("q")))
    before = server.ask(backends)
    child = os.fork()
    if not child:
        try:
            with pytest.raises(StoreClosed):
                drive(append(journal, KEY, "two", say("r")))
            drive(journal.close())
            del journal
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    drive(append(journal, KEY, "two", say("r")))
    assert len(drive(entries(journal, KEY))) == 2
    assert before == server.ask(backends), "the parent went on with the connection that it had"
    drive(journal.close())


# --- nothing is held while a model is awaited ------------------------------------------------------------------------


def test_i16_one_connection_is_enough_for_fifty_pending_decisions(name: str, figure: Callable[[str], None]) -> None:
    """While fifty turns wait for a model, no transaction is open and the one connection is idle (I-16)."""
    server = postgres.shared()
    application = "i16-" + name[:8]

    async def story() -> None:
        journal = postgres_lab.journal(name, url=server.url() + f"?application_name={application}", max_connections=1)
        waiting = asyncio.Event()
        entered = 0

        async def turn(number: int) -> None:
            nonlocal entered
            async with chat(journal, f"{number}").turn("q") as turn:
                await turn.window()
                entered += 1
                await waiting.wait()
                await turn.respond(said("a"))

        tasks = [asyncio.create_task(turn(number)) for number in range(50)]
        while entered < 50:
            await asyncio.sleep(0.01)
        states = server.ask("SELECT state FROM pg_stat_activity WHERE application_name = %s", (application,))
        assert states == [("idle",)]
        assert len(await journal.list("lab", "", 99)) == 50
        waiting.set()
        await asyncio.gather(*tasks)
        await journal.close()

    asyncio.run(story())
    figure("50 pending decisions over one connection: idle, 0 idle in transaction")
