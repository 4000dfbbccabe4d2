"""
Answers given as an SDK dumps them: every member that the type has, null or not, in the record; and what is sent.

The clients are the real ones and the fakes hold every request to the SDK's own request types.
"""

from __future__ import annotations

import functools
import json
import random

import anthropic
import httpx2
import openai
import pytest
from openai.types.chat import ParsedChatCompletion

from minutebook.errors import DecisionHistoryConflict, InvalidMessage, PairingViolation
from minutebook.model.entries import Kind
from minutebook.providers import chat
from minutebook.providers.wire import _slices, openai_chat, openai_responses, wire_format
from minutebook.sync import Conversation, MemoryStore
from minutebook.testing.fakes import Answer, FunctionCall, ProviderFake
from minutebook.testing.fakes.openai_chat import check_messages

FORMS = {
    "model_dump": lambda reply: reply.model_dump(),
    "json dump": lambda reply: reply.model_dump(mode="json"),
    "without none": lambda reply: reply.model_dump(exclude_none=True),
    "to_dict": lambda reply: reply.to_dict(),
    "object": lambda reply: reply,
}
CALLING = Answer(text="Let me look.", calls=(FunctionCall("look", {"place": None}),))
SCRIPT = (CALLING, Answer(text="It is there."), Answer(text="Still there."))
LOOK = {"name": "look", "input_schema": {"type": "object"}}
QUESTION = {"role": "user", "content": "Where is it?"}


class Chat:
    """Chat Completions by the real client."""

    name = "openai-chat"

    def __init__(self, url: str) -> None:
        self.client = openai.OpenAI(api_key="k", base_url=url, max_retries=0)

    def ask(self, messages):
        return self.client.chat.completions.create(model="m", messages=messages)

    def said(self, reply, form):
        return [form(reply.choices[0].message)]

    def result(self, call):
        return {"role": "tool", "tool_call_id": call, "content": "here"}


class Responses(Chat):
    """Responses by the real client."""

    name = "openai-responses"

    def ask(self, messages):
        return self.client.responses.create(model="m", input=messages, store=False)

    def said(self, reply, form):
        return [form(item) for item in reply.output]

    def result(self, call):
        return {"type": "function_call_output", "call_id": call, "output": "here"}


class Messages:
    """Anthropic Messages by the real client."""

    name = "anthropic"

    def __init__(self, url: str) -> None:
        self.client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)

    def ask(self, messages):
        return self.client.messages.create(model="m", messages=messages, max_tokens=1024, tools=[LOOK])

    def said(self, reply, form):
        return [form(reply)]

    def result(self, call):
        block = {"type": "tool_result", "tool_use_id": call, "content": "here"}
        return {"role": "user", "content": [block]}


APIS = {api.name: api for api in (Chat, Responses, Messages)}
each_api = pytest.mark.parametrize("name", APIS)
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def loop(api, conversation, form):
    """Take a turn with a call, and one without; every request is a window."""
    with conversation.turn(QUESTION) as turn:
        calls = turn.respond(form(api.ask(turn.window().messages)))
        while calls:
            for call in calls:
                turn.result(call, "here")
            calls = turn.respond(form(api.ask(turn.window().messages)))
    with conversation.turn("And now?") as turn:
        turn.respond(form(api.ask(turn.window().messages)))


@each_form
@each_api
def test_c2_an_answer_in_any_form_that_an_sdk_gives_it_goes_back_in_a_form_that_is_taken(name, form):
    """The request behind a recorded dump, and the one of the next turn, break no rule; the record keeps every null."""
    with ProviderFake(name, SCRIPT) as fake:
        conversation = Conversation(MemoryStore(), "c", format=name)
        loop(APIS[name](fake.base_url), conversation, form)
        assert not fake.refused
        assert len(fake.requests) == 3
        answers = [entry.payload for entry in conversation.entries() if entry.kind is Kind.RESPONSE]
        assert len(answers) == 3
        assert form is not FORMS["model_dump"] or all(b":null" in answer for answer in answers)


@each_form
@each_api
def test_c4_a_migrated_list_of_dumps_can_be_gone_on_with(name, form):
    """`append([user, message.model_dump(), result, message.model_dump()])`, then a turn: no request is refused."""
    with ProviderFake(name, SCRIPT) as fake:
        api = APIS[name](fake.base_url)
        listed = transcript(api, form)
        conversation = Conversation(MemoryStore(), "c", format=name)
        conversation.append(listed)
        with conversation.turn("And now?") as turn:
            turn.respond(api.ask(turn.window().messages))
        assert not fake.refused


