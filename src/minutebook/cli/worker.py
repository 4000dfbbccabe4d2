"""
The process that the demo kills: one run of the agent, which reports what it does as lines of JSON.

A line is written before anything that follows it is done, so whoever reads them knows what was acknowledged at the
moment of a kill: each request as it leaves, each observation as it is made.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from minutebook.cli.agent import Endpoint, client, provider, requests_noted, serving
from minutebook.decisions import HistoryOptions
from minutebook.errors import MinutebookError
from minutebook.model.decisions import CallReference, Observation
from minutebook.model.shown import type_alone
from minutebook.programs import Runtime
from minutebook.stores.opening import SQLiteStore

if TYPE_CHECKING:
    from minutebook.model.codec import JSON


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to do; it comes on standard input, where no list of processes shows it."""

    endpoint: Endpoint
    database: bytes
    """The file's name as the system has it, which need be no text."""
    namespace: str
    run_id: str
    invocation_id: str
    task: str

    __repr__ = type_alone


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a request is leaving, something was observed, or the run has finished or failed."""

    kind: Literal["asked", "observed", "finished", "failed"]
    observation: dict[str, Any] | None = None
    code: str = ""
    message: str = ""
    """Of the error that it failed with."""

    __repr__ = type_alone


def observation_of(told: Told) -> Observation:
    """Return the observation that a line tells."""
    fields = dict(told.observation or {})
    place: dict[str, int] = fields.pop("reference")
    value: JSON = fields.pop("value")
    return Observation(**fields, value=value, reference=CallReference(**place))


def _tell(told: Told) -> None:
    os.write(1, msgspec.json.encode(told) + b"\n")


def _observed(observation: Observation) -> None:
    _tell(Told(kind="observed", observation=msgspec.to_builtins(observation)))


async def work(job: Job) -> None:
    """Run the agent on the job's task."""
    asking = client(job.endpoint, requests_noted(lambda _: _tell(Told(kind="asked"))))
    async with asking, SQLiteStore(os.fsdecode(job.database), namespace=job.namespace) as store:
        # Its parent keeps what it observes, and goes on without it.
        runtime = Runtime(serving(), provider(job.endpoint, HistoryOptions(store=store), asking), checkpoints=False)
        await runtime.run(job.task, run_id=job.run_id, invocation_id=job.invocation_id, on_observation=_observed)
    _tell(Told(kind="finished"))


def main() -> None:
    """Do the one job that stands on standard input."""
    try:
        asyncio.run(work(msgspec.json.decode(sys.stdin.buffer.read(), type=Job)))
    except MinutebookError as error:
        _tell(Told(kind="failed", code=error.code, message=str(error)))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
