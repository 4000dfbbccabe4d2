"""
The tables and functions of a store on PostgreSQL, as numbered migrations.

Each method of a store is one function in the server: one statement, one round trip, one transaction, whose plans the
server keeps for each of its own connections. So nothing has to be left in a session, and a pooler may give every call
another connection; the call itself is kept prepared where no pooler is between (`postgres_lines`). Functions look names
up in `pg_catalog` alone, whatever the caller's `search_path` says.

Ids are bytes: UTF-8 compares by bytes as by code points, and no collation, encoding or NUL can come between. Every key
begins with the namespace and the conversation, so that tables can be partitioned by the hash of both.

Locks are taken in one order, the namespace's row before a conversation's, so that no two calls wait for each other.
Most writes do without the first: a conversation is granted bytes ahead of its need while there is plenty of room, and
only a write beyond its grant counts. `granted` of a namespace is the sum over its conversations, never less than what
they hold; `ahead` says that it may be more. Before a write is refused the grants are taken back, so that none is
refused early by a byte, and none is written above a bound.
"""

from __future__ import annotations

from typing import Final

from minutebook.stores.postgres_statements import Statement

CREATE_SCHEMA: Final = Statement("CREATE SCHEMA {schema}")
"""
Where everything of ours is. It is made where it was not found: IF NOT EXISTS asks for the right to make one also where
there is nothing to make, and would take one that a stranger made just now.
"""

CREATE_VERSION: Final = Statement("""
CREATE TABLE {schema}.version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL
)
""")
"""The version of our tables: one row."""

CREATE_NAMESPACE: Final = Statement("""
CREATE TABLE {schema}.namespace (
    namespace bytea PRIMARY KEY,
    conversations bigint NOT NULL,
    granted bigint NOT NULL,
    ahead boolean NOT NULL
) WITH (fillfactor = 50)
""")
"""What each namespace holds, as far as bounds ask for it."""

CREATE_CONVERSATION: Final = Statement("""
CREATE TABLE {schema}.conversation (
    namespace bytea NOT NULL,
    conversation bytea NOT NULL,
    minute bigint NOT NULL,
    touched bigint NOT NULL,
    reserved boolean NOT NULL,
    bytes bigint NOT NULL,
    granted bigint NOT NULL,
    stamp bytea NOT NULL,
    header bytea NOT NULL,
    PRIMARY KEY (namespace, conversation)
) WITH (fillfactor = 70)
""")
"""
The headers. What statements compare stands beside them: `touched`, whether it is `reserved`, `bytes`.

`minute` is `touched` in units of 65,536 ms. It changes seldom, so that most writes touch no index.
"""

CREATE_CONVERSATION_AGE: Final = Statement("""
CREATE INDEX conversation_age ON {schema}.conversation (namespace, minute) WHERE minute >= 0
""")
"""Finds what has expired, oldest first. Its condition, which always holds, keeps it out of every other statement."""

CREATE_ENTRY: Final = Statement("""
CREATE TABLE {schema}.entry (
    namespace bytea NOT NULL,
    conversation bytea NOT NULL,
    seq bigint NOT NULL,
    messages bigint NOT NULL,
    size bigint NOT NULL,
    packed bytea NOT NULL,
    PRIMARY KEY (namespace, conversation, seq)
)
""")
"""The log, and what a page counts of each entry."""

CREATE_RECEIPT: Final = Statement("""
CREATE TABLE {schema}.receipt (
    namespace bytea NOT NULL,
    conversation bytea NOT NULL,
    idempotency bytea NOT NULL,
    version bigint NOT NULL,
    packed bytea NOT NULL,
    PRIMARY KEY (namespace, conversation, idempotency)
)
""")
"""What each commit did."""

CREATE_RECEIPT_VERSION: Final = Statement("""
CREATE UNIQUE INDEX receipt_version ON {schema}.receipt (namespace, conversation, version) WHERE version > 0
""")
"""
Finds the receipts above a version; no version has two. Without its condition, which always holds, a table without
statistics would have ids looked up by it, in all receipts of a conversation.
"""