def transcript(api, form, forms=None):
    """Return the list that a client keeps of two answers and a result; in `forms`, if given, the same in each."""
    first = api.ask([QUESTION])
    sent = [QUESTION, *api.said(first, FORMS["to_dict"])]
    (call,) = wire_format(api.name).response(first).calls
    second = api.ask([*(clean(api, sent)), api.result(call.id)])
    made = [
        [QUESTION, *api.said(first, each), api.result(call.id), *api.said(second, each)] for each in forms or (form,)
    ]
    return made if forms else made[0]


def clean(api, sent):
    """Return a first request's messages as the fake takes them from a client without any history."""
    if api.name != "anthropic":
        return sent
    return [{"role": each["role"], "content": each["content"]} for each in sent]


@each_api
def test_o18_a_clients_list_is_found_in_the_record_whatever_form_its_answers_have(name):
    """Recorded from one form, sent again in another: nothing is added, and a new message alone is."""
    with ProviderFake(name, SCRIPT[:2]) as fake:
        listed = dict(zip(FORMS, transcript(APIS[name](fake.base_url), None, list(FORMS.values())), strict=True))
    for recorded in FORMS:
        for sent in FORMS:
            conversation = Conversation(MemoryStore(), "c", format=name)
            conversation.append(listed[recorded])
            assert conversation.append(listed[sent], whole=True) is None, (recorded, sent)
            assert conversation.append([*listed[sent], QUESTION], whole=True) is not None
            altered = json.dumps(listed["to_dict"]).replace("It is there.", "It is gone.")
            with pytest.raises(DecisionHistoryConflict):
                conversation.append(json.loads(altered), whole=True)


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses"])
def test_c2_the_same_dump_sent_as_it_is_is_refused(name):
    """Must fail: without a history in between, the fake refuses what `model_dump()` gives."""
    with ProviderFake(name, SCRIPT if name == "openai-responses" else SCRIPT[1:]) as fake:
        api = APIS[name](fake.base_url)
        reply = api.ask([QUESTION])
        results = [api.result(call.id) for call in wire_format(name).response(reply).calls]
        with pytest.raises(openai.BadRequestError, match=r"async_|tool_calls"):
            api.ask([QUESTION, *api.said(reply, FORMS["model_dump"]), *results, QUESTION])


MESSAGE = {"role": "assistant", "content": "hi", "refusal": None}


@pytest.mark.parametrize(
    ("members", "sent"),
    [
        ({"tool_calls": None}, {}),
        ({"tool_calls": []}, {}),
        ({"function_call": None, "audio": None, "annotations": None, "name": None}, {}),
        ({"parsed": {"a": [None]}}, {}),
        ({"audio": {"id": "a1", "data": "AA==", "expires_at": 1, "transcript": "t"}}, {"audio": {"id": "a1"}}),
        ({"annotations": []}, {"annotations": []}),
        ({"reasoning_content": "null [] audio"}, {"reasoning_content": "null [] audio"}),
    ],
)
def test_c2_chat_leaves_out_what_no_request_holds_and_no_other_member(members, sent):
    """Nulls but for content and refusal, calls that are none, an audio's data; the rest byte for byte."""
    wire = wire_format("openai-chat")
    payload = json.dumps({**MESSAGE, **members}, indent=1).encode()
    draft = wire.response(payload)
    left = wire.sendable(payload[draft.start : draft.stop])
    assert json.loads(left) == {**MESSAGE, **sent}
    assert draft.payload == payload
    assert draft.size == len(left)
    assert wire.sendable(left) == left


def test_c2_what_goes_back_whole_is_the_same_object():
    """Nothing was written anew; where a search of the bytes is enough, nothing was read either."""
    calling = json.dumps({**MESSAGE, "content": None, "tool_calls": CALLS}, indent=2).encode()
    for name, fragment in (
        ("openai-chat", calling),
        ("openai-responses", b'{"type":"message","content":[]} not JSON'),
        ("gemini", b'[{"text":"hi"}] not JSON'),
    ):
        assert wire_format(name).sendable(fragment) is fragment


EMPTY = [{}, [], "", 0, False, None]


