"""
Real conversations through the wire formats: every one is taken, paired, and given back message for message.

The recordings are not part of the repository: see `tests/recordings.py`.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter

import pytest
from tests.recordings import DATA, needs_recordings

from minutebook.errors import InvalidMessage, PairingViolation
from minutebook.model import codec
from minutebook.model.entries import Kind
from minutebook.model.keys import ConversationKey
from minutebook.model.law import extend
from minutebook.model.record import Delta, new_header
from minutebook.providers.wire import wire_format

pytestmark = needs_recordings


# --- reading the recordings ------------------------------------------------------------------------------------------


def read(path):
    """Return the JSON documents of a recording: lines, or one document."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode()
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


CHAT_FILES = (
    "agentbench_alfworld.jsonl.gz",
    "inspect_log_formats.jsonl.gz",
    "inspect_log_images_tc.jsonl.gz",
    "inspect_log_read_sample.jsonl.gz",
    "inspect_popularity.jsonl.gz",
    "mini_swe_agent_github_issue.traj.json",
    "openhands_sdk_llm_logs.jsonl.gz",
    "swe_agent_demos.jsonl.gz",
    "swe_smith_ft_xml.jsonl.gz",
    "swe_smith_sweagent_claude.jsonl.gz",
    "tau_bench_airline_gpt4o.jsonl.gz",
    "toolbench_dfs_function_call.jsonl.gz",
)


def chat_conversations(name):
    """Return the message lists of one Chat recording, roles of AgentBench spelled as OpenAI spells them."""
    for document in read(DATA / "openai_chat" / name):
        messages = document if isinstance(document, list) else document["messages"]
        if name.startswith(("inspect_log_read_sample", "inspect_popularity")):
            messages = [{**m, "content": m.get("content") or "(attachment)"} for m in messages]
        yield [{**m, "role": "assistant"} if m["role"] == "agent" else m for m in messages]


def claude_code_sessions():
    """Return (name, messages) of each Claude Code recording: its main chain, lines of one message merged."""
    root = DATA / "claude_code"
    for path in sorted(root.glob("*/*.jsonl.gz")):
        if messages := main_chain(read(path)):
            yield path.name, messages
    lines = read(root / "web_sample_session.json")[0]["loglines"]
    yield "web_sample_session", merged([line["message"] for line in lines if line["type"] in ("user", "assistant")])


def main_chain(lines):
    """Return the messages that lead to the newest leaf, oldest first."""
    rows = {line["uuid"]: line for line in lines if line.get("uuid")}
    spoken = [line for line in rows.values() if line.get("type") in ("user", "assistant")]
    if not spoken:
        return []
    chain, place = [], spoken[-1]
    while place is not None:
        chain.append(place)
        place = rows.get(place.get("parentUuid") or place.get("logicalParentUuid"))
    # Parallel calls hang off each other in the tree: each call's line has its own result as a second child.
    wanted = {line["uuid"] for line in chain}
    ids = {line["message"].get("id") for line in chain if line.get("type") == "assistant"}
    for line in spoken:
        if line["type"] == "assistant" and line["message"].get("id") in ids:
            wanted.add(line["uuid"])
    calls = {b["id"] for line in spoken if line["uuid"] in wanted for b in blocks(line["message"], "tool_use")}
    for line in spoken:
        if any(block["tool_use_id"] in calls for block in blocks(line["message"], "tool_result")):
            wanted.add(line["uuid"])
    return merged([line["message"] for line in spoken if line["uuid"] in wanted])


def merged(messages):
    """Return messages with the lines of one assistant message put together, its results after the last of them."""
    out, at = [], {}
    for message in messages:
        id_ = message.get("id") if message["role"] == "assistant" else None
        if id_ in at:
            at[id_]["content"] = [*at[id_]["content"], *message["content"]]
            continue
        out.append({"role": message["role"], "content": message["content"]})
        if id_:
            at[id_] = out[-1]
    return out


def codex_rollouts():
    """Return (name, items) of each Codex recording."""
    for path in sorted((DATA / "codex").glob("*.jsonl.gz")):
        yield path.name, [line["payload"] for line in read(path) if line["type"] == "response_item"]


def blocks(message, kind):
    """Return the blocks of a kind in an Anthropic message."""
    content = message.get("content")
    return [b for b in content if b.get("type") == kind] if isinstance(content, list) else []


# --- what must hold --------------------------------------------------------------------------------------------------