CREATE_TIME: Final = Statement("""
CREATE FUNCTION {schema}.present(p_clock bigint) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT CASE WHEN p_clock IS NULL THEN CAST(
        pg_catalog.floor(1000 OPERATOR(pg_catalog.*) EXTRACT(EPOCH FROM pg_catalog.clock_timestamp())) AS bigint
    ) ELSE p_clock END
$$
""")
"""The server's time in Unix milliseconds, or the one that a replayed run gives."""

CREATE_UNSAFE: Final = Statement("""
CREATE FUNCTION {schema}.unsafe() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE
        WHEN current_setting('fsync') = 'off' THEN 'fsync'
        WHEN current_setting('full_page_writes') = 'off' THEN 'full_page_writes'
        WHEN current_setting('synchronous_commit') = 'off' THEN 'synchronous_commit'
        WHEN current_setting('synchronous_commit') = 'local' AND current_setting('synchronous_standby_names') <> ''
        THEN 'synchronous_commit'
        ELSE ''
    END;
END
$$
""")
"""
The setting under which this transaction may be lost though it is acknowledged, or nothing. They may change while a
connection is open; a server reads new ones only between two statements.
"""

CREATE_LOOK: Final = Statement("""
CREATE FUNCTION {schema}.look(
    p_nonce bigint, p_clock bigint, p_space bytea, p_name bytea, p_idempotency bytea,
    OUT nonce bigint, OUT o_now bigint, OUT o_header bytea, OUT o_stamp bytea, OUT o_receipt bytea
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    nonce := p_nonce;
    o_now := {schema}.present(p_clock);
    SELECT c.header, c.stamp,
           (SELECT r.packed FROM {schema}.receipt AS r
            WHERE r.namespace = p_space AND r.conversation = p_name AND r.idempotency = p_idempotency)
    INTO o_header, o_stamp, o_receipt
    FROM {schema}.conversation AS c WHERE c.namespace = p_space AND c.conversation = p_name;
END
$$
""")
"""A function that is STABLE sees one moment with all its statements."""