@pytest.mark.parametrize("written", [json.dumps, lambda value: json.dumps(value, indent=1)], ids=["plain", "spread"])
@pytest.mark.parametrize("nothing", EMPTY, ids=map(json.dumps, EMPTY))
@pytest.mark.parametrize("name", ["tool_calls", "function_call", "audio", "content", "refusal"])
def test_o13_a_member_that_a_server_wrote_with_nothing_in_it_is_not_sent(name, nothing, written):
    """Beside what the answer does say; an empty text or a null of content and refusal are what the API takes itself."""
    said = {"role": "assistant", "content": "hi"} if name != "content" else {"role": "assistant", "refusal": "no"}
    wire = wire_format("openai-chat")
    payload = written({**said, name: nothing}).encode()
    draft = wire.response(payload)
    assert draft.messages == 1
    assert draft.calls == ()
    taken = name in ("content", "refusal") and (nothing is None or nothing == "")
    sent = json.loads(wire.sendable(draft.payload[draft.start : draft.stop]))
    assert sent == ({**said, name: nothing} if taken else said)
    assert not check_messages([QUESTION, sent])


@pytest.mark.parametrize(
    "members",
    [
        {"function_call": {"name": "", "arguments": ""}},
        {"function_call": {"name": None, "arguments": None}},
        {"audio": {"data": "AA==", "expires_at": 1, "transcript": "t"}},
        {"audio": {"id": "", "data": ""}},
        {"audio": {"id": None, "data": "AA=="}},
    ],
)
def test_o13_a_call_without_a_name_and_an_audio_without_an_id_are_nothing(members):
    """They are sent beside nothing, and alone they are no answer."""
    wire = wire_format("openai-chat")
    draft = wire.response({**MESSAGE, **members})
    assert json.loads(wire.sendable(draft.payload[draft.start : draft.stop])) == MESSAGE
    assert wire.response({**MESSAGE, "content": None, **members}).messages == 0


@pytest.mark.parametrize("content", [7, True, {"text": "hi"}])
def test_bad_input_25_content_that_is_neither_text_nor_parts_is_refused(content):
    """No request could hold it, so none of the conversation's would be taken again."""
    with pytest.raises(InvalidMessage, match="neither a text nor a list of parts") as refusal:
        wire_format("openai-chat").response({"role": "assistant", "content": content})
    assert refusal.value.facts["path"] == "$.content"


@pytest.mark.parametrize(
    ("name", "written", "left"),
    [
        ("openai-chat", rb'{"content":"x","tool_c\u0061lls":[]}', b'{"content":"x"}'),
        ("openai-chat", rb'{"content":"x","p\u0061rsed":{}}', b'{"content":"x"}'),
        (
            "openai-chat",
            rb'{"content":"","\u0061udio":{"id":"a","d\u0061ta":"z"}}',
            b'{"content":"","audio":{"id":"a"}}',
        ),
        ("openai-chat", rb'{"content":"x","a\"content":null}', b'{"content":"x"}'),
        (
            "openai-responses",
            rb'{"type":"function_call","call_id":"c","name":"f","arguments":"{}","p\u0061rsed_arguments":{}}',
            b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}',
        ),
    ],
)
def test_c2_a_name_written_with_escapes_is_the_same_name(name, written, left):
    """JSON has several spellings of one text; what is refused is refused in each."""
    assert wire_format(name).sendable(written) == left


NAMES = [
    *("role", "content", "refusal", "audio", "tool_calls", "parsed", "function_call", "annotations", "x"),
    *('a"content', 'a"refusal', "id", "data", "index", "type", "function", "parsed_arguments", "arguments", "name"),
]


def escaped(draw, text):
    """Return a JSON text in which some characters are written as escapes."""
    plain = json.dumps(text)[1:-1]
    chosen = [f"\\u{ord(each):04x}" if each.isalpha() and draw.random() < 0.1 else each for each in plain]
    return f'"{"".join(chosen)}"' if "\\" not in plain else f'"{plain}"'


def written_json(draw, depth):
    """Return random JSON, as a text, of the names that matter and values that look like them."""
    chance = draw.random()
    if chance < 0.35:
        return draw.choice(["null", "{}", "[]", '""', "0", "false", "true", "7"])
    if chance < 0.5 or depth > 3:
        return escaped(draw, draw.choice(["hi", '"content":null', '"tool_calls":[]', "null", '"parsed']))
    blank = draw.choice(["", " ", "\n\t"])
    if chance < 0.65:
        return f"[{blank}{f',{blank}'.join(written_json(draw, depth + 1) for _ in range(draw.randrange(3)))}]"
    names = draw.sample(NAMES, draw.randrange(5))
    return f"{{{blank}{f',{blank}'.join(member(draw, name, depth, blank) for name in names)}{blank}}}"


