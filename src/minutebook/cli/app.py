"""The commands: each opens a store by its URL, asks it one thing, and shows the answer to a person or as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from minutebook._version import __version__
from minutebook.cli import doctor as doctor_checks
from minutebook.cli import transfer
from minutebook.cli.copying import copy
from minutebook.cli.running import (
    AsJson,
    BaseUrl,
    Id,
    Model,
    Namespace,
    StoreUrl,
    report,
    reported,
    with_store,
)
from minutebook.cli.streams import OutputLost, lose_output
from minutebook.cli.terminal import (
    EXIT_FAILED,
    print_json,
    print_table,
    quoted,
    say,
    shown,
)
from minutebook.cli.view import LOG, RETAINED, SENT, lines_of, log_row, look, moment, retained_row, said_in, sent_row
from minutebook.errors import DecisionHistoryAbsent, DecisionHistoryCorrupt, InvalidOption
from minutebook.model.keys import check_id
from minutebook.stores.streams import stream_listings
from minutebook.stores.urls import scheme_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from minutebook.model.record import Header
    from minutebook.ports import Listing
    from minutebook.stores.journal import JournalStore

app = typer.Typer(
    name="minutebook",
    help="The conversation history of LLM agents: every exchange kept, only what fits sent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run() -> None:
    """Run the command line."""
    try:
        try:
            app(prog_name="minutebook")
        except SystemExit:  # as every command ends
            sys.stdout.flush()
            raise
    except OutputLost as lost:
        lose_output(lost)


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Keep and show the conversation history of LLM agents."""
    if version:
        say(__version__)
        raise typer.Exit