def joined(wire, drafts):
    """Return all that drafts send, in window order, as one JSON array."""
    out, results, said = [], [], []

    def close():
        if results:
            sent = [fragment for _, fragment in sorted(results, key=lambda pair: pair[0])]
            out.append(wire.results_wrap[0] + b",".join(sent) + wire.results_wrap[1])
        out.extend(said)
        results.clear()
        said.clear()

    for draft in drafts:
        fragment = draft.payload[draft.start : draft.stop]
        if draft.kind in (Kind.INPUT, Kind.RESPONSE):
            close()
        if not fragment:
            continue
        if draft.kind is Kind.RESULT:
            results.append((draft.call, fragment))
        elif draft.kind is Kind.INJECTION:
            said.append(fragment)
        else:
            wrap = wire.response_wrap if draft.kind is Kind.RESPONSE else (b"", b"")
            out.append(wrap[0] + fragment + wrap[1])
    close()
    return b"[" + b",".join(out) + b"]"


def recorded(drafts):
    """Return the entries once the record's law has taken the drafts in one delta."""
    key = ConversationKey("test", "real")
    header = new_header(key, "test", 0)
    return extend(header, Delta(idempotency="all", drafts=tuple(drafts)), 0)


def tally(drafts):
    """Return what a transcript became."""
    kinds = Counter(draft.kind for draft in drafts)
    return Counter(
        conversations=1,
        exchanges=kinds[Kind.RESPONSE],
        calls=sum(len(draft.calls) for draft in drafts),
        results=kinds[Kind.RESULT],
    )


def checked(wire, messages):
    """Take a transcript, commit it, and return the drafts; two hands count the entries."""
    drafts = wire.transcript(messages)
    outcome = recorded(drafts)
    assert len(outcome.entries) == len(drafts)
    assert tuple(entry.fragment for entry in outcome.entries) == tuple(d.payload[d.start : d.stop] for d in drafts)
    return drafts


def test_c2_openai_chat_recordings_come_back_byte_for_byte():
    """Every Chat message sent is the codec's encoding of the message given; counts equal those of the raw files."""
    wire = wire_format("openai-chat")
    total, raw, cut = Counter(), Counter(), Counter()
    for name in CHAT_FILES:
        for messages in chat_conversations(name):
            given, messages = messages, cut_unanswered(messages)
            cut[name] += len(given) > len(messages)
            drafts = checked(wire, messages)
            total += tally(drafts) + Counter(messages=len(drafts))
            raw["conversations"] += 1
            raw["messages"] += len(messages)
            raw["exchanges"] += sum(m["role"] == "assistant" for m in messages)
            raw["calls"] += sum(chat_calls(m) for m in messages)
            raw["results"] += sum(m["role"] in ("tool", "function") for m in messages)
            sent = [m for m in messages if m["role"] != "system"]
            sent = [m for m in sent if m["role"] != "assistant" or m["content"] or chat_calls(m)]
            assert joined(wire, drafts) == codec.encode(sent)
    print(f"\nopenai-chat: {dict(total)}; cut before an answer to open calls: {dict(+cut)}")
    # One demonstration answers a call by a user's text: no result ever comes, and the next answer is refused.
    assert dict(+cut) == {"agentbench_alfworld.jsonl.gz": 1}
    assert total == raw
    assert all(raw[what] > 0 for what in ("conversations", "messages", "exchanges", "calls", "results"))


def chat_calls(message):
    """Return how many calls a Chat message makes."""
    return len(message.get("tool_calls") or ()) or (1 if message.get("function_call") else 0)


def cut_unanswered(messages):
    """Return messages up to an answer that comes while a call still waits: branches of a search are glued there."""
    waiting = 0
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            if waiting:
                return messages[:place]
            waiting = chat_calls(message)
        elif message["role"] in ("tool", "function"):
            waiting -= 1
    return messages


def test_c2_claude_code_sessions_come_back_block_for_block():
    """Each session's main chain is paired without a violation; its blocks come back equal, results in call order."""
    wire = wire_format("anthropic")
    total, raw = Counter(), Counter()
    for _name, messages in claude_code_sessions():
        drafts = checked(wire, messages)
        total += tally(drafts)
        raw["conversations"] += 1
        raw["messages"] += len(messages)
        raw["exchanges"] += sum(m["role"] == "assistant" for m in messages)
        raw["calls"] += sum(len(blocks(m, "tool_use")) for m in messages if m["role"] == "assistant")
        raw["results"] += sum(len(blocks(m, "tool_result")) for m in messages if m["role"] == "user")
        assert codec.decode(joined(wire, drafts)) == expected_anthropic(messages)
    print(f"\nanthropic: {dict(total)} messages {raw['messages']}")
    assert total + Counter(messages=raw["messages"]) == raw
    assert all(raw[what] > 0 for what in ("conversations", "messages", "exchanges", "calls", "results"))


