"""
Every recorded exchange with a provider, through the history: split, kept, windowed, and replayed turn by turn.

The recordings are those of `provider_exchanges` (see `tests/recordings.py`): 1,189 tests of
other projects, each with the requests that it made and what the services answered. A second opinion, which reads the
files with the standard library alone, counts what each request holds and writes what a window of it has to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections import Counter
from functools import cache

import pytest
from tests.budgets import budget
from tests.data.exchanges import (
    answer_items,
    as_sent,
    calls_of,
    chains,
    counts,
    left_behind,
    look,
    recordings,
    said_by_model,
    separate_results,
    violations,
)
from tests.faces.places import PLACES, Place
from tests.recordings import DATA, needs_recordings

from minutebook.conversation import Conversation
from minutebook.errors import DecisionHistoryLimitExceeded, InvalidMessage
from minutebook.model import codec
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind
from minutebook.providers.wire import FORMATS, wire_format
from minutebook.testing.fakes import anthropic, gemini, openai_chat, openai_responses

pytestmark = needs_recordings

HUGE = 2**40
WHOLE = WindowLimits(max_messages=HUGE, max_bytes=HUGE, low_water=1)
RULES = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
KINDS = {
    Kind.INPUT: "turns",
    Kind.INJECTION: "said",
    Kind.RESPONSE: "exchanges",
    Kind.RESULT: "results",
    Kind.INSTRUCTIONS: "instructions",
}
TESTS = 1_189
"""How many tests the files hold."""
REFUSED_HISTORIES = {
    "anthropic: instructions inside a transcript": 11,
    "openai-responses: instructions inside a transcript": 1,
    "gemini: the role is unknown": 1,
}
"""Requests whose history is refused, and why: the last is a recorded mistake, which Google refused too."""
EXCEPTIONS = {
    "instructions at the head": 169,  # sent with each request, in no window
    "answers and results before any input": 61,  # kept, and a window opens with an input
    "answers with nothing to send": 6,
    "a message's role written before its list": 683,  # the grouped formats send the list alone back, byte for byte
    "messages of one side joined": 6,  # of the model while a call waits, as the services join them
    "call ids told apart": 2,
    "members left out that say nothing": 14,  # nulls, empty lists, places of a stream: others than OpenAI take them
}
"""All that the window of a whole history changes, and at how many messages; every other byte is the recorded one."""
REFUSED_ANSWERS = {
    "anthropic: a result has nothing beside it; this message has": 2,
    "openai-chat: 2 choices where exactly one is kept; ask for one": 8,
    "openai-chat: a JSON object is needed here, not a NoneType": 3,  # a filtered prompt: a choice without a message
    "openai-chat: no input was recorded that an answer could be for": 18,  # instructions alone were sent
    "gemini: the prompt was blocked (MODEL_ARMOR), so the body holds no answer; leave the turn without one, or ask "
    "otherwise": 1,
}
"""Answers that a turn does not take, and why."""


@cache
def recorded():
    """Return the recorded tests; nothing changes them."""
    return tuple(recordings(DATA / "provider_exchanges"))


def requests(name):
    """Return (id, request) of every recorded request in a format that has a history."""
    for recording in recorded():
        for number, request in enumerate(recording.requests):
            if request.name == name and request.items:
                yield f"{recording.id} {number}", request


def without_place(error):
    """Return the text of a refusal without where it was, which is another one in each recording."""
    return str(error).removeprefix(f"{error.path}: ")


async def appended(store, id_, request, refused=None):
    """Return a conversation with a request's history, or `None` where that is refused."""
    conversation = Conversation(store, id_, format=request.name)
    try:
        await conversation.append(request.items, id="import")
    except InvalidMessage as error:
        if refused is None:
            raise
        refused[f"{request.name}: {re.split('[;,]', without_place(error))[0]}"] += 1
        return None
    return conversation


def tally(entries):
    """Return how many turns, exchanges, calls, results, instructions and further messages a record holds."""
    found = Counter(KINDS[entry.kind] for entry in entries)
    return +(found + Counter(calls=sum(len(entry.calls) for entry in entries)))


