"""
Figure 12: an append on a server beside the least that its driver can do, one at a time and from many tasks.

On both the raw limit is one round trip and gives no totals, digest, idempotency, capacity or expiry; on PostgreSQL it
does not fence either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench import peers
from bench.appends import append_steps
from bench.crowds import OURS, Subjects, crowd_times, rates, share
from bench.host_limits import RawPostgres, RawRedis
from bench.hosts import POSTGRES, REDIS, store_on
from bench.measure import interleave
from bench.table import Row
from bench.workload import compact, exchange

if TYPE_CHECKING:
    from bench.lab import Lab
    from bench.measure import Step

WARM = 200
"""Appends before the clock starts: plans are made, and a server's log has its first segments."""

NOTE = (
    "Postgres: raw is one INSERT of a whole exchange that commits by itself, as psycopg sends it prepared; beside it "
    "the same between BEGIN and COMMIT. Redis: raw is one script that compares an epoch, counts and writes one field, "
    "sent by redis-py, many of them in one pipeline. `reserve` and `commit` write the same bytes as one entry; "
    "`Conversation.append` checks four messages and writes four entries. 16 tasks: against the raw INSERT of one "
    "connection, one after the other. Peers add four items."
)


def servers(lab: Lab) -> list[Row]:
    """Figure 12."""
    lines: list[Row] = []
    server = lab.hosts.server(POSTGRES)
    if server is not None:
        lines += [*_postgres_appends(lab, server), *_postgres_crowd(lab, server)]
    for kind in REDIS:
        server = lab.hosts.server(kind)
        if server is not None:
            lines += _redis_appends(lab, kind, server)
            lines += [row for tasks in (16, 256) for row in _redis_crowd(lab, kind, server, tasks)]
    return lines


def _postgres_appends(lab: Lab, server: Any) -> list[Row]:
    raw = RawPostgres(server)
    lab.run(raw.open())
    payloads = [compact(exchange(n)) for n in range(500)]

    async def waiting() -> None:
        await raw.append_waiting(payloads[lab.number() % 500])

    limits: dict[str, Step] = {
        "raw": lambda: raw.append(payloads[lab.number() % 500]),
        "raw, BEGIN to COMMIT": lambda: raw.append_between(payloads[lab.number() % 500]),
    }
    lines = _appends(lab, POSTGRES, server, limits, blocking=True)
    lines += _appends(lab, POSTGRES, server, {"raw": waiting}, blocking=False)
    lab.run(raw.close())
    return lines


def _redis_appends(lab: Lab, kind: str, server: Any) -> list[Row]:
    raw = RawRedis(server)
    payloads = [compact(exchange(n)) for n in range(500)]

    async def waiting() -> None:
        await raw.append_waiting(payloads[lab.number() % 500])

    lines = _appends(lab, kind, server, {"raw": lambda: raw.append(payloads[lab.number() % 500])}, blocking=True)
    lines += _appends(lab, kind, server, {"raw": waiting}, blocking=False)
    lab.run(raw.close())
    return lines


def _appends(lab: Lab, kind: str, server: Any, limits: dict[str, Step], *, blocking: bool) -> list[Row]:
    colour = "sync" if blocking else "async"
    store = store_on(kind, server, blocking=blocking, namespace=colour)
    mine, end = append_steps(lab, store, blocking=blocking)
    peer = None if blocking or kind == POSTGRES else peers.on_redis(server.url)

    async def add() -> None:
        await peer.add_items(exchange(lab.number()))

    steps = limits | mine | ({"RedisSession": add} if peer is not None else {})
    times = interleave(lab.loop, steps, rounds=lab.rounds, each=12, warm=WARM)
    end()
    if peer is not None:
        lab.run(peers.close(peer))
    least = f"raw minimum {times.least('raw') * 1e6:.0f} us"
    if peer is not None:
        least += f", RedisSession {times.ratios('RedisSession', 'raw')[0]:.1f}"
    lines = []
    for name in (*list(limits)[1:], *mine):
        median, best = times.ratios(name, "raw")
        bound = None if name in limits else 1.3
        what = f"{name}, {kind}, {colour}"
        lines.append(Row(figure="12", what=what, median=median, least=best, fast=bound, peer=least, note=NOTE))
    return lines


def _postgres_crowd(lab: Lab, server: Any) -> list[Row]:
    raw, store = RawPostgres(server), store_on(POSTGRES, server, blocking=False, namespace="crowd-12")
    times, _ = crowd_times(lab, 16, Subjects(raw.group, store, alone=raw.append))
    lab.run(store.close())
    lab.run(raw.close())
    lines = []
    for name in OURS:
        median, best = share(times, name, "alone")
        what, peer = f"16 tasks, {POSTGRES}, {name}, times raw one by one", rates(times, "alone", name)
        lines.append(
            Row(figure="12", what=what, median=median, least=best, fast=3, at_least=True, peer=peer, note=NOTE)
        )
    return lines


def _redis_crowd(lab: Lab, kind: str, server: Any, tasks: int) -> list[Row]:
    raw = RawRedis(server, conversations=tasks)
    store = store_on(kind, server, blocking=False, namespace=f"crowd-{tasks}")
    sessions = [peers.on_redis(server.url, f"crowd-{tasks}-{n}") for n in range(tasks if tasks <= 16 else 0)]
    found = {"RedisSession": sessions} if sessions and sessions[0] is not None else {}
    times, spreads = crowd_times(lab, tasks, Subjects(raw.group, store, found))
    lab.run(store.close())
    lab.run(raw.close())
    for many in found.values():
        for session in many:
            lab.run(peers.close(session))
    lines = []
    for name in OURS:
        median, best = times.ratios(name, "raw")
        what = f"{tasks} tasks, {kind}, {name}, vs one pipeline (p99 / p50 {spreads[name]:.1f})"
        peer = rates(times, "raw", name, *found)
        lines.append(Row(figure="12", what=what, median=median, least=best, fast=1.3, peer=peer, note=NOTE))
    return lines