def expected_anthropic(messages):
    """Return a session as it is sent: the results of an exchange in one message, what was said meanwhile after it."""
    out, said, group, order = [], [], [], []

    def close():
        if group:
            group.sort(key=lambda pair: pair[0])
            out.append({"role": "user", "content": [block for _, content in group for block in content]})
        out.extend(said)
        group.clear()
        said.clear()

    for message in messages:
        results = blocks(message, "tool_result") if message["role"] == "user" else []
        if results:
            first = min(order.index(block["tool_use_id"]) for block in results)
            group.append((first, message["content"]))
        elif message["role"] == "user" and order and len(order) > len(group):
            said.append(message)
        else:
            close()
            out.append(message)
        if message["role"] == "assistant":
            order = [block["id"] for block in blocks(message, "tool_use")]
    close()
    return out


def test_c2_codex_rollouts_come_back_item_for_item():
    """Each rollout is paired without a violation and comes back byte for byte; custom calls keep their own output."""
    wire = wire_format("openai-responses")
    total, raw = Counter(), Counter()
    dropped = 0
    for _name, items in codex_rollouts():
        spoken = [item for item in items if item.get("role") != "developer"]
        dropped += len(items) - len(spoken)
        drafts = checked(wire, spoken)
        total += tally(drafts)
        raw["conversations"] += 1
        raw["messages"] += len(spoken)
        sides = [side(item) for item in spoken]
        raw["exchanges"] += sum(a == "model" and b != "model" for b, a in zip(["", *sides], sides, strict=False))
        raw["calls"] += sum(item["type"] in ("function_call", "custom_tool_call") for item in spoken)
        raw["results"] += sum(item["type"].endswith("_call_output") for item in spoken)
        assert joined(wire, drafts) == codec.encode(in_window_order(spoken))
    print(f"\nopenai-responses: {dict(total)} items {raw['messages']}; developer messages left out {dropped}")
    assert total + Counter(messages=raw["messages"]) == raw
    assert all(raw[what] > 0 for what in ("conversations", "messages", "exchanges", "calls", "results"))


def kind(item):
    """Return the type of a Responses item; a message may leave it out."""
    return item.get("type", "message")


def side(item):
    """Return who wrote a Responses item."""
    if kind(item).endswith("_call_output"):
        return "result"
    return "user" if item.get("role") == "user" else "model"


def in_window_order(items):
    """Return items as they are sent: results in call order, reasoning without a follower left out."""
    out, results, order = [], [], []
    for place, item in enumerate(items):
        if side(item) == "result":
            results.append(item)
            continue
        if results:
            out.extend(sorted(results, key=lambda result: order.index(result["call_id"])))
            results, order = [], []
        after = items[place + 1 :]
        follower = next((later for later in after if kind(later) != "reasoning"), None)
        if kind(item) == "reasoning" and (follower is None or side(follower) != "model"):
            continue
        out.append(item)
        if item.get("call_id"):
            order.append(item["call_id"])
    out.extend(sorted(results, key=lambda result: order.index(result["call_id"])))
    return out


def test_bad_input_46_codex_developer_messages_in_the_middle_are_refused_with_their_index():
    """A rollout carries developer text between turns; in this format that is refused, never moved or dropped."""
    for _name, items in codex_rollouts():
        with pytest.raises(InvalidMessage) as caught:
            wire_format("openai-responses").transcript(items)
        assert items[caught.value.index]["role"] == "developer"


def test_bad_input_39_a_planted_stray_result_is_found_in_real_data():
    """The checks above could only pass if nothing refused; a result moved to its neighbour's place is refused."""
    wire = wire_format("openai-chat")
    messages = next(m for m in chat_conversations("tau_bench_airline_gpt4o.jsonl.gz") if any(map(chat_calls, m)))
    place = next(n for n, message in enumerate(messages) if message["role"] == "tool")
    stray = [*messages[: place + 1], messages[place], *messages[place + 1 :]]
    with pytest.raises(PairingViolation) as caught:
        wire.transcript(stray)
    assert caught.value.index == place + 1


# --- recorded provider exchanges -------------------------------------------------------------------------------------

