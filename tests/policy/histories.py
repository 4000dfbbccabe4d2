"""
Random histories, and a naive model of what their windows must be.

A history is a list of steps; each is applied to the record's law through the wire format's own drafts, and to a plain
model of turns and wire messages that knows nothing of entries, units, pages or sizes. The model answers every
question by trying all cuts of the full message list.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from random import Random

import msgspec
from hypothesis import strategies as st

from minutebook.errors import DecisionHistoryLimitExceeded, MinutebookError
from minutebook.history import History
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Call
from minutebook.model.keys import ConversationKey
from minutebook.model.law import extend
from minutebook.model.record import Delta, Header, new_header
from minutebook.model.tails import Tail, Tails, Tokens
from minutebook.providers.wire import wire_format
from minutebook.stores.aside import Aftermath
from minutebook.testing import drive

KEY = ConversationKey("tests", "history")
REFUSED = "refused"


def compact(value):
    """Return JSON text as a provider's SDK would write it, made by the standard library."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- what messages look like in each format, said a second time and plainly ------------------------------------------


class Chat:
    """OpenAI Chat: one message a result."""

    name = "openai-chat"

    def user(self, text):
        return {"role": "user", "content": text}

    def response(self, text, calls):
        message = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}} for id_, name in calls
            ]
        return {"choices": [{"message": message}]}, [message] if text or calls else []

    def results(self, calls, outputs):
        return [
            {"role": "tool", "tool_call_id": id_, "content": output}
            for (id_, _), output in zip(calls, outputs, strict=True)
        ]

    def ids(self, message):
        """Return the holders of a call id in a message, each with its key; calls, then answers."""
        made = [(call, "id") for call in message.get("tool_calls", ())]
        return made, [(message, "tool_call_id")] if message["role"] == "tool" else []


class Responses(Chat):
    """OpenAI Responses: a flat list of items."""

    name = "openai-responses"

    def response(self, text, calls):
        items = [{"type": "reasoning", "id": "rs", "encrypted_content": "Zm9v+/=="}] if text or calls else []
        if text:
            items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
        items += [{"type": "function_call", "call_id": id_, "name": name, "arguments": "{}"} for id_, name in calls]
        return {"output": items}, items

    def results(self, calls, outputs):
        return [
            {"type": "function_call_output", "call_id": id_, "output": output}
            for (id_, _), output in zip(calls, outputs, strict=True)
        ]

    def ids(self, message):
        kind = message.get("type")
        return (
            [(message, "call_id")] if kind == "function_call" else [],
            [(message, "call_id")] if kind == "function_call_output" else [],
        )


class Anthropic(Chat):
    """Anthropic: all results of an exchange in one user message."""

    name = "anthropic"

    def response(self, text, calls):
        content = [{"type": "thinking", "thinking": "", "signature": "QUJD"}] if text else []
        content += [{"type": "text", "text": text}] if text else []
        content += [{"type": "tool_use", "id": id_, "name": name, "input": {}} for id_, name in calls]
        message = {"role": "assistant", "content": content}
        return {"type": "message", **message, "stop_reason": "end_turn"}, [message] if content else []

    def results(self, calls, outputs):
        blocks = [
            {"type": "tool_result", "tool_use_id": id_, "content": output}
            for (id_, _), output in zip(calls, outputs, strict=True)
        ]
        return [{"role": "user", "content": blocks}] if blocks else []

    def ids(self, message):
        blocks = message["content"] if isinstance(message["content"], list) else []
        return (
            [(block, "id") for block in blocks if block["type"] == "tool_use"],
            [(block, "tool_use_id") for block in blocks if block["type"] == "tool_result"],
        )


class Gemini(Chat):
    """Gemini: parts; an id may be missing, then order and name tell calls apart."""

    name = "gemini"

    def user(self, text):
        return {"role": "user", "parts": [{"text": text}]}

    def response(self, text, calls):
        parts = [{"text": text, "thoughtSignature": "c2ln"}] if text else []
        parts += [
            {"functionCall": {"id": i, "name": n, "args": {}} if i else {"name": n, "args": {}}} for i, n in calls
        ]
        message = {"role": "model", "parts": parts}
        return {"candidates": [{"content": message}]}, [message] if parts else []

    def results(self, calls, outputs):
        parts = []
        for (id_, name), output in zip(calls, outputs, strict=True):
            answer = {"name": name, "response": {"output": output}}
            parts.append({"functionResponse": {"id": id_, **answer} if id_ else answer})
        return [{"role": "user", "parts": parts}] if parts else []

    def ids(self, message):
        parts = message["parts"]
        return (
            [(p["functionCall"], "id") for p in parts if "functionCall" in p],
            [(p["functionResponse"], "id") for p in parts if "functionResponse" in p],
        )


