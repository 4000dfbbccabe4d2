"""A client's whole transcript beside the record: the same conversation is recognised, another one refused (O-18)."""

from __future__ import annotations

from itertools import permutations

import pytest
from tests.faces.places import dump, lasting
from tests.policy.histories import SHAPES

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryConflict
from minutebook.model.entries import Kind

CALLS = [("c1", "one"), ("c2", "two"), ("c3", "three")]
OUTPUTS = ["first", "second", "third"]
ORDERS = list(permutations(range(3)))


def results(shape, order, outputs=OUTPUTS, calls=CALLS):
    """Return the results of the calls as a client sends them, in `order`."""
    return shape.results([calls[n] for n in order], [outputs[n] for n in order])


def transcript(shape, *order, outputs=OUTPUTS, calls=CALLS):
    """Return a client's list: an input, an answer with three calls, their results in `order`, and the last answer."""
    asked, answered = shape.response("calling", calls)[1], shape.response("done", [])[1]
    return [shape.user("go"), *asked, *results(shape, order, outputs, calls), *answered]


async def record(conversation, shape, order, calls=CALLS):
    """Record the same conversation by a turn of one's own loop, the results as they came in."""
    async with conversation.turn(shape.user("go")) as turn:
        waiting = await turn.respond(shape.response("calling", calls)[0])
        for position in order:
            await turn.result(waiting[position], OUTPUTS[position])
        await turn.respond(shape.response("done", [])[0])


async def expect_only_new(conversation, store, client, shape):
    """See that `client` is found whole in the record, and that of a longer list the new part alone is written."""
    before = await dump(store)
    assert await conversation.append(client, whole=True) is None
    assert (await dump(store))[1] == before[1]
    receipt = await conversation.append([*client, shape.user("and now?")], whole=True)
    assert (receipt.first, receipt.last) == (before[0].entries + 1, before[0].entries + 1)


@pytest.mark.parametrize("name", SHAPES)
@lasting
async def test_o07_o18_parallel_results_are_compared_by_call_and_not_by_order(place, name):
    """Whatever order the results came in and the client has them in, it is one conversation to every provider."""
    store, shape = place.open(), SHAPES[name]
    for number, recorded in enumerate(ORDERS):
        for other, sent in enumerate(ORDERS):
            told = Conversation(store, f"told {number} {other}", format=name)
            await record(told, shape, recorded)
            await expect_only_new(told, _At(store, told), transcript(shape, *sent), shape)
            listed = Conversation(store, f"listed {number} {other}", format=name)
            await listed.append(transcript(shape, *recorded), whole=True)
            await expect_only_new(listed, _At(store, listed), transcript(shape, *sent), shape)


class _At:
    """A store as `dump` reads it, for one conversation whatever the name."""

    def __init__(self, store, conversation):
        self.header, self.entries = store.header, store.entries
        self.key = lambda _: conversation.key


@pytest.mark.parametrize("name", SHAPES)
@lasting
async def test_o07_o18_what_a_call_was_given_still_tells_two_transcripts_apart(place, name):
    """The control: outputs that changed places, another output, one more or one less are another conversation."""
    store, shape = place.open(), SHAPES[name]
    conversation = Conversation(store, "c", format=name)
    await record(conversation, shape, (2, 0, 1))
    before = await dump(store)
    for outputs in (["second", "first", "third"], ["first", "second", "else"]):
        with pytest.raises(DecisionHistoryConflict):
            await conversation.append(transcript(shape, 0, 1, 2, outputs=outputs), whole=True)
    head = [shape.user("go"), *shape.response("calling", CALLS)[1]]
    for behind in (head, [*head, *results(shape, (0, 1))], [*head, *results(shape, (0, 1, 2))]):
        with pytest.raises(DecisionHistoryConflict):
            await conversation.append(behind, whole=True)
    assert (await dump(store))[1] == before[1]


@lasting
async def test_o09_o18_results_without_ids_are_told_apart_by_order_alone(place):
    """Two calls of one name and no id: there the order is all that pairs, so another order is another conversation."""
    store, shape = place.open(), SHAPES["gemini"]
    calls = [("", "one"), ("", "one"), ("", "two")]
    conversation = Conversation(store, "c", format="gemini")
    await record(conversation, shape, (1, 2, 0), calls)
    await expect_only_new(conversation, store, transcript(shape, 2, 0, 1, calls=calls), shape)
    with pytest.raises(DecisionHistoryConflict):
        await conversation.append(transcript(shape, 1, 0, 2, calls=calls), whole=True)


@pytest.mark.parametrize("name", SHAPES)
@lasting
async def test_o18_results_that_are_recorded_in_part_are_completed(place, name):
    """A worker died between two results; the client's list has all of them, in one message where the format has so."""
    store, shape = place.open(), SHAPES[name]
    for number, sent in enumerate(ORDERS):
        conversation = Conversation(store, f"c{number}", format=name)
        head = [shape.user("go"), *shape.response("calling", CALLS)[1]]
        await conversation.append([*head, *results(shape, (1,))], whole=True)
        receipt = await conversation.append(transcript(shape, *sent), whole=True)
        assert receipt.last - receipt.first == 2  # the two results that were missing, and the answer
        window = (await conversation.window()).messages
        assert window == transcript(shape, 0, 1, 2)