RECORDED = {
    "openai-chat": ("chat_completions__*", ("/chat/completions",), "messages"),
    "openai-responses": ("openai_responses__*", ("/responses",), "input"),
    "anthropic": ("anthropic_messages__*", ("/v1/messages",), "messages"),
    "gemini": ("gemini_generate__*", (":generateContent", ":streamGenerateContent"), "contents"),
}


def recorded_exchanges(name):
    """Return the recorded exchanges with one provider's own endpoint."""
    pattern, ends, _ = RECORDED[name]
    for path in sorted((DATA / "provider_exchanges").glob(pattern)):
        for document in read(path):
            for exchange in document["exchanges"]:
                if exchange["uri"].split("?")[0].endswith(ends):
                    yield exchange


def said(name, body):
    """Return what a recorded body says, read the plain way; `None` where there is not exactly one answer to keep."""
    if body.get("error"):
        return None
    if name in ("openai-responses", "anthropic"):
        return body["output" if name == "openai-responses" else "content"]
    choices = body.get("choices" if name == "openai-chat" else "candidates", ())
    if len(choices) != 1:
        return None
    return choices[0].get("message") if name == "openai-chat" else choices[0].get("content", {}).get("parts", [])


@pytest.mark.parametrize("name", RECORDED)
def test_c2_recorded_responses_are_kept_whole_and_sent_back_equal(name):
    """Each recorded body is kept byte for byte; its fragment is the provider's own message."""
    wire, counts = wire_format(name), Counter()
    for exchange in recorded_exchanges(name):
        body = exchange["response"]
        if not isinstance(body, dict):
            continue
        raw, answer = json.dumps(body, indent=1).encode(), said(name, body)
        if answer is None:
            counts["refused"] += 1
            with pytest.raises(InvalidMessage):
                wire.response(raw)
            continue
        draft = wire.response(raw)
        assert draft.payload == raw
        counts += Counter(kept=1, calls=len(draft.calls), empty=not draft.messages)
        fragment = draft.payload[draft.start : draft.stop]
        if name == "openai-responses":
            sent = codec.decode(b"[" + fragment + b"]")
            assert sent == answer[: len(sent)]
            assert all(kind(item) == "reasoning" or not draft.messages for item in answer[len(sent) :])
        elif fragment:
            assert codec.decode(fragment) == answer
    print(f"\n{name} responses: {dict(counts)}")
    assert counts["kept"] > 0
    assert counts["calls"] > 0


@pytest.mark.parametrize("name", RECORDED)
def test_c2_recorded_requests_are_transcripts_without_a_pairing_violation(name):
    """What clients really sent is taken; only instructions in the middle and a role made up for a test are refused."""
    wire, counts = wire_format(name), Counter()
    for exchange in recorded_exchanges(name):
        messages = isinstance(exchange["request"], dict) and exchange["request"].get(RECORDED[name][2])
        if not isinstance(messages, list):
            continue
        try:
            drafts = checked(wire, messages)
        except InvalidMessage as refusal:
            role = messages[int(refusal.path.split("]")[0][2:])]["role"]
            assert role in ("system", "developer", "invalid_role")
            counts[f"refused: {role}"] += 1
            continue
        counts += tally(drafts)
        if wire.grouped:
            assert by_side(codec.decode(joined(wire, drafts))) == by_side(messages)
        else:
            sent = [m for m in messages if kind(m) != "message" or m.get("role") not in ("system", "developer")]
            assert codec.decode(joined(wire, drafts)) == in_order(name, sent)
    print(f"\n{name} requests: {dict(counts)}")
    assert counts["conversations"] > 0
    assert counts["results"] > 0


def by_side(messages):
    """Return who said which blocks, messages of one side in a row put together, as both providers do themselves."""
    out = []
    for said_ in messages:
        content = said_.get("content", said_.get("parts"))
        content = [{"type": "text", "text": content}] if isinstance(content, str) else content
        role = "user" if said_["role"] == "function" else said_["role"]
        if role == "model" and content == [{"text": ""}]:
            continue  # an answer that says nothing is not sent again (case O-13)
        if content and out and out[-1][0] == role:
            out[-1][1].extend(content)
        elif content:
            out.append((role, list(content)))
    return out


def in_order(name, messages):
    """Return what an ungrouped format sends of a request: no message without content, no reasoning left alone."""
    if name == "openai-responses":
        return in_window_order(messages)
    return [m for m in messages if m["role"] != "assistant" or any(m.get(key) for key in ("content", "tool_calls"))]
