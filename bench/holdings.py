"""
Figure 17: what a server spends and keeps for a conversation, as numbers to plan with (`docs/scale.md`).

They are absolute, so they are of one machine. Processor time is what the kernel counted for the server's processes, and
hardly depends on what else the machine does; times of listing and deleting are minima.
"""

from __future__ import annotations

import time
import unittest
from typing import TYPE_CHECKING, Any

from bench import ours
from bench.crowds import crowd
from bench.hosts import ALWAYS, POSTGRES, store_on
from bench.measure import drive, tree_seconds
from bench.table import Row
from bench.workload import compact, exchange
from minutebook.stores.journal import JournalStore
from minutebook.stores.remote_journal import RemoteJournal

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.lab import Lab

EXCHANGES = 20
"""In each conversation of those that sizes are taken of."""
PAGE = 100

NOTE = (
    "no ratios. Server us: processor time of the server's processes; client us: of this process. Append: "
    "`Conversation.append` of four messages. Turn: input of 200 B, window of 64 messages, answer of 600 B, by the "
    "worker that had the conversation before; cold, by one that never saw it. Bytes: of conversations of 20 exchanges, "
    "appended one by one. Kept: on Postgres with all indexes after VACUUM, on Redis in memory. Logged: WAL, or the "
    "append-only file. List: a page of 100 ids. Delete: a conversation of 20 exchanges, which is what its expiry costs."
)


def held(lab: Lab) -> list[Row]:
    """Figure 17."""
    lines: list[Row] = []
    for kind, kept in ((POSTGRES, _postgres_bytes), (ALWAYS, _redis_bytes)):
        server = lab.hosts.server(kind)
        if server is not None:
            store = store_on(kind, server, blocking=True, namespace="held")
            lines += _spent(lab, kind, server, store)
            lines += _kept(lab, kind, server, store, kept)
            lines += _swept(lab, kind, server)
            lines += _begun(lab, kind, server)
            drive(store.close())
    lines += _pooled(lab)
    return lines


def _row(what: str, value: float, peer: str = "") -> Row:
    return Row(figure="17", what=what, median=value, peer=peer, note=NOTE)


# --- processor time --------------------------------------------------------------------------------------------------


def _spent(lab: Lab, kind: str, server: Any, store: JournalStore) -> list[Row]:
    talk = ours.conversation(store, "spent")
    ours.fill(store, "spent", 200)

    def cold() -> None:
        # The same connections, and nothing that is remembered.
        other = JournalStore(RemoteJournal(store.journal._remote), namespace=store.namespace)  # type: ignore[attr-defined]
        drive(ours.step(ours.conversation(other, "spent"), lab.number()))

    subjects: dict[str, Callable[[], object]] = {
        "append": lambda: drive(talk.append(exchange(lab.number()))),
        "turn": lambda: drive(ours.step(talk, lab.number())),
        "turn, cold": cold,
    }
    lines = []
    for name, work in subjects.items():
        count = 500 if lab.quick else 3000
        for _ in range(50):
            work()
        server_before, own_before = tree_seconds(server.process.pid), time.process_time()
        for _ in range(count):
            work()
        spent = tree_seconds(server.process.pid) - server_before
        own = time.process_time() - own_before
        lines.append(_row(f"server us, {name}, {kind}", spent / count * 1e6, f"client us {own / count * 1e6:.0f}"))
    return lines


# --- bytes -----------------------------------------------------------------------------------------------------------


def _kept(lab: Lab, kind: str, server: Any, store: JournalStore, sizes: Callable[[Any], tuple[int, int]]) -> list[Row]:
    conversations = 20 if lab.quick else 200
    count = conversations * EXCHANGES
    payload = sum(len(compact(message)) for n in range(count) for message in exchange(n)) / count
    kept, logged = sizes(server)
    for number in range(conversations):
        talk = ours.conversation(store, f"kept-{number}")
        for nth in range(EXCHANGES):
            drive(talk.append(exchange(number * EXCHANGES + nth)))
    kept_after, logged_after = sizes(server)
    given = f"payload {payload:,.0f} B"
    return [
        _row(f"bytes kept for an exchange, {kind}", (kept_after - kept) / count, given),
        _row(f"bytes logged for an exchange, {kind}", (logged_after - logged) / count, given),
    ]