@app.command("list")
def list_conversations(
    store: StoreUrl,
    namespace: Namespace,
    after: Annotated[str, typer.Option(help="Only ids above this one.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    json: AsJson = False,
) -> None:
    """List the conversations of a namespace."""

    async def work(opened: JournalStore) -> None:
        found: list[Listing | DecisionHistoryCorrupt] = []
        first = check_id(after, "after") if after else ""
        async for listing in stream_listings(opened.journal, opened.namespace, first):
            found.append(listing)
            if len(found) == limit:
                break
        if json:
            for listing in found:
                print_json(_listed(listing))
            if len(found) == limit:
                sys.stderr.write(f"{_more(found)}\n")
        else:
            elsewhere = ", or none above --after" if after else "; see --namespace"
            print_table(
                ("conversation", "turns", "exchanges", "entries", "bytes", "last write (UTC)", "state"),
                [_row(listing) for listing in found],
                empty="no conversation in this namespace" + elsewhere,
            )
            if len(found) == limit:
                say(_more(found))
        if any(isinstance(listing, DecisionHistoryCorrupt) for listing in found):
            raise SystemExit(EXIT_FAILED)

    with_store(store, namespace, work, as_json=json)


@app.command()
def show(
    id: Id,  # noqa: A002 - the field's standard word
    store: StoreUrl,
    namespace: Namespace,
    last: Annotated[int, typer.Option(min=1, help="Only so many, the newest: exchanges, or else entries.")] = 20,
    messages: Annotated[bool, typer.Option("--messages", help="Show what the messages say.")] = False,
    json: AsJson = False,
) -> None:
    """
    Show what is retained beside what was sent.

    Of what has no exchanges, such as an engine's session or a checkpoint, each entry is shown. With --messages every
    entry is, as it was recorded, and so is what an attempt left that was abandoned.
    """

    async def work(opened: JournalStore) -> None:
        header = await _header(opened, id)
        found = await look(opened, id, header, last)
        entries = await said_in(opened, id, header, found) if messages else None
        if json:
            tables = {"log": found.log, "retained": found.retained, "sent": found.sent}
            print_json({"id": id, **_counters(header), **tables} | ({} if entries is None else {"messages": entries}))
            return
        say(f"{shown(id)}: {shown(header.format)}, {_state(header)}")
        exchanges = header.state.exchanges - header.cut.exchanges
        say(f"{header.retained:,} entries with {exchanges:,} exchanges in {header.bytes:,} bytes")
        if found.retained:
            print_table(RETAINED, map(retained_row, found.retained), title="retained")
            print_table(SENT, map(sent_row, found.sent), title="sent", prose=SENT[-1:])
        else:
            print_table(LOG, map(log_row, found.log), title="retained")
        if entries is not None:
            say("\nmessages")
            for line in lines_of(entries):
                say(shown(line))

    with_store(store, namespace, work, as_json=json)


@app.command()
def recover(
    id: Id,  # noqa: A002 - the field's standard word
    store: StoreUrl,
    namespace: Namespace,
    worker_stopped: Annotated[
        bool, typer.Option("--worker-stopped", help="You have stopped the old worker and made sure of it.")
    ] = False,
    epoch: Annotated[int | None, typer.Option(min=1, help="Only this reservation.")] = None,
    json: AsJson = False,
) -> None:
    """
    End the reservation of a worker that is stopped.

    Its attempt is marked as abandoned; should the worker wake, it can no longer write.
    """

    async def work(opened: JournalStore) -> None:
        header = await opened.recover(opened.key(id), worker_stopped=worker_stopped, epoch=epoch)
        report(json, {"id": id, "recovered": True, "epoch": header.epoch}, f"recovered {shown(id)}; it is idle now")

    with_store(store, namespace, work, as_json=json)


@app.command()
def delete(
    id: Id,  # noqa: A002 - the field's standard word
    store: StoreUrl,
    namespace: Namespace,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
) -> None:
    """Erase an idle conversation and all that belongs to it."""
    if not yes:
        reported(_check_asked, as_json=json)
        if not _agreed(f"Erase {shown(id)} for good?"):
            report(json, {"id": id, "deleted": False, "erased": False}, "nothing deleted")
            return

    async def work(opened: JournalStore) -> None:
        erased = await opened.delete(opened.key(id))
        told = "erased" if erased else f"deleted; {scheme_of(store).remains}"
        report(json, {"id": id, "deleted": True, "erased": erased}, f"{shown(id)}: {told}")

    with_store(store, namespace, work, as_json=json)


@app.command("drop-summary")
def drop_summary(
    id: Id,  # noqa: A002 - the field's standard word
    store: StoreUrl,
    namespace: Namespace,
    json: AsJson = False,
) -> None:
    """
    Take a conversation's summary out of its windows.

    No model is shown it any more; the next one is made anew from what is retained.
    """

    async def work(opened: JournalStore) -> None:
        dropped = await opened.drop_summary(opened.key(id))
        told = "its summary stands in no window any more" if dropped else "it has no summary"
        report(json, {"id": id, "dropped": dropped}, f"{shown(id)}: {told}")

    with_store(store, namespace, work, as_json=json)


@app.command()
def verify(
    store: StoreUrl,
    namespace: Namespace,
    id: Annotated[str | None, typer.Argument(help="One conversation; all without it.")] = None,  # noqa: A002
    json: AsJson = False,
) -> None:
    """
    Prove that conversations are what was written.

    Recomputes the digest chain of one conversation or of all, and names the first entry that fails.
    """

    async def work(opened: JournalStore) -> None:
        checked = failed = 0
        async for name in _ids(opened, id):
            outcome = await _verified(opened, name)
            checked += 1
            failed += not outcome["sound"]
            told = outcome.pop("told")
            report(json, outcome, f"{shown(name)}: {told}")
        if not checked:
            raise DecisionHistoryAbsent("no conversation in this namespace, so nothing was checked; see --namespace")
        if failed:
            raise SystemExit(EXIT_FAILED)

    with_store(store, namespace, work, as_json=json)


@app.command()
def stats(store: StoreUrl, namespace: Namespace, json: AsJson = False) -> None:
    """Show what a namespace holds."""

    async def work(opened: JournalStore) -> None:
        totals = await opened.totals()
        values = msgspec.to_builtins(totals)
        if json:
            print_json(values)
        else:
            print_table(("what", "how much"), values.items())

    with_store(store, namespace, work, as_json=json)


@app.command()
def doctor(
    store: StoreUrl,
    namespace: Namespace,
    longest_turn: Annotated[
        int, typer.Option("--longest-turn", min=0, metavar="MINUTES", help="How long a turn may be under way.")
    ] = 60,
    json: AsJson = False,
) -> None:
    """
    Say what of a store wants attention.

    Looks at versions, durability, privacy and reservations, and changes nothing that is recorded. Files that others had
    rights to become private, as whenever a store is opened.
    """
    modes: list[doctor_checks.Finding] = []
    reported(lambda: modes.extend(doctor_checks.files(store)), as_json=json)

    async def work(opened: JournalStore) -> None:
        findings = [*modes, *await doctor_checks.examine(opened, longest_turn)]
        if json:
            for finding in findings:
                print_json(msgspec.to_builtins(finding))
        else:
            print_table(
                ("check", "found", "attention"),
                ((f.check, f.found, f.attention) for f in findings),
                prose=("found", "attention"),
            )
        if any(finding.attention for finding in findings):
            raise SystemExit(EXIT_FAILED)

    with_store(store, namespace, work, as_json=json)


@app.command()
def demo(
    base_url: BaseUrl = None,
    model: Model = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the records in this private directory.")
    ] = None,
    json: AsJson = False,
) -> None:
    """
    See on a real model what is kept, and what is sent.

    What is remembered, recovered, limited and counted; every claim is checked.
    """
    # Imported here, like the chat: only these two need a model's packages.
    from minutebook.cli.demo import perform
    from minutebook.cli.report import Report

    def work() -> None:
        raise SystemExit(perform(Report(as_json=json), base_url=base_url, model=model, keep=keep))

    reported(work, as_json=json)


@app.command()
def chat(
    session: Annotated[str, typer.Option("--session", help="Which conversation; it goes on where it was left.")] = "1",
    store: Annotated[
        str | None, typer.Option("--store", envvar="MINUTEBOOK_STORE", help="Where it is kept, if not in your home.")
    ] = None,
    base_url: BaseUrl = None,
    model: Model = None,
) -> None:
    """Talk to the demo's agent; the history is kept."""
    from minutebook.cli.chat import talk

    reported(lambda: talk(session, store, base_url=base_url, model=model), as_json=False)


app.command()(transfer.export)
app.command("import")(transfer.import_)
app.command()(copy)


def _check_asked() -> None:
    if not sys.stdin.isatty():
        raise InvalidOption("nobody is here to be asked; say --yes to erase it", option="--yes")


def _agreed(question: str) -> bool:
    """Ask a person; whoever ends the input or presses Ctrl-C has not agreed."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        sys.stdout.write("\n")
        return False


async def _header(opened: JournalStore, id: str) -> Header:  # noqa: A002
    header = await opened.header(opened.key(id))
    if header is None:
        raise DecisionHistoryAbsent("no such conversation in this namespace, or it has expired")
    return header


async def _ids(opened: JournalStore, only: str | None) -> AsyncIterator[str]:
    if only is not None:
        yield only
        return
    async for listing in stream_listings(opened.journal, opened.namespace):
        yield _id(listing)


async def _verified(opened: JournalStore, id: str) -> dict[str, Any]:  # noqa: A002
    try:
        header = await opened.verify(opened.key(id))
    except DecisionHistoryCorrupt as error:
        return {"id": id, "sound": False, "seq": error.seq, "told": str(error)}
    told = f"sound, {header.retained:,} entries, {header.digest.hex()}"
    return {"id": id, "sound": True, "entries": header.retained, "digest": header.digest.hex(), "told": told}


def _id(listing: Listing | DecisionHistoryCorrupt) -> str:
    return str(listing.id) if isinstance(listing, DecisionHistoryCorrupt) else listing.key.id


def _more(found: list[Listing | DecisionHistoryCorrupt]) -> str:
    return f"There may be more: --after {quoted(_id(found[-1]))}"


def _listed(listing: Listing | DecisionHistoryCorrupt) -> dict[str, Any]:
    if isinstance(listing, DecisionHistoryCorrupt):
        return {"id": listing.id, "damaged": str(listing)}
    return {"id": listing.key.id, **_counters(listing.header)}


def _counters(header: Header) -> dict[str, Any]:
    return {
        "format": header.format,
        "turns": header.state.turns - header.cut.turns,
        "exchanges": header.state.exchanges - header.cut.exchanges,
        "entries": header.retained,
        "bytes": header.bytes,
        "touched_ms": header.touched,
        "epoch": header.epoch,
        "reserved": bool(header.token),
        "reserved_since_ms": header.since if header.token else None,
        "open_calls": sum(len(waits.waiting) for waits in header.state.open),
        "digest": header.digest.hex(),
    }


def _row(listing: Listing | DecisionHistoryCorrupt) -> tuple[Any, ...]:
    if isinstance(listing, DecisionHistoryCorrupt):
        return (listing.id, "", "", "", "", "", "damaged")
    header = listing.header
    state = header.state
    turns, exchanges = state.turns - header.cut.turns, state.exchanges - header.cut.exchanges
    return (listing.key.id, turns, exchanges, header.retained, header.bytes, moment(header.touched), _state(header))


def _state(header: Header) -> str:
    if header.token:
        return f"reserved (epoch {header.epoch})"
    if header.state.open:
        return f"{len(header.state.open)} waiting"
    return "unanswered" if header.state.unanswered else "idle"