CREATE_WRITE: Final = Statement("""
CREATE FUNCTION {schema}.write(
    p_nonce bigint, p_clock bigint, p_space bytea, p_name bytea, p_expected bytea, p_wall bigint, p_drift bigint,
    p_header bytea, p_stamp bytea, p_touched bigint, p_reserved boolean, p_bytes bigint, p_grown bigint,
    p_first bigint, p_packed bytea[], p_messages bigint[], p_sizes bigint[],
    p_idempotency bytea, p_version bigint, p_receipt bytea,
    p_earlier_ids bytea[], p_earlier_versions bigint[], p_earlier bytea[], p_cut bigint,
    p_max_sessions bigint, p_max_bytes bigint, p_ahead bigint,
    p_tail_rows bigint, p_tail_messages bigint, p_tail_size bigint,
    OUT nonce bigint, OUT o_now bigint, OUT o_refused text, OUT o_header bytea, OUT o_stamp bytea,
    OUT o_receipt bytea, OUT o_seqs bigint[], OUT o_tail bytea[], OUT o_conversations bigint, OUT o_bytes bigint
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l_plain boolean;
    l_done boolean := false;
    l_there boolean;
    l_granted bigint;
    l_bytes bigint;
    l_counts boolean;
    l_space record;
    l_need bigint;
    l_more bigint := 0;
    l_tries bigint := 0;
    l_spaced boolean := false;
    l_rows bigint;
    l_whole boolean := true;
    l_damaged boolean;
BEGIN
    nonce := p_nonce;
    o_now := {schema}.present(p_clock);
    o_refused := {schema}.unsafe();
    IF o_refused <> '' THEN
        RETURN;
    END IF;
    o_refused := 'stale';
    -- Most writes go on with a conversation as their worker thinks it is, within its grant: one statement compares and
    -- writes the header. Whatever stands in its way is found out, and named, below.
    l_plain := p_header IS NOT NULL AND p_expected <> '' AND p_grown >= 0 AND abs(o_now - p_wall) <= p_drift;
    IF l_plain AND p_grown > 0 AND p_max_bytes IS NOT NULL THEN
        -- A store with wider bounds may have granted more than this one may use.
        l_plain := NOT EXISTS (
            SELECT 1 FROM {schema}.namespace AS n WHERE n.namespace = p_space AND n.granted > p_max_bytes
        );
    END IF;
    IF l_plain THEN
        -- No condition here that a constant could take away: the server would plan it anew each time, to do so.
        UPDATE {schema}.conversation AS c
        SET minute = p_touched >> 16, touched = p_touched, reserved = p_reserved, bytes = p_bytes, stamp = p_stamp,
            header = p_header
        WHERE c.namespace = p_space AND c.conversation = p_name AND c.stamp = p_expected AND c.granted >= p_bytes
            AND NOT EXISTS (
                SELECT 1 FROM {schema}.receipt AS r
                WHERE r.namespace = p_space AND r.conversation = p_name AND r.idempotency = p_idempotency
            );
        l_done := FOUND;
        o_now := {schema}.present(p_clock);
        IF l_done AND abs(o_now - p_wall) > p_drift THEN
            RAISE EXCEPTION 'it waited too long for another writer' USING ERRCODE = '40001';
        END IF;
    END IF;
    IF NOT l_done THEN
        -- A look without a lock: most refusals end here.
        SELECT c.header, c.stamp, c.granted, c.bytes,
               (SELECT r.packed FROM {schema}.receipt AS r
                WHERE r.namespace = p_space AND r.conversation = p_name AND r.idempotency = p_idempotency)
        INTO o_header, o_stamp, l_granted, l_bytes, o_receipt
        FROM {schema}.conversation AS c WHERE c.namespace = p_space AND c.conversation = p_name;
        l_there := FOUND;
        o_now := {schema}.present(p_clock);
        -- A row that has lost its stamp is damage, and no conversation that could be begun.
        l_damaged := l_there AND p_expected = '' AND p_header IS NOT NULL;
        IF coalesce(o_stamp, '') <> p_expected OR l_damaged OR o_receipt IS NOT NULL OR abs(o_now - p_wall) > p_drift
        THEN
            RETURN;
        END IF;
        l_counts := NOT l_there OR p_header IS NULL OR p_grown < 0 OR p_bytes > l_granted;
        IF NOT l_counts AND p_grown > 0 AND p_max_bytes IS NOT NULL THEN
            -- A store with wider bounds may have granted more than this one may use.
            l_counts := EXISTS (
                SELECT 1 FROM {schema}.namespace AS n WHERE n.namespace = p_space AND n.granted > p_max_bytes
            );
        END IF;
        IF l_counts AND txid_current_if_assigned() IS NOT NULL THEN
            -- A number is assigned by the first row that is changed or locked. So the statement above waited for the
            -- conversation, whose grant was taken back, and holds its row; the namespace's has to come first.
            RAISE EXCEPTION 'its grant was taken back' USING ERRCODE = '40001';
        END IF;
        IF l_counts THEN
            LOOP
                SELECT n.conversations, n.granted, n.ahead INTO l_space
                FROM {schema}.namespace AS n WHERE n.namespace = p_space FOR UPDATE;
                l_spaced := FOUND;
                EXIT WHEN l_spaced OR l_there OR NOT l_whole;
                -- Others may take away again what they made; so often in a row they do not.
                INSERT INTO {schema}.namespace VALUES (p_space, 0, 0, false) ON CONFLICT DO NOTHING;
                l_tries := l_tries + 1;
                l_whole := l_tries < 100;
            END LOOP;
        END IF;
        SELECT c.header, c.stamp, c.granted, c.bytes,
               (SELECT r.packed FROM {schema}.receipt AS r
                WHERE r.namespace = p_space AND r.conversation = p_name AND r.idempotency = p_idempotency)
        INTO o_header, o_stamp, l_granted, l_bytes, o_receipt
        FROM {schema}.conversation AS c WHERE c.namespace = p_space AND c.conversation = p_name FOR UPDATE;
        l_there := FOUND;
        o_now := {schema}.present(p_clock);
        l_damaged := l_there AND p_expected = '' AND p_header IS NOT NULL;
        IF coalesce(o_stamp, '') <> p_expected OR l_damaged OR o_receipt IS NOT NULL OR abs(o_now - p_wall) > p_drift
            -- Its grant was taken back meanwhile: the next call counts.
            OR (NOT l_counts AND p_bytes > l_granted)
        THEN
            RETURN;
        END IF;
        IF l_counts AND p_header IS NOT NULL THEN
            LOOP
                l_need := p_bytes - coalesce(l_granted, 0);
                EXIT WHEN NOT (
                    (NOT l_there AND l_space.conversations + 1 > p_max_sessions) IS TRUE
                    OR (p_grown > 0 AND l_space.granted + greatest(l_need, 0) > p_max_bytes) IS TRUE
                );
                IF NOT l_space.ahead THEN
                    o_refused := 'full';
                    o_conversations := l_space.conversations + CASE WHEN l_there THEN 0 ELSE 1 END;
                    o_bytes := l_space.granted + l_need;
                    RETURN;
                END IF;
                UPDATE {schema}.conversation AS c SET granted = c.bytes
                WHERE c.namespace = p_space AND c.granted > c.bytes;
                UPDATE {schema}.namespace AS n
                SET ahead = false,
                    granted = (
                        SELECT coalesce(sum(c.bytes), 0) FROM {schema}.conversation AS c WHERE c.namespace = p_space
                    )
                WHERE n.namespace = p_space
                RETURNING n.conversations, n.granted, n.ahead INTO l_space;
                l_granted := l_bytes;
            END LOOP;
            IF p_grown < 0 THEN
                l_more := l_need;
            ELSIF l_need > 0 THEN
                l_more := l_need;
                IF p_max_bytes IS NULL OR l_space.granted + l_need + p_ahead <= p_max_bytes - p_max_bytes / 8 THEN
                    l_more := l_need + p_ahead;
                END IF;
            END IF;
            UPDATE {schema}.namespace AS n
            SET conversations = n.conversations + CASE WHEN l_there THEN 0 ELSE 1 END,
                granted = n.granted + l_more,
                ahead = n.ahead OR l_more > l_need
            WHERE n.namespace = p_space;
            l_whole := l_whole AND FOUND = l_spaced;
        END IF;
    END IF;
    o_refused := '';
    IF p_tail_rows IS NOT NULL THEN
        SELECT array_agg(t.seq ORDER BY t.seq DESC), array_agg(t.packed ORDER BY t.seq DESC) INTO o_seqs, o_tail
        FROM (
            SELECT e.seq, e.packed, sum(e.messages) OVER w - e.messages AS messages, sum(e.size) OVER w - e.size AS size
            FROM (
                SELECT i.seq, i.packed, i.messages, i.size FROM {schema}.entry AS i
                WHERE i.namespace = p_space AND i.conversation = p_name
                ORDER BY i.seq DESC LIMIT p_tail_rows
            ) AS e WINDOW w AS (ORDER BY e.seq DESC)
        ) AS t WHERE t.messages <= p_tail_messages AND t.size <= p_tail_size;
    END IF;
    IF p_header IS NULL THEN
        DELETE FROM {schema}.entry AS e WHERE e.namespace = p_space AND e.conversation = p_name;
        DELETE FROM {schema}.receipt AS r WHERE r.namespace = p_space AND r.conversation = p_name;
        DELETE FROM {schema}.conversation AS c WHERE c.namespace = p_space AND c.conversation = p_name;
        UPDATE {schema}.namespace AS n
        SET conversations = n.conversations - 1, granted = n.granted - l_granted
        WHERE n.namespace = p_space;
        l_whole := l_whole AND FOUND = l_spaced;
        DELETE FROM {schema}.namespace AS n WHERE n.namespace = p_space AND n.conversations = 0;
        l_whole := l_whole
            AND NOT EXISTS (SELECT 1 FROM {schema}.entry AS e WHERE e.namespace = p_space AND e.conversation = p_name)
            AND NOT EXISTS (SELECT 1 FROM {schema}.receipt AS r WHERE r.namespace = p_space AND r.conversation = p_name)
            AND NOT EXISTS (
                SELECT 1 FROM {schema}.conversation AS c WHERE c.namespace = p_space AND c.conversation = p_name
            )
            AND NOT EXISTS (
                SELECT 1 FROM {schema}.namespace AS n WHERE n.namespace = p_space AND n.conversations = 0
            );
    ELSE
        IF p_cut > 0 THEN
            DELETE FROM {schema}.entry AS e WHERE e.namespace = p_space AND e.conversation = p_name AND e.seq <= p_cut;
            l_whole := l_whole AND NOT EXISTS (
                SELECT 1 FROM {schema}.entry AS e
                WHERE e.namespace = p_space AND e.conversation = p_name AND e.seq <= p_cut
            );
        END IF;
        IF p_first > 0 THEN
            INSERT INTO {schema}.entry (namespace, conversation, seq, messages, size, packed)
            SELECT p_space, p_name, p_first + u.position - 1, u.messages, u.size, u.packed
            FROM unnest(p_packed, p_messages, p_sizes) WITH ORDINALITY AS u (packed, messages, size, position);
            GET DIAGNOSTICS l_rows = ROW_COUNT;
            l_whole := l_whole AND l_rows = cardinality(p_packed);
        END IF;
        IF p_receipt IS NOT NULL THEN
            INSERT INTO {schema}.receipt (namespace, conversation, idempotency, version, packed)
            VALUES (p_space, p_name, p_idempotency, p_version, p_receipt);
            l_whole := l_whole AND FOUND;
        END IF;
        IF cardinality(p_earlier) > 0 THEN
            INSERT INTO {schema}.receipt (namespace, conversation, idempotency, version, packed)
            SELECT p_space, p_name, u.idempotency, u.version, u.packed
            FROM unnest(p_earlier_ids, p_earlier_versions, p_earlier) AS u (idempotency, version, packed);
            GET DIAGNOSTICS l_rows = ROW_COUNT;
            l_whole := l_whole AND l_rows = cardinality(p_earlier);
        END IF;
        IF l_done THEN
            NULL;
        ELSIF l_there THEN
            UPDATE {schema}.conversation AS c
            SET minute = p_touched >> 16, touched = p_touched, reserved = p_reserved, bytes = p_bytes,
                granted = c.granted + l_more, stamp = p_stamp, header = p_header
            WHERE c.namespace = p_space AND c.conversation = p_name;
            l_whole := l_whole AND FOUND;
        ELSE
            INSERT INTO {schema}.conversation
                (namespace, conversation, minute, touched, reserved, bytes, granted, stamp, header)
            VALUES (p_space, p_name, p_touched >> 16, p_touched, p_reserved, p_bytes, l_more, p_stamp, p_header);
            l_whole := l_whole AND FOUND;
        END IF;
    END IF;
    IF NOT l_whole THEN
        -- A trigger that returns NULL, or a rule, keeps a row out and tells nobody.
        RAISE EXCEPTION 'something that is not ours keeps rows from being written' USING ERRCODE = 'MB001';
    END IF;
    -- The caller has what it wrote.
    o_header := NULL;
    o_stamp := NULL;
END
$$
""")
"""
One conditional write. Volatile, so that each of its statements sees what was committed before it.

A row that was waited for is read as it stands by then; a receipt beside it may be older, and the next call sees it. Who
waited too long for the first statement, or lost its grant while it waited, is broken off, and the client sends the call
again.
"""