def member(draw, name, depth, blank):
    """Return a member, now and then with the calls that nearly all messages have."""
    value = json.dumps(CALLS) if name == "tool_calls" and draw.random() < 0.5 else written_json(draw, depth + 1)
    return f"{escaped(draw, name)}{blank}:{blank}{value}"


def random_messages(count):
    """Yield random messages, names written with escapes among their members."""
    draw = random.Random(20261130)
    for _ in range(count):
        names = draw.sample(NAMES, draw.randrange(1, 6))
        blank = draw.choice(["", " "])
        yield f"{{{','.join(member(draw, each, 0, blank) for each in names)}}}".encode()


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses", "a chat"])
def test_c2_the_quick_look_at_a_message_agrees_with_the_slow_one(name):
    """Over random messages: what is sent is what looking at each member leaves."""
    wire, whole, left = chat.CHAT_WIRE if name == "a chat" else wire_format(name), 0, 0
    for fragment in random_messages(6_000):
        sent = wire.sendable(fragment)
        assert sent == SLOW[name](fragment), fragment
        whole, left = whole + (sent is fragment), left + (sent is not fragment)
    assert min(whole, left) > 300
    print(f"{name}: {whole:,} messages went back whole, {left:,} without what is refused, 0 disagreements")


@pytest.mark.parametrize("name", ["openai-chat", "openai-responses"])
def test_c2_a_quick_look_that_does_not_read_escapes_is_found_out(name):
    """Must fail: a search of the bytes for what is refused agrees with looking at each member no more."""
    found = (fragment for fragment in random_messages(6_000) if b"null" not in fragment and b"parsed" not in fragment)
    assert any(SLOW[name](fragment) != fragment for fragment in found)


SLOW = {
    "openai-chat": lambda fragment: _slices.without(fragment, openai_chat._is_refused, openai_chat._WITHIN),
    "openai-responses": openai_responses._sendable,
    "a chat": lambda fragment: chat._with_whole_calls(SLOW["openai-chat"](fragment)),
}
"""What is sent by looking at every member, in each format whose `sendable` has a way around that."""


def test_c2_the_final_completion_of_the_stream_helper_goes_back():
    """`client.chat.completions.stream` leaves `index` in each call; as it is, the fake refuses it (must fail)."""
    with ProviderFake("openai-chat", SCRIPT) as fake:
        client = Chat(fake.base_url).client

        def ask(messages):
            with client.chat.completions.stream(model="m", messages=messages) as stream:
                return stream.get_final_completion()

        conversation = Conversation(MemoryStore(), "c", format="openai-chat")
        with conversation.turn(QUESTION) as turn:
            first = ask(turn.window().messages)
            for call in turn.respond(first):
                turn.result(call, "here")
            turn.respond(ask(turn.window().messages))
        with conversation.turn("And now?") as turn:
            turn.respond(ask(turn.window().messages))
        assert len(fake.requests) == 3
        assert not fake.refused
        call = first.choices[0].message.tool_calls[0].to_dict()
        assert call["function"].pop("parsed_arguments") is None
        assert call["index"] == 0
        tool = {"role": "tool", "tool_call_id": call["id"], "content": "here"}
        with pytest.raises(openai.BadRequestError, match="index"):
            ask([QUESTION, {"role": "assistant", "tool_calls": [call]}, tool])