@pytest.mark.parametrize("name", SHAPES)
@lasting
async def test_c4_o18_a_late_result_stands_beside_its_call_in_a_client_s_list(place, name):
    """A parked call goes on waiting while others talk; the client's list, which has its result, completes it."""
    store, shape = place.open(), SHAPES[name]
    conversation = Conversation(store, "c", format=name)
    async with conversation.turn(shape.user("go")) as turn:
        waiting = await turn.respond(shape.response("calling", CALLS)[0])
        await turn.result(waiting[1], OUTPUTS[1])
        await turn.park(waiting[0])
    async with conversation.turn(shape.user("meanwhile")) as turn:
        await turn.respond(shape.response("yes", [])[0])
    client = [shape.user("go"), *shape.response("calling", CALLS)[1], *results(shape, (2, 1, 0))]
    client += [shape.user("meanwhile"), *shape.response("yes", [])[1]]
    assert await conversation.append(client, whole=True) is not None
    assert await conversation.open_calls() == ()
    await expect_only_new(conversation, store, client, shape)


@lasting
async def test_o08_o18_what_was_said_while_a_call_waited_is_found_behind_the_results(place):
    """A window shows it there, where it looks like an input; a client that sends its window back is understood."""
    store, shape = place.open(), SHAPES["openai-chat"]
    conversation = Conversation(store, "c", format="openai-chat")
    async with conversation.turn("go") as turn:
        waiting = await turn.respond(shape.response("calling", CALLS)[0])
        await turn.result(waiting[2], OUTPUTS[2])
        await turn.say("hurry")
        await turn.result(waiting[0], OUTPUTS[0])
        await turn.result(waiting[1], OUTPUTS[1])
        client = (await turn.window()).messages
        await turn.respond(shape.response("done", [])[0])
    client += shape.response("done", [])[1]
    await expect_only_new(conversation, store, client, shape)


@pytest.mark.parametrize("text", [{"type": "text", "text": "beside"}])
@lasting
async def test_o08_o18_a_text_beside_results_is_compared_too(place, text):
    """Anthropic lets a user speak in the message of the results; it belongs to the conversation like they do."""
    store, shape = place.open(), SHAPES["anthropic"]
    conversation = Conversation(store, "c", format="anthropic")
    client = transcript(shape, 0, 1, 2)
    client[2]["content"].append(text)
    await conversation.append(client, whole=True)
    again = transcript(shape, 2, 0, 1)
    again[2]["content"].append(text)
    assert await conversation.append(again, whole=True) is None
    for wrong in (transcript(shape, 0, 1, 2), transcript(shape, 1, 0, 2)):
        with pytest.raises(DecisionHistoryConflict):
            await conversation.append(wrong, whole=True)
    bare = Conversation(store, "bare", format="anthropic")
    await record(bare, shape, (0, 1, 2))
    with pytest.raises(DecisionHistoryConflict):
        await bare.append(client, whole=True)
    kinds = [entry.kind async for entry in store.entries(bare.key)]
    assert kinds.count(Kind.RESULT) == 3


@lasting
async def test_o18_answers_in_a_row_are_one_run_of_items(place):
    """In a list of Responses items nothing stands between two responses; the record knows them as two."""
    store, shape = place.open(), SHAPES["openai-responses"]
    conversation = Conversation(store, "c", format="openai-responses")
    parts = [shape.response("half of it", [])[0], shape.response("calling", CALLS)[0], shape.response("done", [])[0]]
    async with conversation.turn("go") as turn:
        await turn.respond(parts[0])
        for call in await turn.respond(parts[1]):
            await turn.result(call, OUTPUTS[call.position])
        await turn.respond(parts[2])
    half, calling, done = (part["output"] for part in parts)
    client = [shape.user("go"), *half, *calling, *results(shape, (2, 1, 0)), *done]
    await expect_only_new(conversation, store, client, shape)
    with pytest.raises(DecisionHistoryConflict):
        await conversation.append([shape.user("go"), *calling, *results(shape, (2, 1, 0)), *done], whole=True)
    begun = Conversation(store, "begun", format="openai-responses")
    await begun.append([shape.user("go"), *half])
    receipt = await begun.append(client, whole=True)
    assert receipt.last - receipt.first == 4  # the rest of the run, three results, and the last answer
    assert (await begun.window()).messages == (await conversation.window()).messages[: len(client)]
    assert await begun.append(client, whole=True) is None


@pytest.mark.parametrize("listed", [True, False], ids=["in the list", "left out of it"])
@lasting
async def test_o13_o18_an_answer_without_content_is_no_contradiction(place, listed):
    """The record keeps the body; a window shows nothing of it, so a client's list may have an empty message or none."""
    store, shape = place.open(), SHAPES["openai-chat"]
    conversation = Conversation(store, "c", format="openai-chat")
    async with conversation.turn("go") as turn:
        await turn.respond({"choices": [{"message": {"role": "assistant", "content": ""}}]})
        await turn.respond(shape.response("done", [])[0])
    empty = [{"role": "assistant", "content": ""}] if listed else []
    await expect_only_new(conversation, store, [shape.user("go"), *empty, *shape.response("done", [])[1]], shape)