CREATE_PAGE: Final = Statement("""
CREATE FUNCTION {schema}.page(
    p_nonce bigint, p_clock bigint, p_space bytea, p_name bytea, p_first bigint, p_last bigint,
    p_rows bigint, p_messages bigint, p_size bigint, p_newest_first boolean,
    OUT nonce bigint, OUT o_now bigint, OUT o_header bytea, OUT o_stamp bytea, OUT o_seqs bigint[], OUT o_packed bytea[]
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    nonce := p_nonce;
    o_now := {schema}.present(p_clock);
    SELECT c.header, c.stamp INTO o_header, o_stamp
    FROM {schema}.conversation AS c WHERE c.namespace = p_space AND c.conversation = p_name;
    IF p_newest_first THEN
        SELECT array_agg(t.seq ORDER BY t.seq DESC), array_agg(t.packed ORDER BY t.seq DESC) INTO o_seqs, o_packed
        FROM (
            SELECT e.seq, e.packed, sum(e.messages) OVER w - e.messages AS messages, sum(e.size) OVER w - e.size AS size
            FROM (
                SELECT i.seq, i.packed, i.messages, i.size FROM {schema}.entry AS i
                WHERE i.namespace = p_space AND i.conversation = p_name AND i.seq BETWEEN p_first AND p_last
                ORDER BY i.seq DESC LIMIT p_rows
            ) AS e WINDOW w AS (ORDER BY e.seq DESC)
        ) AS t WHERE t.messages <= p_messages AND t.size <= p_size;
    ELSE
        SELECT array_agg(t.seq ORDER BY t.seq), array_agg(t.packed ORDER BY t.seq) INTO o_seqs, o_packed
        FROM (
            SELECT e.seq, e.packed, sum(e.messages) OVER w - e.messages AS messages, sum(e.size) OVER w - e.size AS size
            FROM (
                SELECT i.seq, i.packed, i.messages, i.size FROM {schema}.entry AS i
                WHERE i.namespace = p_space AND i.conversation = p_name AND i.seq BETWEEN p_first AND p_last
                ORDER BY i.seq LIMIT p_rows
            ) AS e WINDOW w AS (ORDER BY e.seq)
        ) AS t WHERE t.messages <= p_messages AND t.size <= p_size;
    END IF;
END
$$
""")
"""A page of the log, and the header of the same moment."""