async def told(conversation):
    """Return the entries of a conversation."""
    return [entry async for entry in conversation.entries()]


def with_ids_masked(messages):
    """Return messages as text, every id of a call replaced: some were told apart."""
    return re.sub(r'"(id|tool_use_id|call_id|tool_call_id)": "[^"]*"', r'"\1": "…"', json.dumps(messages))


def same(window, sent, told):
    """Return whether a window is, byte for byte, what the second opinion says; told-apart ids aside."""
    if told["call ids told apart"]:
        return with_ids_masked(json.loads(window)) == with_ids_masked(json.loads(sent))
    return window == sent


# --- split, kept and given back --------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLACES)
def test_i22_c2_every_recorded_request_is_split_as_counted_and_given_back_byte_for_byte(kind, tmp_path, figure):
    """Turns, exchanges, calls and results equal an independent count; what a window changes is a closed list."""
    figures, refused, changed, kept = Counter(), Counter(), Counter(), []

    async def main():
        place = Place(kind, tmp_path)
        store = place.open()
        for name in FORMATS:
            for id_, request in requests(name):
                if await appended(store, id_, request, refused):
                    kept.append((id_, request))
        store = place.open()
        for id_, request in kept:
            conversation = Conversation(store, id_, format=request.name)
            found = tally(await told(conversation))
            assert found == counts(request.name, request.items), id_
            sent, changes = as_sent(request.name, request.items)
            assert same((await conversation.window(WHOLE)).json, sent, changes), id_
            changed.update(changes)
            figures.update(found)
            figures["requests"] += 1
            figures["messages"] += len(request.items)
            figures["requests unchanged"] += not set(changes) - {"instructions at the head"}
        await place.close()

    asyncio.run(main())
    figure(", ".join(f"{value:,} {what}" for what, value in figures.items()))
    figure("changed: " + ", ".join(f"{value:,} {what}" for what, value in changed.items()))
    assert dict(refused) == REFUSED_HISTORIES
    assert dict(changed) == EXCEPTIONS
    assert figures["requests"] + sum(refused.values()) == sum(len(list(requests(name))) for name in FORMATS)


# --- windows ---------------------------------------------------------------------------------------------------------


MEANT = {
    "openai-chat": {
        r"^Unknown parameter: ": 32,  # fields of other vendors
        r"^Invalid value or type for ": 4,  # such values
        r"^Missing required parameter: ": 1,  # a call without its type
        r"wrong length\. Expected \d+ to \d+ characters": 1,  # an id that another vendor made
    },
    "openai-responses": {
        r"provided without its required following item": 4,  # a client's own words instead of the item; 1 refused
        r"^No tool call found for function call output with call_id search_call": 1,  # the answer of another kind
        r"^Nothing was compacted here": 1,
    },
    "anthropic": {
        r"^messages\.\d+\.content\.\d+\.(type|name): ": 3,  # blocks of tools that a beta runs there
        r"`tool_use` ids must be unique": 2,  # one id for two calls: told apart in every window
        r"`tool_use` ids were found without": 2,  # two messages of the model, joined there and in every window
    },
    "gemini": {
        r"^You do not have permission to access the File": 26,
        r"^Please ensure that function call turn comes immediately": 4,  # contents of the model, joined likewise
    },
}
"""Recorded histories that the fake means to refuse: a pattern of its words, and how many requests."""
MENDED = ("`tool_use` ids", "^Please ensure")
"""What is wrong with a recorded history for the fake, and with no window of it."""


def limits_of(window):
    """Return limits at every number of messages."""
    return [WindowLimits(max_messages=count, max_bytes=HUGE, low_water=1) for count in range(1, len(window) + 1)]


def at_bytes(*sizes):
    """Return limits of so many bytes."""
    return [WindowLimits(max_messages=HUGE, max_bytes=size, low_water=1) for size in sizes if size > 1]


