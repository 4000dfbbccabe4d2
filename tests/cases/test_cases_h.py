"""Field cases O-41, O-42, O-43, O-45 and O-50: identity, life time and a steady cut, through `Conversation`."""

from __future__ import annotations

import pytest
from tests.faces.places import chat, lasting, reply, said, seen, tell

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryBusy, InvalidId, InvalidOption
from minutebook.model.bounds import StoreBounds, WindowLimits
from minutebook.testing.clock import FrozenClock


@lasting
async def test_o41_distinct_keys_are_distinct_conversations(place):
    """Separators, trailing spaces, case, zero-width and composed letters: each has its own history, or is refused."""
    keys = [
        ("shop:eu", "7"),
        ("shop", "eu:7"),
        *(("t", id_) for id_ in ("tenant", "tenant ", "Tenant", "tenant\u200b")),
    ]
    keys += [("t", "\u00e9"), ("t", "e\u0301"), ("t", "%"), ("t", "_"), ("t", "*"), ("t", "x" * 512)]
    for namespace, id_ in keys:
        await tell(chat(place.open(namespace), id_), f"{namespace}/{id_}")
    for namespace, id_ in keys:
        assert await seen(chat(place.open(namespace), id_)) == [f"U {namespace}/{id_}", "A ok"]
    for bad in ("", "  ", "x" * 10_000, 7, None, b"x"):
        with pytest.raises(InvalidId):
            chat(place.open(), bad)


@lasting
async def test_o42_an_id_is_never_a_path(place):
    """Nothing but the store's own files appears, whatever the id says."""
    await tell(chat(place.open(), "plain"), "x")
    before = {path.name for path in place.path.parent.parent.rglob("*")}
    for id_ in ("../escape", "../../outside/notes", "/etc/x", "a/b", "a\\b", "con", ".", "line\nbreak"):
        await tell(chat(place.open(), id_), id_)
        assert await seen(chat(place.open(), id_)) == [f"U {id_}", "A ok"]
    after = {path.name for path in place.path.parent.parent.rglob("*")}
    assert after - before <= {"book.sqlite-wal", "book.sqlite-shm"}


@lasting
async def test_o43_a_listing_stays_in_its_namespace_and_knows_no_patterns(place):
    """Ids that look like statements or patterns are ids; an unknown option is an error, never no filter."""
    for namespace in ("a", "b", "a%", "*"):
        for id_ in ("x') OR 1=1 --", "%", "_", "*"):
            await tell(chat(place.open(namespace), id_), "x")
    for namespace in ("a", "b", "a%", "*"):
        listed = await place.open(namespace).list()
        assert [row.key.id for row in listed] == sorted(["x') OR 1=1 --", "%", "_", "*"])
        assert {row.key.namespace for row in listed} == {namespace}
    with pytest.raises(TypeError):
        await place.open("a").list(filter={"tenant": "acme"})
    with pytest.raises(InvalidOption):
        await chat(place.open("a")).page(limit="%")
    with pytest.raises(InvalidOption):
        chat(place.open("a"), "x").store._own(place.open("b").key("%"))


def test_o45_a_conversation_expires_as_one_and_never_while_it_is_held(place):
    """Reading does not prolong, writing does; afterwards it is absent and its place is free."""
    clock = FrozenClock()

    @lasting
    async def body(place):
        store = place.open(bounds=StoreBounds(ttl_ms=2_000, max_sessions=1), clock=clock)
        conversation = chat(store)
        for number in range(3):
            await tell(conversation, f"q{number}")
            clock.advance(1_500)
            assert len(await seen(conversation)) == 2 * number + 2
        async with conversation.turn("held") as turn:
            clock.advance(60_000)
            assert len(await turn.window()) == 7
            with pytest.raises(DecisionHistoryBusy):
                await tell(chat(store), "other")
            await turn.respond(reply(said("still here")))
        clock.advance(1_999)
        assert len(await seen(conversation)) == 8
        clock.advance(2)
        assert await seen(conversation) == []
        assert await conversation.last(None) == []
        await tell(chat(store, "new"), "x")
        assert (await store.totals()).conversations == 1

    body(place)


@pytest.mark.parametrize("name", ["openai-chat", "anthropic"])
def test_o50_the_cut_does_not_move_on_every_turn(place, name, figure):
    """Twenty turns at the limit: successive windows share their bytes but at few cuts; same settings, same bytes."""

    @lasting
    async def body(place):
        conversation = Conversation(place.open(), "c", format=name, limits=WindowLimits(max_messages=40, low_water=0.5))
        answer = {
            "openai-chat": reply(said("a" * 50)),
            "anthropic": {"role": "assistant", "content": [{"type": "text", "text": "a" * 50}]},
        }[name]
        windows = []
        for number in range(60):
            async with conversation.turn(f"question {number}") as turn:
                windows.append(await turn.window())
                assert (await turn.window()).json == windows[-1].json
                await turn.respond(answer)
        late = list(zip(windows[-21:], windows[-20:], strict=False))
        kept = [after.json.startswith(before.json[:-1]) for before, after in late]
        assert kept.count(False) <= 3
        warm = sum(len(before.json) for (before, _), k in zip(late, kept, strict=True) if k)
        sent = sum(len(after.json) for _, after in late)
        figure(
            f"{kept.count(False)} cuts in 20 turns at the limit, {100 * warm // sent} % of the bytes were sent before"
        )
        assert warm > sent * 0.75

    body(place)