CREATE_RECEIPTS: Final = Statement("""
CREATE FUNCTION {schema}.receipts(
    p_nonce bigint, p_clock bigint, p_space bytea, p_name bytea, p_after bigint, p_rows bigint,
    OUT nonce bigint, OUT o_now bigint, OUT o_header bytea, OUT o_stamp bytea, OUT o_packed bytea[]
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    nonce := p_nonce;
    o_now := {schema}.present(p_clock);
    SELECT c.header, c.stamp INTO o_header, o_stamp
    FROM {schema}.conversation AS c WHERE c.namespace = p_space AND c.conversation = p_name;
    SELECT array_agg(r.packed ORDER BY r.version) INTO o_packed
    FROM (
        SELECT i.version, i.packed FROM {schema}.receipt AS i
        WHERE i.namespace = p_space AND i.conversation = p_name AND i.version > p_after AND i.version > 0
        ORDER BY i.version LIMIT p_rows
    ) AS r;
END
$$
""")
"""Receipts, and the header of the same moment."""

CREATE_NAMES: Final = Statement("""
CREATE FUNCTION {schema}.names(
    p_nonce bigint, p_clock bigint, p_space bytea, p_after bytea, p_rows bigint, p_ttl bigint,
    OUT nonce bigint, OUT o_now bigint, OUT o_names bytea[], OUT o_headers bytea[], OUT o_stamps bytea[]
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l_oldest bigint;
BEGIN
    nonce := p_nonce;
    o_now := {schema}.present(p_clock);
    l_oldest := o_now - p_ttl;
    SELECT array_agg(c.conversation ORDER BY c.conversation), array_agg(c.header ORDER BY c.conversation),
           array_agg(c.stamp ORDER BY c.conversation)
    INTO o_names, o_headers, o_stamps
    FROM (
        SELECT i.conversation, i.header, i.stamp FROM {schema}.conversation AS i
        WHERE i.namespace = p_space AND i.conversation > p_after
          AND (i.reserved OR p_ttl IS NULL OR i.touched >= l_oldest)
        ORDER BY i.conversation LIMIT p_rows
    ) AS c;
END
$$
""")
"""Headers by id, without the expired."""

