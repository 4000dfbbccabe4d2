"""TLS to PostgreSQL and Redis: real servers with certificates of their own, and who is refused (B2, I-37)."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import postgres
from servers.certificates import Authority
from servers.redis import free_ports, single

import minutebook
from minutebook import sync
from minutebook.errors import DecisionHistoryStorageFailed

PASSWORD = postgres.PASSWORD
COLOURS = pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])

Url = Callable[..., str]


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    """Who signed the servers' certificates, and somebody else."""
    folder = tmp_path_factory.mktemp("certificates")
    return Authority(folder / "ours"), Authority(folder / "theirs")


@pytest.fixture(scope="module")
def postgres_url(authorities: tuple[Authority, Authority]) -> Iterator[Url]:
    """A server that takes TLS alone, and its URL: with what trust, and by what name."""
    certificate, key = authorities[0].signed()
    with postgres.single() as server:
        _, number = postgres.as_user()
        for source, target in ((certificate, "server.crt"), (key, "server.key")):
            shutil.copy(source, server.data / target)
            (server.data / target).chmod(0o600)
            if number is not None:
                os.chown(server.data / target, number, -1)
        (server.data / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n")
        server.settings["ssl"] = "on"
        server.restart()

        def url(trust: str, *, host: str = "localhost", password: str = PASSWORD) -> str:
            return f"postgresql://{postgres.USER}:{password}@{host}:{server.port}/postgres?{trust}"

        yield url


@pytest.fixture(scope="module")
def redis_url(authorities: tuple[Authority, Authority]) -> Iterator[Url]:
    """The same of a Redis server; the one in the wheel knows no TLS."""
    certificate, key = authorities[0].signed()
    (port,) = free_ports(1)
    given = ("--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key)
    more = ("--tls-ca-cert-file", authorities[0].certificate, "--tls-auth-clients", "no")
    with single(*map(str, (*given, *more)), name="redis") as server:
        server.ask("CONFIG", "SET", "requirepass", PASSWORD)

        def url(trust: str, *, host: str = "localhost", password: str = PASSWORD) -> str:
            return f"rediss://:{password}@{host}:{port}?{trust}"

        yield url


def told(url: str, *, blocking: bool = True, timeout: float = 5) -> str:
    """Write to a store and read it back; return what was refused, with all that a traceback says, or nothing."""
    options: Any = {"namespace": uuid.uuid4().hex, "timeout": timeout}
    name = "PostgresStore" if url.startswith("postgresql") else "RedisStore"

    async def story() -> None:
        async with getattr(minutebook, name)(url, **options) as store:
            talk = minutebook.Conversation(store, "a", format="openai-chat")
            await talk.append([{"role": "user", "content": "q"}])
            assert (await store.verify(talk.key)).entries == 1

    def attempt() -> None:
        if blocking:
            with getattr(sync, name)(url, **options) as store:
                talk = sync.Conversation(store, "a", format="openai-chat")
                talk.append([{"role": "user", "content": "q"}])
                assert store.verify(talk.key).entries == 1
        else:
            asyncio.run(story())

    try:
        attempt()
    except DecisionHistoryStorageFailed as error:
        return f"{error} {error.facts} " + "".join(traceback.format_exception(error))
    return ""


TRUST = {
    "Postgres": ("sslmode=verify-full&sslrootcert={}", "sslmode=require"),
    "Redis": ("ssl_ca_certs={}", "ssl_cert_reqs=none&ssl_check_hostname=false"),
}
"""How a URL says whom it trusts, and that it trusts anybody."""


@COLOURS
@pytest.mark.parametrize("kind", TRUST)
def test_b2_i37_a_server_is_trusted_by_its_certificate_alone(
    kind: str,
    blocking: bool,
    authorities: tuple[Authority, Authority],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    With its authority named a server is used; one of another authority, or of another name, is refused by name.

    No refusal repeats the password, and each says that nothing was sent, and why.
    """
    caplog.set_level(logging.DEBUG)
    url: Url = request.getfixturevalue(f"{kind.lower()}_url")
    ours, theirs = (authority.certificate for authority in authorities)
    trusting, anybody = TRUST[kind]
    assert told(url(trusting.format(ours)), blocking=blocking) == ""
    assert told(url(anybody), blocking=blocking) == ""
    refusals = {
        "another authority": (url(trusting.format(theirs)), "the certificate is not accepted"),
        "another name": (url(trusting.format(ours), host="127.0.0.1"), "the certificate is not accepted"),
        "no such file": (url(trusting.format(ours.with_name("absent"))), "certificate"),
    }
    for what, (address, reason) in refusals.items():
        refused = told(address, blocking=blocking)
        assert reason in refused, what
        assert "nothing was sent" in refused, what
        assert PASSWORD not in refused + caplog.text, what


@pytest.mark.parametrize("kind", TRUST)
def test_b2_a_server_without_tls_is_not_talked_to_in_the_clear(kind: str, authorities: Any) -> None:
    """Where a URL asks for TLS and the server has none, or the other way round, it is refused in time (B2)."""
    trust = TRUST[kind][0].format(authorities[0].certificate)
    if kind == "Postgres":
        plain = postgres.shared().url()
        assert "the two do not agree on TLS" in told(f"{plain}?{trust}".replace("127.0.0.1", "localhost"))
    else:
        with single() as server:
            begun = time.monotonic()
            assert "nothing was sent" in told(f"rediss://localhost:{server.port}?{trust}", timeout=2)
            assert time.monotonic() - begun < 8


@COLOURS
def test_b2_a_cluster_over_tls(blocking: bool, authorities: tuple[Authority, Authority]) -> None:
    """
    Every node of a cluster is reached by TLS, and its certificate held to the same authority (B2).

    A certificate that is not accepted will not be a moment later: that is said at once.
    """
    certificate, key = authorities[0].signed()
    more = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", authorities[0].certificate)
    (port,) = free_ports(1)
    given = ("--cluster-enabled", "yes", "--tls-cluster", "yes", "--tls-port", port, "--tls-auth-clients", "no", *more)
    with single(*map(str, given), name="redis") as server:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        server.ask("CONFIG", "SET", "cluster-announce-hostname", "localhost")
        server.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
        cluster_url = f"rediss+cluster://localhost:{port}?ssl_ca_certs="
        assert told(f"{cluster_url}{authorities[0].certificate}", blocking=blocking) == ""
        begun = time.monotonic()
        refused = told(f"{cluster_url}{authorities[1].certificate}", blocking=blocking, timeout=20)
        assert "the certificate is not accepted" in refused
        assert time.monotonic() - begun < 10


@COLOURS
def test_b2_a_cluster_that_cannot_be_reached_says_why_and_not_that_time_ran_out(blocking: bool) -> None:
    """Every round is refused until the deadline; what the last one had no time to find out is not the reason (B2)."""
    (port,) = free_ports(1)
    refused = told(f"redis+cluster://127.0.0.1:{port}", blocking=blocking, timeout=0.3)
    assert "nothing listens there; nothing was sent" in refused


@COLOURS
@pytest.mark.parametrize("kind", TRUST)
@pytest.mark.parametrize("secure", [False, True], ids=["clear", "TLS"])
def test_bad_input_95_connecting_to_what_never_answers_ends_in_time(kind: str, blocking: bool, secure: bool) -> None:
    """A port that takes connections and says nothing: refused by name within the time that a call has (95)."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        port = silent.getsockname()[1]
        if kind == "Postgres":
            hosts = ",".join([f"127.0.0.1:{port}"] * 3)
            mode = "require" if secure else "disable"
            url = f"postgresql://user:{PASSWORD}@{hosts}/x?sslmode={mode}&connect_timeout=60"
        else:
            url = f"redis{'s' if secure else ''}://:{PASSWORD}@127.0.0.1:{port}"
        begun = time.monotonic()
        refused = told(url, blocking=blocking, timeout=1)
        assert time.monotonic() - begun < 4
        assert PASSWORD not in refused
        assert refused