SHAPES = {shape.name: shape for shape in (Chat(), Responses(), Anthropic(), Gemini())}


# --- the naive model -------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    seq: int
    sent: list
    calls: list
    results: dict = field(default_factory=dict)
    said: list = field(default_factory=list)
    parked: bool = False

    @property
    def complete(self):
        return len(self.results) == len(self.calls)


@dataclass
class Turn:
    seq: int
    input: list
    exchanges: list = field(default_factory=list)


@dataclass
class Unit:
    """What leaves together: the key it is known by, its turn, and its wire messages."""

    key: int
    turn: Turn
    messages: list
    exchange: Exchange | None


class Refusal(Exception):
    """The model says that the law must refuse."""


class Story:
    """A conversation as a person would tell it: turns of messages, and what is under way."""

    def __init__(self, shape):
        self.shape = shape
        self.turns = [Turn(0, [])]
        self.under_way = None  # the turns to go back to
        self.unanswered = None  # the input that no attempt has answered

    def every(self):
        return [exchange for turn in self.turns for exchange in turn.exchanges]

    def open(self):
        return [exchange for exchange in self.every() if not exchange.complete]

    def _may_go_on(self):
        if any(not exchange.parked for exchange in self.open()):
            raise Refusal

    def _supersede(self):
        if self.under_way is None and self.unanswered is not None:
            self.turns.pop()
            self.unanswered = None

    def ask(self, seq, messages, opens):
        if opens and self.under_way is not None:
            raise Refusal
        if opens and messages == self.unanswered:
            self.under_way = copy.deepcopy(self.turns)
            return
        self._supersede()
        self._may_go_on()
        self.turns.append(Turn(seq, list(messages)))
        if opens:
            self.unanswered = messages
            self.under_way = copy.deepcopy(self.turns)

    def go_on(self):
        if self.under_way is not None:
            raise Refusal
        self.under_way = copy.deepcopy(self.turns)

    def answer(self, seq, sent, calls):
        self._supersede()
        self._may_go_on()
        self.turns[-1].exchanges.append(Exchange(seq, sent, calls))

    def result(self, exchange, position, output):
        found = next((e for e in self.open() if e.seq == exchange), None)
        if found is None or position in found.results or position >= len(found.calls):
            raise Refusal
        found.results[position] = output

    def say(self, message):
        self._supersede()
        turn = self.turns[-1]
        (turn.exchanges[-1].said if turn.exchanges else turn.input).append(message)

    def park(self, exchange):
        found = next((e for e in self.open() if e.seq == exchange), None)
        if found is None:
            raise Refusal
        found.parked = True

    def settle(self):
        self.under_way = self.unanswered = None

    def abandon(self):
        if self.under_way is not None:
            self.turns, self.under_way = self.under_way, None

    # --- windows -----------------------------------------------------------------------------------------------------

    def units(self):
        hidden = self.turns[-1] if self.unanswered is not None and self.under_way is None else None
        units = []
        for turn in self.turns[1:]:
            if turn is hidden:
                continue
            here = []
            for exchange in turn.exchanges:
                if exchange.complete:
                    here.append(Unit(exchange.seq, turn, self.shown(exchange), exchange))
                else:
                    here += [Unit(seq, turn, [message], None) for seq, message in exchange.said]
            units += here or [Unit(turn.seq, turn, [], None)]
        return units

    def shown(self, exchange):
        outputs = [exchange.results[position] for position in range(len(exchange.calls))]
        return [*exchange.sent, *self.shape.results(exchange.calls, outputs), *(said for _, said in exchange.said)]

    def must(self, units):
        """The latest exchange stays, and what came in since; but of messages in a row, only the newest."""
        after = 0
        while after < len(units) and units[-1 - after].exchange is None:
            after += 1
        waiting = [any(not e.complete for e in unit.turn.exchanges) for unit in units[len(units) - after :]]
        if after < len(units) and all(waiting[:-1]):
            return after + 1
        return min(1, len(units))

    def messages(self, units):
        """Return the wire messages of units, ids that repeat made unique."""
        out, turns, owners = [], set(), []
        for unit in units:
            shown = list(unit.messages)
            if unit.turn.seq not in turns:
                turns.add(unit.turn.seq)
                opening = [m[1] if isinstance(m, tuple) else m for m in unit.turn.input]
                out += copy.deepcopy(opening)
            shown = copy.deepcopy(shown)
            out += shown
            owners.append((unit, shown))
        self._tell_ids_apart(owners)
        return out

    def _tell_ids_apart(self, owners):
        taken = {id_ for unit, _ in owners if unit.exchange for id_, _ in unit.exchange.calls}
        seen = set()
        for unit, shown in owners:
            if unit.exchange is None:
                continue
            new = []
            for position, (id_, _) in enumerate(unit.exchange.calls):
                name = id_
                refused = self.shape.name == "anthropic" and not re.fullmatch("[A-Za-z0-9_-]+", id_)
                if refused or (id_ and id_ in seen):
                    name = f"call_{unit.exchange.seq}_{position}"
                    while name in taken:
                        name += "_"
                    taken.add(name)
                seen.add(name)
                new.append(name)
            made = [place for message in shown for place in self.shape.ids(message)[0]]
            answered = [place for message in shown for place in self.shape.ids(message)[1]]
            for places in (made, answered):
                for (holder, key), name in zip(places, new, strict=True):
                    if name:
                        holder[key] = name

    def plain(self, units):
        """Return the wire messages as they were recorded."""
        out, turns = [], set()
        for unit in units:
            if unit.turn.seq not in turns:
                turns.add(unit.turn.seq)
                out += [m[1] if isinstance(m, tuple) else m for m in unit.turn.input]
            out += unit.messages
        return out

    def window(self, max_messages, max_bytes, start=None, low=None):
        """Return (JSON text, kept units), or REFUSED, by trying every cut from the longest on."""
        units = self.units()
        must = self.must(units)
        cuts = [units[position:] for position in range(len(units) + 1)]
        fitting = [cut for cut in cuts if fits(self.plain(cut), max_messages, max_bytes)]
        best = fitting[0] if fitting else []
        if len(best) < must:
            return REFUSED
        if low is not None:
            best = self._steady(units, best, must, (max_messages, max_bytes), start, low)
        while len(compact(self.messages(best)).encode()) > max_bytes:
            if len(best) <= must:
                return REFUSED
            best = best[1:]
        return compact(self.messages(best)), best

    def _steady(self, units, best, must, limits, start, low):
        if start is not None:
            before = [unit for unit in units if unit.key >= start]
            if len(before) <= len(best):
                return units[len(units) - max(len(before), must) :]
        elif len(best) == len(units):
            return best
        lower = tuple(int(limit * low) for limit in limits)
        cuts = [units[position:] for position in range(len(units) + 1)]
        least = next((cut for cut in cuts if fits(self.plain(cut), *lower)), [])
        kept = min(len(best), max(must, len(least)))
        return units[len(units) - kept :]