def _postgres_bytes(server: Any) -> tuple[int, int]:
    (logged,) = server.ask("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0]
    for table in ("entry", "receipt", "conversation", "namespace"):
        server.ask(f"VACUUM minutebook.{table}")
    (kept,) = server.ask(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'minutebook' AND c.relkind = 'r'"
    )[0]
    return int(kept), int(logged)


def _redis_bytes(server: Any) -> tuple[int, int]:
    return int(server.info("memory")["used_memory"]), int(server.info("persistence")["aof_current_size"])


# --- listing and deleting --------------------------------------------------------------------------------------------


def _swept(lab: Lab, kind: str, server: Any) -> list[Row]:
    """Time pages, totals and deletions in a namespace of many conversations."""
    many = 1000 if lab.quick else 20_000
    store = store_on(kind, server, blocking=True, namespace="swept")
    payload = compact(exchange(1))
    for number in range(many):
        drive(ours.reserve_entry(store, store.key(f"{number:07d}"), payload))
    journal = store.journal
    middle = f"{many // 2:07d}"
    page = _least(lambda: drive(journal.list("swept", middle, PAGE)))
    totals = _least(lambda: drive(journal.totals("swept")))
    for number in range(40):
        ours.fill(store, f"gone-{number}", EXCHANGES)
    gone = iter(range(40))
    delete = _least(lambda: drive(journal.delete(store.key(f"gone-{next(gone)}"))), count=40)
    drive(store.close())
    among = f"among {many:,} conversations, {kind}"
    return [
        _row(f"ms for a list of 100, {among}", page * 1000),
        _row(f"ms for the totals, {among}", totals * 1000),
        _row(f"ms for a delete, {among}", delete * 1000),
    ]


def _least(work: Callable[[], object], count: int = 20) -> float:
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


# --- new conversations -----------------------------------------------------------------------------------------------


def _begun(lab: Lab, kind: str, server: Any) -> list[Row]:
    """Time how fast 16 tasks begin conversations: all in one namespace, whose count they share, and each in its own."""
    store = store_on(kind, server, blocking=False, namespace="begun")
    payload = compact(exchange(1))

    def begin(place: JournalStore) -> Callable[[], Any]:
        return lambda: ours.reserve_entry(place, place.key(f"{lab.number()}"), payload)

    apart = [JournalStore(store.journal, namespace=f"begun-{n}") for n in range(16)]
    places = {"one namespace": [store] * 16, "16 namespaces": apart}
    least = dict.fromkeys(places, 1.0)
    for _ in range(lab.rounds):
        for name, chosen in places.items():
            seconds, _ = lab.run(crowd([begin(place) for place in chosen], 12))
            least[name] = min(least[name], seconds)
    lab.run(store.close())
    peer = f"in 16 namespaces {1 / least['16 namespaces']:,.0f}"
    return [
        _row(f"conversations begun a second by 16 tasks in one namespace, {kind}", 1 / least["one namespace"], peer)
    ]


# --- a pooler --------------------------------------------------------------------------------------------------------


def _pooled(lab: Lab) -> list[Row]:
    """Time an append straight to a server and through PgBouncer, in turns."""
    server = lab.hosts.server(POSTGRES)
    if server is None:
        return []
    from servers.postgres import pooler

    try:
        with pooler(server) as port:
            straight, through = _ways(lab, [server.url(), server.url(port=port)])
    except unittest.SkipTest as reason:
        lab.hosts.missing["PgBouncer"] = str(reason)
        return []
    peer = f"straight {straight * 1e6:.0f} us"
    return [_row("us for a reserve through PgBouncer", through * 1e6, peer)]


def _ways(lab: Lab, urls: list[str]) -> list[float]:
    from minutebook.stores.postgres import PostgresRemote

    stores = [JournalStore(RemoteJournal(PostgresRemote(url, blocking=True)), namespace="pooled") for url in urls]
    payload = compact(exchange(1))
    least = [1.0] * len(urls)
    for _ in range(lab.rounds):
        for way, store in enumerate(stores):
            key = store.key(f"way-{way}")
            least[way] = min(least[way], _least(lambda: drive(ours.reserve_entry(store, key, payload))))  # noqa: B023
    for store in stores:
        drive(store.close())
    return least