def test_c2_what_parse_adds_to_an_answer_is_not_sent():
    """`chat.completions.parse` gives `parsed` and `parsed_arguments` beside what the model said."""
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    message = {**MESSAGE, "parsed": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    parsed = ParsedChatCompletion.model_validate(
        {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )
    wire = wire_format("openai-chat")
    for form in FORMS.values():
        draft = wire.response(form(parsed))
        assert b"parsed" not in wire.sendable(draft.payload[draft.start : draft.stop])


NULLS = {"function_call": None, "function_response": None, "inline_data": None, "thought": None}


def test_c2_a_dump_of_geminis_parts_is_read_and_sent_without_its_nulls():
    """`model_dump(mode="json")` names every kind of part in each; a call's own null stays."""
    call = {"id": "1", "args": {"a": None}, "name": "f", "partial_args": None}
    parts = [{**NULLS, "text": "hi"}, {**NULLS, "text": None, "function_call": call, "thought_signature": "c2ln"}]
    wire = wire_format("gemini")
    draft = wire.response({"role": "model", "parts": parts})
    assert [(made.id, made.name) for made in draft.calls] == [("1", "f")]
    sent = json.loads(wire.sendable(draft.payload[draft.start : draft.stop]))
    call.pop("partial_args")
    assert sent == [{"text": "hi"}, {"function_call": call, "thought_signature": "c2ln"}]


def test_c2_the_nulls_of_an_item_that_its_type_takes_stay():
    """Nulls that a service writes itself and takes back are sent as they came."""
    items = [
        {"type": "mcp_call", "id": "m", "error": None, "output": None, "status": None, "arguments": "{}", "name": "n"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "null", "status": None, "id": None},
        {"type": "code_interpreter_call", "id": "i", "code": None, "outputs": None},
    ]
    wire = wire_format("openai-responses")
    draft = wire.response(items)
    left = json.loads(b"[%b]" % wire.sendable(draft.payload[draft.start : draft.stop]))
    assert left[0] == {"type": "mcp_call", "id": "m", "error": None, "output": None, "arguments": "{}", "name": "n"}
    assert left[1] == {"type": "function_call", "call_id": "c", "name": "f", "arguments": "null", "status": None}
    assert left[2] == items[2]


CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("name", "message", "path"),
    [
        ("openai-responses", {"role": "assistant", "content": "hi", "tool_calls": CALLS}, "$[1].tool_calls"),
        ("openai-responses", {"role": "assistant", "content": "hi", "annotations": []}, "$[1].annotations"),
        ("openai-responses", {"role": "user", "content": "hi", "tool_calls": None}, "$[1].tool_calls"),
        ("openai-responses", {"role": "user", "content": [{"type": "text", "text": "hi"}]}, "$[1].content[0]"),
        ("openai-chat", {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, "$[1].type"),
        ("openai-chat", {"type": "function_call_output", "call_id": "c", "output": "o"}, "$[1].type"),
        ("openai-chat", {"type": "message", "role": "assistant", "content": "hi"}, "$[1].type"),
        ("openai-chat", {"role": "assistant", "content": "hi", "phase": "final_answer"}, "$[1].phase"),
        ("openai-chat", {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, "$[1].content[0]"),
        ("openai-chat", {"role": "user", "content": [{"type": "input_text", "text": "a"}]}, "$[1].content[0]"),
    ],
)
def test_o12_members_of_openais_other_api_are_refused_by_name(name, message, path):
    """A message of the other API would have every later request refused; nothing of it is recorded."""
    conversation = Conversation(MemoryStore(), "c", format=name)
    other = "openai-chat" if name == "openai-responses" else "openai-responses"
    with pytest.raises(InvalidMessage, match=f"of the format {other}") as refusal:
        conversation.append([QUESTION, message])
    assert refusal.value.facts["path"] == path
    assert list(conversation.entries()) == []


def test_bad_input_47_unknown_members_of_the_same_api_pass():
    """What nobody knows is a newer field, or a local server's own."""
    for name in ("openai-chat", "openai-responses"):
        conversation = Conversation(MemoryStore(), "c", format=name)
        conversation.append([QUESTION, {"role": "assistant", "content": "hi", "reasoning_content": "so", "new": 1}])
        assert b'"new":1' in conversation.window().json


@pytest.mark.parametrize("given", [QUESTION, "Where is it?", 7], ids=["message", "text", "number"])
def test_bad_input_25_a_single_message_where_a_list_is_needed_is_told_so(given):
    """One dict is no list of its keys."""
    for name in (*APIS, "gemini"):
        with pytest.raises(InvalidMessage, match="a list of messages is needed"):
            Conversation(MemoryStore(), "c", format=name).append(given)


def test_o12_a_turn_after_a_list_that_ends_in_an_open_call_names_the_way_out():
    """Outside a turn the words are `open_calls()` and `complete`."""
    conversation = Conversation(MemoryStore(), "c", format="openai-chat")
    conversation.append([QUESTION, {"role": "assistant", "content": None, "tool_calls": CALLS}])
    with pytest.raises(PairingViolation, match=r"`open_calls\(\)`.*`complete`"), conversation.turn("And now?"):
        pass
    (call,) = conversation.open_calls()
    conversation.complete(call, "here")
    with conversation.turn("And now?") as turn:
        assert len(turn.window().messages) == 4
        turn.respond(MESSAGE)


# --- what is given in a response's place -----------------------------------------------------------------------------

PIECE = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "geheim"}}]}
CHAT_BODY = {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "geheim"}}]}
CLAUDE_BODY = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"}


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, r"the prompt was blocked \(SAFETY\)"),
        ("gemini", {"prompt_feedback": {"block_reason": "OTHER"}, "candidates": []}, r"blocked \(OTHER\)"),
        ("gemini", {"promptFeedback": {"blockReason": "geheim"}}, "the prompt was blocked, so"),
        ("gemini", {"usageMetadata": {}}, "a body without candidates"),
        ("gemini", CHAT_BODY, "a body of the format openai-chat"),
        ("gemini", CLAUDE_BODY, "a body of the format anthropic"),
        ("openai-responses", CHAT_BODY, "a body of the format openai-chat"),
        ("openai-responses", MESSAGE, "give the list of all items"),
        ("openai-responses", {}, "a body without output"),
        ("openai-responses", {"type": "response.output_text.delta", "delta": "geheim"}, "a piece of a stream"),
        ("openai-responses", {"type": "response.completed", "response": {"output": []}}, "give its `response`"),
        ("openai-chat", {}, "a body without choices"),
        ("openai-chat", PIECE, "a piece of a stream"),
        ("openai-chat", {"object": "response", "output": []}, "a body of the format openai-responses"),
        ("openai-chat", {"candidates": []}, "a body of the format gemini"),
        ("openai-chat", CLAUDE_BODY, "a body of the format anthropic"),
        ("openai-chat", [MESSAGE], "a list is no response"),
        ("openai-chat", "geheim", "give that, as bytes or as the SDK's object"),
        ("openai-chat", b'data: {"geheim":1}\n\n', "a stream is no response"),
        ("anthropic", {}, "a body without content"),
        ("anthropic", {"type": "message_start", "message": {}}, "a piece of a stream"),
        ("anthropic", b'event: message_start\ndata: {"geheim":1}\n\n', "a stream is no response"),
        ("anthropic", (each for each in ["geheim"]), "a stream is no response"),
        ("anthropic", httpx2.Response(200, json={"a": "geheim"}), r"give response\.content"),
    ],
)
def test_i37_what_is_no_response_is_called_by_its_name_and_never_quoted(name, given, told):
    """It says what was given and what to give; nothing of it is repeated, and nothing is recorded."""
    conversation = Conversation(MemoryStore(), "c", format=name)
    with pytest.raises(InvalidMessage, match=told) as refusal, conversation.turn("Where is it?") as turn:
        turn.respond(given)
    assert "geheim" not in str(refusal.value)
    assert refusal.value.facts["path"].startswith("$")
    assert not any(entry.kind is Kind.RESPONSE for entry in conversation.entries())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"role": "assistant", "content": 7}, "neither a text nor a list of parts"),
        ({"choices": []}, "0 choices where exactly one is kept"),
        ({"error": {"message": "no"}}, "the body is an error"),
        ({"choices": [{"message": {"role": "assistant", "tool_calls": [7]}}]}, "a JSON object is needed here"),
    ],
)
def test_c02_a_response_of_the_right_form_keeps_its_own_refusal(given, told):
    """The general word is for what is none at all."""
    with pytest.raises(InvalidMessage, match=told):
        wire_format("openai-chat").response(given)