def fits(messages, max_messages, max_bytes):
    return len(messages) <= max_messages and len(compact(messages).encode()) <= max_bytes


# --- steps -----------------------------------------------------------------------------------------------------------

STEPS = (
    "ask",
    "ask_again",
    "go_on",
    "answer",
    "answer",
    "answer",
    "result",
    "result",
    "result",
    "say",
    "settle",
    "settle",
    "abandon",
    "park",
    "late",
    "append",
    "stray",
)
TEXTS = ("", "yes", "ä\u20ac\U0001f600", 'quote " and \\ and \n', "x" * 60, "\u0000nul", "line\u2028separator")
IDS = ("call_0", "call_1", "id-a", "id-b", "")

steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.integers(0, 7), st.integers(0, 4)), min_size=1, max_size=60
)
"""The strategy of histories: (what, and three small numbers that it makes of what it can)."""


def random_steps(random: Random, length: int):
    """Return a history without hypothesis, for long runs."""
    return [
        (random.choice(STEPS), random.randrange(8), random.randrange(8), random.randrange(5)) for _ in range(length)
    ]


class Both:
    """The record and the model, kept in step; a refusal by one that the other does not make is a failure."""

    def __init__(self, format_name):
        self.shape = SHAPES[format_name]
        self.wire = wire_format(format_name)
        self.story = Story(self.shape)
        self.header = new_header(KEY, format_name, 0)
        self.entries = []
        self.commits = 0
        self.asked = [self.shape.user("first")]

    def run(self, history):
        for name, a, b, c in history:
            getattr(self, f"_{name}")(a, b, c)
        return self

    def _commit(self, drafts, tell, **flags):
        self.commits += 1
        delta = Delta(drafts=tuple(drafts), idempotency=str(self.commits), **flags)
        try:
            grown = extend(self.header, delta, self.commits)
        except MinutebookError:
            grown = None
        after = copy.deepcopy(self.story)
        try:
            tell(after, [entry.seq for entry in grown.entries] if grown else [0] * 99)
            refused = False
        except Refusal:
            refused = True
        assert refused == (grown is None), (tell, "the model refuses" if refused else "the law refuses")
        if grown is not None:
            self.header, self.story = grown.header, after
            self.entries.extend(grown.entries)

    def _ids(self, a, b, count):
        names = ("search", "read", "write")
        return [(IDS[(a + b * position) % len(IDS)], names[(a + position) % 3]) for position in range(count)]

    def _ask(self, a, b, c):
        messages = [self.shape.user(f"{TEXTS[a % len(TEXTS)]} {b}{n}") for n in range(1 + c // 3)]
        self._open(messages)

    def _ask_again(self, a, b, c):
        if self.asked:
            self._open(self.asked)

    def _open(self, messages):
        self.asked = messages
        self._commit(
            [self.wire.input(messages if len(messages) > 1 else messages[0])],
            lambda story, seqs: story.ask(seqs[-1] if seqs else 0, messages, True),
            opens=True,
        )

    def _go_on(self, a, b, c):
        self._commit([], lambda story, seqs: story.go_on(), opens=True)

    def _answer(self, a, b, c):
        calls = self._ids(a, b, c)
        body, sent = self.shape.response(TEXTS[a % len(TEXTS)], calls)
        self._commit([self.wire.response(body)], lambda story, seqs: story.answer(seqs[-1], sent, calls))

    def _result(self, a, b, c):
        newest = [e for e in self.story.open() if not e.parked]
        if newest:
            self._give(newest[-1], a, b)

    def _late(self, a, b, c):
        parked = [e for e in self.story.open() if e.parked]
        if parked:
            self._give(parked[a % len(parked)], a, b)

    def _stray(self, a, b, c):
        """A result where none may be: a position that does not wait, of any exchange there ever was."""
        every = self.story.every()
        if every:
            self._give(every[a % len(every)], a, b, stray=c)

    def _give(self, exchange, a, b, stray=None):
        waiting = [p for p in range(len(exchange.calls)) if p not in exchange.results]
        position = waiting[b % len(waiting)] if stray is None else stray
        id_, name = exchange.calls[position] if position < len(exchange.calls) else ("none", "none")
        output = f"{TEXTS[a % len(TEXTS)]}r{position}"
        draft = self.wire.result(position, Call(id_, name), output)
        self._commit(
            [copy_of(draft, exchange=exchange.seq)],
            lambda story, seqs: story.result(exchange.seq, position, output),
        )

    def _say(self, a, b, c):
        message = self.shape.user(f"by the way {TEXTS[a % len(TEXTS)]}{b}")
        self._commit([self.wire.injection(message)], lambda story, seqs: story.say((seqs[-1], message)))

    def _settle(self, a, b, c):
        if self.story.under_way is not None and not any(not e.parked for e in self.story.open()):
            self._commit([], lambda story, seqs: story.settle(), settles=True)

    def _abandon(self, a, b, c):
        self._commit([], lambda story, seqs: story.abandon(), abandons="failed")

    def _park(self, a, b, c):
        waiting = self.story.open()
        if waiting and self.story.under_way is not None:
            exchange = waiting[-1].seq
            self._commit([], lambda story, seqs: story.park(exchange), parks=(exchange,))

    def _append(self, a, b, c):
        """A ready transcript: maybe a leading answer, then turns with parallel calls, in one commit."""
        if self.story.under_way is not None:
            return
        messages, told = [], []
        if a % 4 == 0:
            self._tell_answer(messages, told, "well", [])
        for turn in range(1 + b % 3):
            asked = [self.shape.user(f"turn {a}{turn}{n}") for n in range(1 + (a + turn) % 3)]
            messages += asked
            told += [("ask", asked[0]), *(("say", said) for said in asked[1:])]
            calls = [(id_ or "call_9", name) for id_, name in self._ids(a, 1, c)][: len(IDS) - 1]
            if calls:
                self._tell_answer(messages, told, "", calls)
                outputs = [f"r{position}" for position in range(len(calls))]
                messages += self.shape.results(calls, outputs)
                told += [("result", position, output) for position, output in enumerate(outputs)]
            self._tell_answer(messages, told, "done", [])
        drafts = self.wire.transcript(messages)
        self._commit(drafts, lambda story, seqs: self._retell(story, seqs, told))

    def _tell_answer(self, messages, told, text, calls):
        sent = self.shape.response(text, calls)[1]
        messages += sent
        told.append(("answer", sent, calls))

    def _retell(self, story, seqs, told):
        seqs = seqs[len(seqs) - len(told) :]
        newest = 0
        for seq, (what, *rest) in zip(seqs, told, strict=True):
            if what == "ask":
                story.ask(seq, rest, False)
            elif what == "say":
                story.say((seq, rest[0]))
            elif what == "answer":
                story.answer(seq, *rest)
                newest = seq
            else:
                story.result(newest, *rest)


def copy_of(draft, **changes):
    return msgspec.structs.replace(draft, **changes)


# --- the real window over a list -------------------------------------------------------------------------------------


class ListJournal:
    """What a window needs of a journal, over a list of entries, in pages as small as one likes."""

    def __init__(self, entries, rows=1000):
        self.entries = entries
        self.rows = rows

    async def header(self, key):
        last = self.entries[-1] if self.entries else None
        return last and Header(format="test", created=0, touched=0, entries=last.seq, digest=last.digest)

    async def newest(self, key, before, page):
        return tuple(reversed(self.entries[max(0, before - 1 - min(self.rows, page.rows)) : before - 1]))

    async def oldest(self, key, after, page):
        return tuple(self.entries[after : after + page.rows])


def history_over(entries, wire, *, rows=1000, low_water=1.0, limits=None):
    """Return the real history over a list of entries."""
    return History(
        ListJournal(entries, rows),
        Tails(),
        Tokens("t", Aftermath(blocking=True).from_here),
        lambda: "id",
        KEY,
        wire=wire,
        identity=wire.name,
        limits=limits or WindowLimits(),
        low_water=low_water,
    )


def real_window(both, max_messages, max_bytes, *, rows=1000, low=1.0, tail=0):
    """Return (plan, window), or REFUSED."""
    history = history_over(both.entries, both.wire, rows=rows, low_water=low)
    limits = WindowLimits(max_messages=max_messages, max_bytes=max_bytes, low_water=low)
    known = tuple(reversed(both.entries[len(both.entries) - tail :])) if tail else ()
    try:
        fitted, window, _ = drive(history.reader().fit(both.header, Tail(known), limits))
    except DecisionHistoryLimitExceeded:
        return REFUSED
    return fitted.plan, window


class Remembering:
    """A process that remembers the end of a record from one window to the next, as it grows by other hands."""

    def __init__(self, both, max_messages, max_bytes, *, low=1.0):
        self.both = both
        self.limits = WindowLimits(max_messages=max_messages, max_bytes=max_bytes, low_water=low)
        self.history = history_over(both.entries, both.wire, rows=7, low_water=low, limits=self.limits)
        self.tail = Tail()
        self.seen = 0

    def window(self, limits=None):
        """Return (plan, window), or REFUSED."""
        self.tail = self.tail.grown(tuple(self.both.entries[self.seen :])) if self.seen else Tail()
        self.seen = len(self.both.entries)
        try:
            fitted, window, tail = drive(self.history.reader().fit(self.both.header, self.tail, limits or self.limits))
        except DecisionHistoryLimitExceeded:
            return REFUSED
        self.tail = tail
        return fitted.plan, window