CREATE_STALE: Final = Statement("""
CREATE FUNCTION {schema}.stale(
    p_nonce bigint, p_clock bigint, p_space bytea, p_ttl bigint, p_rows bigint, p_passed bytea[],
    OUT nonce bigint, OUT o_now bigint, OUT o_names bytea[], OUT o_headers bytea[], OUT o_stamps bytea[],
    OUT o_touched bigint[]
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l_oldest bigint;
BEGIN
    nonce := p_nonce;
    o_now := {schema}.present(p_clock);
    l_oldest := o_now - p_ttl;
    SELECT array_agg(c.conversation ORDER BY c.touched, c.conversation),
           array_agg(c.header ORDER BY c.touched, c.conversation),
           array_agg(c.stamp ORDER BY c.touched, c.conversation),
           array_agg(c.touched ORDER BY c.touched, c.conversation)
    INTO o_names, o_headers, o_stamps, o_touched
    FROM (
        (
            SELECT i.conversation, i.header, i.stamp, i.touched FROM {schema}.conversation AS i
            WHERE i.namespace = p_space AND i.minute >= 0 AND i.minute <= l_oldest >> 16
              AND i.touched < l_oldest AND NOT i.reserved AND i.conversation <> ALL (p_passed)
            ORDER BY i.minute LIMIT p_rows
        ) UNION ALL (
            SELECT i.conversation, i.header, i.stamp, i.touched FROM {schema}.conversation AS i
            WHERE i.namespace = p_space AND i.minute >= 0 AND i.minute >= o_now >> 16
              AND i.touched > o_now AND NOT i.reserved AND i.conversation <> ALL (p_passed)
            ORDER BY i.minute LIMIT p_rows
        ) LIMIT p_rows
    ) AS c;
END
$$
""")
"""What has expired, oldest minute first, and what was written to in the future; without what is passed over."""