def raw_forms(name, url):
    """Return what the real client of an API gives that is no response, each with what is told of it."""
    api = APIS[name](url)
    asked = {"model": "m", "stream": True, **({"max_tokens": 9} if name == "anthropic" else {})}
    asked |= {"input": "q", "store": False} if name == "openai-responses" else {"messages": [QUESTION]}
    path = {"openai-chat": "chat.completions", "openai-responses": "responses", "anthropic": "messages"}[name]
    create = functools.reduce(getattr, path.split("."), api.client)
    yield create.create(**asked), "a stream is no response"
    yield next(iter(create.create(**asked))), "a piece of a stream is no response"
    yield create.with_raw_response.create(**{**asked, "stream": False}), r"give response\.http_response\.content"
    if name == "openai-responses":
        yield list(create.create(**asked))[-1], "give its `response`"


@each_api
def test_c2_what_a_real_client_gives_beside_responses_is_refused_with_what_to_give(name):
    """A stream, its first event, a raw response; the content of that is taken."""
    with ProviderFake(name, (Answer(text="hi"),) * 5) as fake:
        wire = wire_format(name)
        for given, told in raw_forms(name, fake.base_url):
            with pytest.raises(InvalidMessage, match=told):
                wire.response(given)
            if "content" in told:
                assert wire.response(given.http_response.content).messages == 1
            close = getattr(given, "close", None)
            if close is not None:
                close()