async def judged(conversation, name, meant, figures):
    """Build windows at all limits; each breaks no plain rule, and none of the fake's but what `meant` says."""
    whole = await conversation.window(WHOLE)
    left, sizes, seen = limits_of(whole), set(), set()
    sizes_tried = budget(range(0), range(2, len(whole.json), 1 + len(whole.json) // 128))
    left += [limits for size in sizes_tried for limits in at_bytes(size)]
    while left:
        limits = left.pop()
        try:
            window = await conversation.window(limits)
        except DecisionHistoryLimitExceeded as error:
            needed = error.messages > limits.max_messages or error.bytes > limits.max_bytes
            figures["refused" if needed else "refused without need"] += 1
            continue
        figures["windows"] += 1
        assert len(window) <= limits.max_messages
        assert len(window.json) <= limits.max_bytes
        if len(window.json) not in sizes and len(window):
            sizes.add(len(window.json))
            left += at_bytes(len(window.json) - 1, len(window.json), len(window.json) + 1)
        if window.json in seen:
            continue
        seen.add(window.json)
        messages = json.loads(window.json)
        assert violations(name, messages) == 0
        problem = RULES[name].check_messages(messages)
        figures["different windows"] += 1
        assert problem is None or (meant and re.search(meant, problem.message)), problem
    figures["cut"] += len(seen) - 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", budget(PLACES[:1], PLACES))
def test_i22_every_window_of_every_recorded_request_passes_the_strict_fake(kind, name, tmp_path, figure):
    """Every number of messages, and the bytes around every cut: what the fake refuses stood in the recorded request."""
    figures, refused = Counter(), Counter()

    async def main():
        place = Place(kind, tmp_path)
        store = place.open()
        for id_, request in requests(name):
            conversation = await appended(store, id_, request, Counter())
            if conversation is None or not len(await conversation.window(WHOLE)):
                figures["nothing to send"] += 1
                continue
            given = [item for item in request.items if look(name, item).side != "instructions"]
            problem = RULES[name].check_messages(given)
            meant = None
            if problem is not None:
                meant = next(pattern for pattern in MEANT[name] if re.search(pattern, problem.message))
                refused[meant] += 1
            mended = meant is not None and any(word in meant for word in MENDED)
            await judged(conversation, name, None if mended else meant, figures)
        await place.close()

    asyncio.run(main())
    figure(", ".join(f"{value:,} {what}" for what, value in figures.items()))
    assert dict(refused) == MEANT[name]
    assert not figures["refused without need"]
    assert figures["cut"] > 20


def one_after_another(name):
    """Return the histories of a format that the fake takes, each answer once, to be those of one conversation."""
    met = set()
    for recording in recorded():
        for chain in chains([request for request in recording.requests if request.name == name], Counter()):
            items = chain[-1].items
            items = list(itertools.dropwhile(lambda item: look(name, item).side == "instructions", items))
            sides = [look(name, item).side for item in items]
            answered = {item["id"] for item in items if item.get("id")}  # items of Responses: some tests share them
            if sides[:1] != ["user"] or "instructions" in sides or answered & met or RULES[name].check_messages(items):
                continue
            met |= answered
            yield items


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
def test_i22_o09_all_recorded_histories_in_one_conversation_are_legal_at_every_limit(name, tmp_path, figure):
    """Hundreds of recorded turns one after another: every cut passes the fake, ids that come twice told apart."""
    figures = Counter()

    async def main():
        place = Place("ram", tmp_path)
        conversation = Conversation(place.open(), "all", format=name)
        repeated, ids = 0, set()
        for items in one_after_another(name):
            await conversation.append(items)
            figures["histories"] += 1
            calls = {call for item in items for call in look(name, item).calls}
            repeated += len(calls & ids)
            ids |= calls
        whole = await conversation.window(WHOLE)
        figures.update(messages=len(whole), bytes=len(whole.json), **{"ids that came twice": repeated})
        step = budget(1 + len(whole) // 60, 1)
        limits = [WindowLimits(max_messages=n, max_bytes=HUGE, low_water=1) for n in range(8, len(whole) + 1, step)]
        for limit in (*limits, *at_bytes(*range(len(whole.json), 10_000, -(len(whole.json) // 40)))):
            window = await conversation.window(limit)
            messages = json.loads(window.json)
            assert RULES[name].check_messages(messages) is None
            assert violations(name, messages) == 0
            figures["windows"] += 1

    asyncio.run(main())
    figure(", ".join(f"{value:,} {what}" for what, value in figures.items()))
    assert figures["histories"] > 100
    assert figures["windows"] > 50
    assert figures["ids that came twice"] > 0 or name == "openai-responses"


# --- turn by turn ----------------------------------------------------------------------------------------------------


CHANGED = {
    "the ids of an answer's calls changed": 7,
    "a call added to an answer, or left out of it": 3,
}
"""What goes on from an answer whose calls the client had changed; it begins a chain of its own."""
REWRITTEN = {"openai-chat": 9, "openai-responses": 1}
"""Chains whose client put other text into an answer: thoughts of the model, or other quotation marks."""


def steps(chain):
    """Yield what happened after a chain's first request was made: ("answer" | "result" | "user", what it was)."""
    run = []
    for before, after in itertools.zip_longest(chain, chain[1:]):
        # Items of the model that a client wrote behind the results: the answer goes on from them.
        yield "answer", [*run, *before.response["output"]] if run else before.response
        if after is None:
            return
        new, place = left_behind(before, after)
        run = []
        for item in new[place:]:
            side = look(after.name, item).side
            if side == "model":
                run.append(item)
                continue
            yield from written(after.name, run)
            run = []
            yield ("result" if side == "results" else side), item
        if after.name != "openai-responses":
            yield from written(after.name, run)
            run = []


def written(name, run):
    """Yield the model's messages that a client wrote by hand, as answers."""
    if name == "openai-responses" and run:
        yield "answer", run
    else:
        yield from (("answer", item) for item in run)


class Replay:
    """A client that goes through a chain: its first history is recorded already, the rest happens in turns."""

    def __init__(self, conversation, name):
        self.conversation = conversation
        self.name = name
        self.figures = Counter()
        self.waiting = []
        self.turn = None
        self.asked = False

    async def go(self, chain):
        """Take all steps; calls that the last answer makes are left waiting."""
        async with contextlib.AsyncExitStack() as turns:
            header = await self.conversation.store.header(self.conversation.key)
            if header is not None and header.state.turn:
                self.turn = await turns.enter_async_context(self.conversation.turn())
            for what, item in steps(chain):
                if what == "user" and not self.waiting and not self.asked:
                    await turns.aclose()
                    self.turn = await turns.enter_async_context(self.conversation.turn(item))
                    self.asked = True
                    self.figures["turns"] += 1
                elif self.turn is None:
                    raise InvalidMessage("no input was recorded that an answer could be for")
                else:
                    await {"answer": self.answer, "result": self.result, "user": self.turn.say}[what](item)
            for call in self.waiting:
                await self.turn.park(call)

    async def answer(self, body):
        """Give an answer as it was received."""
        await self.turn.window(WHOLE)
        self.waiting = await self.turn.respond(codec.encode(body))
        self.asked = False
        assert len(self.waiting) == calls_of(self.name, body)
        self.figures["answers"] += 1
        self.figures["calls"] += len(self.waiting)

    async def result(self, item):
        """Give each result of a message with its own call."""
        for answered, result in separate_results(self.name, item, [call.id for call in self.waiting]):
            call = next(call for call in self.waiting if answered == (call.id or call.name))
            self.waiting.remove(call)
            await self.turn.result(call, result, raw=True)
            self.figures["results"] += 1


def story(name, entries):
    """
    Return what a record tells in order, and beside it what the model said, which some clients write in other words.

    Ids of Gemini's calls are left out: where the service gives none, clients make their own.
    """
    out, said, turn, exchange = [], [], 0, 0
    for entry in entries:
        if entry.kind is Kind.RESULT:
            continue
        if entry.kind is not Kind.RESPONSE:
            turn += entry.kind is Kind.INPUT
            out.append((entry.kind.name, turn, entry.payload))
        elif entry.fragment:  # an answer without anything to send is written down by some clients alone
            exchange += 1
            calls = [("" if name == "gemini" else call.id, call.name) for call in entry.calls]
            results = [e.fragment for e in entries if e.kind is Kind.RESULT and e.exchange == entry.seq and e.fragment]
            sent = b",".join(results)
            sent = re.sub(rb'"id":"[^"]*",?', b"", sent) if name == "gemini" else sent
            text, arguments = said_by_model(name, entry.fragment)
            out.append((entry.kind.name, turn, exchange, calls, arguments, sent))
            said.append(text)
    return out, said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLACES)
def test_c2_c4_recorded_tests_replayed_turn_by_turn_give_the_record_of_their_last_request(kind, tmp_path, figure):
    """
    Each answer as a turn's response, results as sent: the record equals the append of the last request.

    On its short budget SQLite gets those of several requests alone.
    """
    figures, histories, refused, changed, rewritten = Counter(), Counter(), Counter(), Counter(), Counter()
    least = 1 if kind == "ram" else budget(2, 1)

    async def main():
        place = Place(kind, tmp_path)
        store = place.open()
        for recording in recorded():
            for number, chain in enumerate(chains(recording.requests, changed)):
                name, id_ = chain[0].name, f"{recording.id} {number}"
                if len(chain) < least:
                    continue
                last = await appended(store, f"{id_} last", chain[-1], histories)
                first = await appended(store, id_, chain[0]) if last else None
                if first is None:
                    continue
                replay = Replay(first, name)
                try:
                    await replay.go(chain)
                except InvalidMessage as error:
                    refused[f"{name}: {without_place(error).partition('; this conversation')[0]}"] += 1
                    continue
                figures.update(replay.figures)
                figures["chains" if len(chain) > 1 else "single requests"] += 1
                found, said = story(name, await told(first))
                wanted, written_down = story(name, await told(last))
                assert found[: len(wanted)] == wanted, id_
                assert len(found) <= len(wanted) + 1
                rewritten[name] += said[: len(written_down)] != written_down
        await place.close()

    asyncio.run(main())
    figure(", ".join(f"{value:,} {what}" for what, value in figures.items()))
    assert set(histories) <= set(REFUSED_HISTORIES)
    assert least > 1 or dict(refused) == REFUSED_ANSWERS
    assert set(refused) <= set(REFUSED_ANSWERS)
    assert dict(changed) == CHANGED
    assert dict(+rewritten) == REWRITTEN


@pytest.mark.parametrize("kind", PLACES)
def test_o11_recorded_answers_of_gemini_alone_go_back_part_for_part(kind, tmp_path, figure):
    """Answers whose requests were not recorded: each is a turn's response, its parts sent back as they came."""
    figures = Counter()

    async def main():
        place = Place(kind, tmp_path)
        store = place.open()
        for recording in recorded():
            answers = [r.response for r in recording.requests if r.name == "gemini" and not r.items]
            if not answers:
                continue
            conversation = Conversation(store, recording.id, format="gemini")
            sent = []
            for answer in answers:
                async with conversation.turn("go on") as turn:
                    calls = await turn.respond(codec.encode(answer))
                    assert len(calls) == calls_of("gemini", answer)
                    for call in calls:
                        await turn.result(call, {"done": call.name})
                parts = [part for item in answer_items("gemini", answer) for part in item["parts"]]
                figures.update(answers=1, parts=len(parts), calls=len(calls))
                sent += [{"role": "model", "parts": parts}] if parts else []
            messages = json.loads((await conversation.window(WHOLE)).json)
            assert [message for message in messages if message["role"] == "model"] == sent
            assert violations("gemini", messages) == 0
            figures["tests"] += 1
        await place.close()

    asyncio.run(main())
    figure(", ".join(f"{value:,} {what}" for what, value in figures.items()))
    assert figures["tests"] > 40
    assert figures["calls"] > 10


# --- nothing is left out ---------------------------------------------------------------------------------------------


LISTED = {
    "Bedrock, another format": 166,
    "Cohere's own chat, another format": 25,
    "Ollama's own chat, another format": 6,
    "nothing was recorded": 1,
    "refused": 8,  # every history has instructions inside, or a role of no format; see REFUSED_HISTORIES
}
"""Tests of which nothing is replayed, and why."""
PARTLY = 6
"""Tests with a request in another format too, or with one that is refused; the others are replayed."""
UNANSWERED = {
    "the service refused the request": 32,
    "a count or a compaction, no answer": 9,
}
"""Requests that are split and windowed, and whose answer is none that a turn could be given."""


def is_taken(request):
    """Return whether the history of a request is one that `append` takes, or its answer stands alone."""
    try:
        wire_format(request.name).transcript(request.items)
    except InvalidMessage:
        return False
    return bool(request.items or request.response)


def test_i22_all_recorded_tests_are_replayed_or_listed_with_their_reason(figure):
    """100 % of the tests in the files: those without a history in one of the four formats are listed, not counted."""
    figures, listed, formats, made, unanswered = Counter(), Counter(), Counter(), Counter(), Counter()
    for recording in recorded():
        ours = [request for request in recording.requests if request.name]
        taken = [request for request in ours if is_taken(request)]
        if taken:
            figures["replayed"] += 1
            figures["partly"] += any(request not in taken for request in recording.requests)
            formats.update({request.name for request in taken})
        else:
            reasons = {request.foreign or "refused" for request in recording.requests} or {"nothing was recorded"}
            listed[", ".join(sorted(reasons))] += 1
        made.update(request.name or request.foreign for request in recording.requests)
        unanswered.update(request.failed for request in ours if request.response is None)
    figure(f"{figures['replayed']:,} of {TESTS:,} tests replayed, {figures['partly']} of them in part")
    figure("tests of a format: " + ", ".join(f"{name} {count:,}" for name, count in formats.items()))
    figure("tests listed: " + "; ".join(f"{count:,} {reason}" for reason, count in listed.items()))
    figure("requests: " + "; ".join(f"{count:,} {name}" for name, count in made.items()))
    assert figures["replayed"] + sum(listed.values()) == len(recorded()) == TESTS
    assert dict(listed) == LISTED
    assert figures["partly"] == PARTLY
    assert dict(unanswered) == UNANSWERED


# --- controls --------------------------------------------------------------------------------------------------------


def with_results(name):
    """Return a recorded request with results, of calls that the fake knows."""
    found = (request for _, request in requests(name) if counts(name, request.items)["results"] > 1)
    return next(request for request in found if "tool_search" not in json.dumps(request.items))


def altered(items):
    """Return messages with one letter of the last text that has any put in the other case."""
    text = json.dumps(items)
    place = max(found.end() for found in re.finditer(r'"(text|content|output|return_value)": ?"[a-zA-Z]', text)) - 1
    return json.loads(text[:place] + text[place].swapcase() + text[place + 1 :])


@pytest.mark.parametrize("name", FORMATS)
def test_i22_a_planted_dropped_result_and_a_changed_byte_are_found(name, tmp_path):
    """The checks above could only pass: a window without a result, a record without one, one letter changed."""
    request = with_results(name)
    sent, changes = as_sent(name, request.items)

    async def window(items):
        place = Place("ram", tmp_path)
        conversation = Conversation(place.open(), "c", format=name)
        await conversation.append(items)
        return (await conversation.window(WHOLE)).json, tally(await told(conversation))

    whole, counted = asyncio.run(window(request.items))
    assert same(whole, sent, changes)
    assert counted == counts(name, request.items)
    messages = json.loads(whole)
    assert violations(name, messages) == 0
    dropped = next(n for n, message in enumerate(messages) if look(name, message).side == "results")
    less = messages[:dropped] + messages[dropped + 1 :]
    assert violations(name, less) > 0
    assert RULES[name].check_messages(less) is not None
    last = max(n for n, item in enumerate(request.items) if look(name, item).side == "results")
    shorter, fewer = asyncio.run(window(request.items[:last]))
    assert not same(shorter, sent, changes)
    assert fewer != counts(name, request.items)
    other, _ = asyncio.run(window(altered(request.items)))
    assert not same(other, sent, changes)
    assert len(other) == len(whole)