CREATE_TOTALS: Final = Statement("""
CREATE FUNCTION {schema}.totals(
    p_nonce bigint, p_clock bigint, p_space bytea, p_ttl bigint,
    OUT nonce bigint, OUT o_now bigint, OUT o_conversations bigint, OUT o_bytes bigint, OUT o_reserved bigint,
    OUT o_expired bigint
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l_oldest bigint;
BEGIN
    nonce := p_nonce;
    o_now := {schema}.present(p_clock);
    l_oldest := coalesce(o_now - p_ttl, 0);
    SELECT count(*) FILTER (WHERE c.reserved OR c.touched >= l_oldest),
           coalesce(sum(c.bytes) FILTER (WHERE c.reserved OR c.touched >= l_oldest), 0),
           count(*) FILTER (WHERE c.reserved),
           count(*) FILTER (WHERE NOT c.reserved AND c.touched < l_oldest)
    INTO o_conversations, o_bytes, o_reserved, o_expired
    FROM {schema}.conversation AS c WHERE c.namespace = p_space;
END
$$
""")
"""Counts and bytes of a namespace; linear in its conversations."""

MIGRATIONS: Final = (
    (
        CREATE_VERSION,
        CREATE_NAMESPACE,
        CREATE_CONVERSATION,
        CREATE_CONVERSATION_AGE,
        CREATE_ENTRY,
        CREATE_RECEIPT,
        CREATE_RECEIPT_VERSION,
        CREATE_TIME,
        CREATE_UNSAFE,
        CREATE_LOOK,
        CREATE_WRITE,
        CREATE_PAGE,
        CREATE_RECEIPTS,
        CREATE_NAMES,
        CREATE_STALE,
        CREATE_TOTALS,
    ),
)
"""What makes each version of the one before it; the first is made of nothing. None is ever changed once it is out."""

KEPT_OUT: Final = "MB001"
"""The code of a write that not all rows of were taken, which is broken off. No server has codes of this class."""

SCHEMA_VERSION: Final = len(MIGRATIONS)
"""The newest version that this code reads and writes."""
