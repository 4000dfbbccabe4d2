"""
The record's law, rule by rule: what `extend` accepts, refuses and remembers. No store, no wire format, no clock.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from minutebook.errors import (
    DecisionHistoryConflict,
    DecisionHistoryCorrupt,
    DecisionHistoryFenced,
    DecisionHistoryNotReserved,
    DecisionHistoryRetentionExceeded,
    InvalidMessage,
    InvalidOption,
    PairingViolation,
)
from minutebook.model.cuts import leaving
from minutebook.model.entries import Call, Draft, Kind, first_digest, recompute_digest
from minutebook.model.keys import ConversationKey
from minutebook.model.law import extend, interrupt
from minutebook.model.record import Delta, new_header, replayed
from minutebook.model.reservation import check_owner, recover, take

KEY = ConversationKey("law", "record")


def ask(text="ask"):
    return Draft(kind=Kind.INPUT, payload=b'"%b"' % text.encode(), messages=1, size=1)


def answer(calls=0, text="answer"):
    made = tuple(Call(f"c{n}", "tool") for n in range(calls))
    return Draft(kind=Kind.RESPONSE, payload=b'"%b"' % text.encode(), messages=1, size=1, calls=made)


def result(call=0, exchange=0, text="result"):
    return Draft(kind=Kind.RESULT, payload=b'"%b"' % text.encode(), messages=1, size=1, call=call, exchange=exchange)


def say(text="say"):
    return Draft(kind=Kind.INJECTION, payload=b'"%b"' % text.encode(), messages=1, size=1)


def instructions():
    return Draft(kind=Kind.INSTRUCTIONS, payload=b'"be kind"')


class Log:
    """A record that grows; what is refused leaves it as it was."""

    def __init__(self):
        self.header = new_header(KEY, "law", 1)
        self.entries = []
        self.count = 0

    def add(self, *drafts, **flags):
        self.count += 1
        delta = Delta(drafts=drafts, idempotency=str(self.count), **flags)
        needed = leaving(self.header, delta)
        stored = [entry for entry in self.entries if entry.seq in needed]
        grown = extend(self.header, delta, self.count, stored=stored)
        self.header = grown.header
        self.entries = [entry for entry in (*self.entries, *grown.entries) if entry.seq > grown.header.cut.seq]
        return grown

    def refuses(self, error, *drafts, **flags):
        before = (self.header, list(self.entries))
        with pytest.raises(error) as caught:
            self.add(*drafts, **flags)
        assert (self.header, self.entries) == before
        return caught.value

    @property
    def kinds(self):
        return [entry.kind.name.lower() for entry in self.entries]

    @property
    def state(self):
        return self.header.state


@pytest.fixture
def log():
    return Log()


def marks(log):
    return [
        (json.loads(entry.payload)["reason"], entry.exchange, entry.call)
        for entry in log.entries
        if entry.kind is Kind.ABANDONED
    ]


# --- attempts --------------------------------------------------------------------------------------------------------


def test_c1_an_attempt_begins_after_its_input_and_ends_when_it_settles(log):
    """The input stands before the attempt, so that an abandoned attempt leaves it as unanswered."""
    log.add(ask(), opens=True)
    assert (log.header.attempt.first, log.state.turn, log.state.turns) == (2, 1, 1)
    assert log.state.unanswered is not None
    log.add(answer(), settles=True)
    assert log.header.attempt is None
    assert log.state.unanswered is None
    assert (log.state.exchange, log.state.exchanges) == (2, 1)


def test_c1_an_abandoned_attempt_goes_back_to_its_beginning_under_one_mark(log):
    """Everything after the input is covered; counters and open calls are those of before."""
    log.add(ask(), opens=True)
    before = log.state
    log.add(answer(2))
    log.add(result(0))
    log.add(say())
    log.add(abandons="failed")
    assert marks(log) == [("failed", 2, 4)]
    assert log.state == msgspec.structs.replace(before, abandoned=(2, 5))
    assert log.header.attempt is None


def test_c1_an_attempt_without_an_input_covers_everything_in_it(log):
    """A turn that goes on from what is recorded begins before its first entry."""
    log.add(ask(), answer(1))
    log.add(opens=True)
    log.add(result(), answer())
    log.add(abandons="cancelled")
    assert marks(log) == [("cancelled", 3, 4)]
    assert [waits.exchange for waits in log.state.open] == [2]


def test_c1_a_second_attempt_in_one_reservation_is_refused(log):
    """Nobody may open a turn inside a turn."""
    log.add(ask(), opens=True)
    log.refuses(InvalidOption, ask("other"), opens=True)


def test_c1_a_mark_by_hand_is_refused(log):
    """Marks are the record's own; a caller cannot hide entries."""
    log.refuses(InvalidOption, Draft(kind=Kind.ABANDONED, payload=b"{}", exchange=1, call=1))


def test_c1_what_came_in_with_the_failure_is_under_its_mark(log):
    """An answer that was never committed is kept for the operator, and taken back in the same write."""
    log.add(ask(), opens=True)
    log.add(answer(), abandons="failed")
    assert log.kinds == ["input", "response", "abandoned"]
    assert marks(log) == [("failed", 2, 2)]
    assert log.state.exchange == 0


# --- inputs that nobody answered -------------------------------------------------------------------------------------


def test_o34_a_retry_of_the_same_input_is_not_recorded_twice(log):
    """Three failures and a success: one input, three marks, one answer."""
    for _ in range(3):
        log.add(ask(), opens=True)
        log.add(abandons="failed")
    log.add(ask(), opens=True)
    log.add(answer(), settles=True)
    assert log.kinds == ["input", "abandoned", "abandoned", "abandoned", "response"]
    assert (log.state.turns, log.state.exchanges) == (1, 1)


def test_o34_another_input_supersedes_the_unanswered_one(log):
    """The old one is marked and does not count as a turn any more."""
    log.add(ask(), answer())
    log.add(ask("two"), opens=True)
    log.add(abandons="failed")
    log.add(ask("three"), opens=True)
    assert marks(log) == [("failed", 4, 3), ("superseded", 3, 4)]
    assert (log.state.turn, log.state.turns) == (6, 2)


def test_o34_the_same_words_after_an_answer_are_a_new_turn(log):
    """A user may say the same sentence twice (case O-18)."""
    for _ in range(2):
        log.add(ask("go"), opens=True)
        log.add(answer(), settles=True)
    assert log.kinds == ["input", "response"] * 2


@pytest.mark.parametrize("draft", [answer(), say()], ids=["answer", "say"])
def test_o34_an_append_supersedes_an_unanswered_input_and_joins_the_turn_before(log, draft):
    """What comes without an attempt belongs to the turn that stands."""
    log.add(ask(), answer())
    log.add(ask("lost"), opens=True)
    log.add(abandons="failed")
    log.add(draft)
    assert marks(log)[-1] == ("superseded", 3, 4)
    assert log.entries[-1].turn == 1


@pytest.mark.parametrize("drafts", [(), (ask("two"),), (ask("go"), answer())], ids=["nothing", "other", "same words"])
def test_o34_a_delta_that_supersedes_takes_the_unanswered_input_out(log, drafts):
    """Once, whatever comes with it; the same words are a new turn then, and nothing is done where none waits."""
    log.add(ask("go"), opens=True)
    log.add(abandons="failed")
    log.add(*drafts, supersedes=True)
    assert marks(log) == [("failed", 2, 1), ("superseded", 1, 2)]
    assert log.state.unanswered is None
    entries = log.header.entries
    log.add(supersedes=True)
    assert log.header.entries == entries
    log.add(ask("go"), opens=True)
    assert log.kinds[-1] == "input"
    log.refuses(InvalidOption, supersedes=True)


def test_o34_a_turn_without_an_input_goes_on_with_the_unanswered_one(log):
    """`opens` alone after a failure: the input is answered where it stands."""
    log.add(ask(), opens=True)
    log.add(abandons="failed")
    log.add(opens=True)
    log.add(answer(), settles=True)
    assert log.kinds == ["input", "abandoned", "response"]
    assert log.entries[-1].turn == 1


def test_b1_a_mark_takes_in_what_failed_right_before_it(log):
    """However many attempts and inputs fail in a row, the newest mark alone leads to where something stands."""
    log.add(ask(), answer())
    for number in range(4):
        log.add(ask(f"{number}"), opens=True)
        log.add(*[answer()] * (number % 2))
        log.add(abandons="failed")
        log.add(opens=True)
        log.add(abandons="cancelled")
    log.add(ask("last"), opens=True)
    newest = [entry for entry in log.entries if entry.kind is Kind.ABANDONED][-1]
    assert (newest.exchange, newest.call, newest.seq) == (3, newest.seq - 1, log.header.entries - 1)
    assert log.state.abandoned == (3, newest.seq)
    assert log.state.unanswered.since == 3
    log.add(answer(), settles=True)
    assert (log.state.turns, log.state.exchanges) == (2, 2)
    log.add(opens=True)
    log.add(abandons="failed")
    assert marks(log)[-1] == ("failed", log.header.entries, log.header.entries - 1)


def test_b1_a_mark_takes_nothing_in_that_stands(log):
    """A late result behind a failed input stands, and so does all before it: there each mark is alone."""
    log.add(ask(), answer(2))
    log.add(parks=(2,))
    log.add(ask("two"), opens=True)
    log.add(abandons="failed")
    log.add(result(0, exchange=2))
    log.add(ask("three"), opens=True)
    assert marks(log) == [("failed", 4, 3), ("superseded", 3, 3)]
    assert log.state.abandoned == (0, 0)
    log.add(abandons="failed")
    log.add(ask("four"))
    assert marks(log)[2:] == [("failed", 8, 7), ("superseded", 7, 8)]


def test_b1_e6_a_cut_in_what_failed_leaves_the_rest_of_it_behind(log):
    """The stretch begins where the record does by now; the next mark takes in no entry that has left."""
    for number in range(3):
        log.add(ask(f"{number}"), opens=True)
        log.add(abandons="failed")
    assert log.state.abandoned == (8, 8)
    log.add(cut=3)
    assert (log.state.unanswered.since, log.header.cut.turns) == (4, 0)
    log.add(ask("last"))
    assert marks(log)[-1] == ("superseded", 4, 8)
    log.add(ask("next"), cut=9)
    assert (log.state.abandoned, log.kinds) == ((0, 0), ["input", "input"])


# --- pairing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "drafts",
    [
        (result(),),
        (ask(), result()),
        (ask(), answer(), result()),
        (ask(), answer(1), result(1)),
        (ask(), answer(1), result(0), result(0)),
        (ask(), answer(2), result(0), result(0)),
        (ask(), answer(1), answer()),
        (ask(), answer(1), ask("next")),
        (ask(), answer(2), result(1), ask("next")),
        (ask(), answer(1), result(0), answer(1), result(0, exchange=2)),
    ],
    ids=[
        "39 first of all",
        "39 without response",
        "39 without call",
        "44 position out of range",
        "42 twice",
        "42 twice, one open",
        "40 response while open",
        "40 input while open",
        "40 input while one of two is open",
        "44 result of an older exchange",
    ],
)
def test_bad_input_39_to_44_that_break_pairing_are_refused_whole(log, drafts):
    """Nothing of the delta is recorded; the record can go on."""
    log.refuses(PairingViolation, *drafts)
    log.add(ask(), answer(1), result())


def test_bad_input_43_parallel_results_may_come_in_any_order(log):
    """The record keeps the order of arrival; nothing waits at the end."""
    log.add(ask(), answer(3), result(2), result(0), result(1))
    assert [entry.call for entry in log.entries[2:]] == [2, 0, 1]
    assert log.state.open == ()


def test_bad_input_40_what_a_user_says_while_a_call_waits_stays_in_its_exchange(log):
    """O-08: it is recorded where it came and belongs to the exchange that it interrupted."""
    log.add(ask(), answer(1), say(), result())
    assert [entry.exchange for entry in log.entries] == [0, 2, 2, 2]


# --- parked calls ----------------------------------------------------------------------------------------------------


def test_c4_a_parked_exchange_lets_the_conversation_go_on_and_takes_its_late_result(log):
    """The late result names its exchange; the second one for the same call is refused."""
    log.add(ask(), opens=True)
    log.add(answer(1), parks=())
    log.add(parks=(2,))
    log.add(settles=True)
    log.add(ask("next"), answer())
    log.add(result(exchange=2))
    assert log.state.open == ()
    assert (log.entries[-1].exchange, log.entries[-1].turn) == (2, 3)
    log.refuses(PairingViolation, result(exchange=2))


def test_c4_a_late_result_after_an_unanswered_turn_leaves_that_turn_waiting(log):
    """The result is nobody's new input: the failed turn's retry still finds its own."""
    log.add(ask(), opens=True)
    log.add(answer(2))
    log.add(parks=(2,))
    log.add(settles=True)
    log.add(ask("two"), opens=True)
    log.add(abandons="failed")
    log.add(result(1, exchange=2))
    assert log.state.unanswered is not None
    assert log.state.open[0].waiting == (0,)
    log.add(ask("two"), opens=True)
    log.add(answer(), settles=True)
    assert log.kinds.count("input") == 2
    log.add(result(0, exchange=2))
    assert log.state.open == ()


def test_c4_only_an_open_exchange_can_be_parked(log):
    """Another one is refused, and nothing changes."""
    log.add(ask(), answer())
    log.refuses(PairingViolation, parks=(2,))
    log.refuses(PairingViolation, parks=(7,))


# --- what is said beside an input ------------------------------------------------------------------------------------


def test_rule_4_the_newest_message_beside_an_input_is_named_by_what_follows(log):
    """So that a window finds it without reading the turn, also after a failed attempt and a superseded input."""
    log.add(ask(), say("a"), say("b"), answer(), answer())
    assert [entry.call for entry in log.entries] == [0, 0, 2, 3, 3]
    log.add(ask("two"), opens=True)
    log.add(say("taken back"))
    log.add(abandons="failed")
    log.add(ask("two"), opens=True)
    log.add(say("stands"))
    log.add(answer())
    assert log.entries[-1].call == log.entries[-2].seq
    log.add(abandons="failed")
    log.add(answer())
    assert (log.entries[-1].turn, log.entries[-1].call) == (1, 3)


# --- instructions, retention -----------------------------------------------------------------------------------------


def test_o17_instructions_stand_only_at_the_head(log):
    """Bad input 46: once anything is recorded they are refused with the way out."""
    log.add(instructions(), instructions(), ask(), answer())
    for drafts in ((instructions(),), (ask(), instructions())):
        assert "send them with the request" in str(log.refuses(InvalidMessage, *drafts))
    Log().refuses(InvalidMessage, ask(), instructions())


def test_d07_the_retention_bound_holds_to_the_byte_and_a_mark_always_finds_room(log):
    """One byte more is refused with both numbers; abandoning needs no room."""
    draft = ask()
    log.add(draft, opens=True, max_retained_bytes=len(draft.payload))
    refusal = log.refuses(DecisionHistoryRetentionExceeded, answer(), max_retained_bytes=len(draft.payload))
    assert (refusal.size, refusal.limit) == (len(draft.payload) + len(answer().payload), len(draft.payload))
    log.add(abandons="failed", max_retained_bytes=1)
    with pytest.raises(DecisionHistoryRetentionExceeded):
        extend(log.header, Delta(drafts=(ask("x"),), idempotency="x"), 1, max_retained_bytes=5)


# --- cuts ------------------------------------------------------------------------------------------------------------


def summary(covers):
    return Draft(kind=Kind.SUMMARY, payload=b'"in short"', call=covers)


def test_e6_a_cut_names_its_anchor_and_lowers_what_is_counted(log):
    """Number, digest, turns and exchanges of what left; the retained bytes are those that stay."""
    log.add(ask(), answer(), ask("two"), answer(), ask("three"))
    digest = log.entries[1].digest
    log.add(cut=2)
    cut = log.header.cut
    assert (cut.seq, cut.digest, cut.turns, cut.exchanges) == (2, digest, 1, 1)
    assert (log.state.turns, log.state.exchanges) == (3, 2)
    assert (log.header.entries, log.header.retained) == (5, 3)
    assert log.header.bytes == sum(len(entry.payload) for entry in log.entries)
    log.add(cut=4)
    assert (log.header.cut.turns, log.header.cut.exchanges, log.kinds) == (2, 2, ["input"])


def test_e6_a_cut_stands_between_two_turns_or_behind_all(log):
    """Every other place is refused, whole; one that was passed already takes nothing."""
    log.add(ask(), say(), answer(1), result(), answer(), ask("two"))
    for at in (1, 2, 3, 4, 7):
        log.refuses(InvalidOption, cut=at)
    log.add(cut=5)
    assert log.kinds == ["input"]
    for at in (1, 5):
        log.add(cut=at)
    log.add(answer(), cut=7)
    assert (log.entries, log.header.bytes, log.state.turn, log.state.exchange) == ([], 0, 0, 0)
    log.add(ask("three"))
    assert [entry.seq for entry in log.entries] == [8]


def test_e6_a_cut_takes_entries_of_its_own_commit(log):
    """The receipt tells of all that came, what is to be stored is what stays."""
    log.add(ask(), answer())
    grown = log.add(ask("two"), answer(), ask("three"), cut=4)
    assert (grown.receipt.first, grown.receipt.last) == (3, 5)
    assert [entry.seq for entry in grown.entries] == [5]


def test_e6_a_cut_waits_for_open_calls_and_attempts(log):
    """What waits keeps its exchange; an attempt keeps all that it may go back to."""
    log.add(ask(), answer(1))
    log.add(parks=(2,))
    log.add(ask("two"), answer())
    refusal = log.refuses(PairingViolation, cut=2)
    assert refusal.facts["exchange"] == 2
    log.add(result(exchange=2))
    log.add(ask("three"), opens=True)
    log.refuses(InvalidOption, cut=2)
    log.refuses(InvalidOption, answer(), cut=2)
    log.add(answer(), settles=True, cut=2)
    assert log.kinds[0] == "input"
    log.refuses(PairingViolation, result(exchange=2))


def test_e6_an_attempt_goes_back_to_nothing_that_left(log):
    """What was abandoned or superseded is counted out; an unanswered input forgets what stood before it."""
    log.add(ask(), answer())
    log.add(ask("lost"), opens=True)
    log.add(answer())
    log.add(abandons="failed")
    log.add(ask("two"), opens=True)
    assert marks(log) == [("failed", 4, 4), ("superseded", 3, 5)]
    log.add(abandons="failed")
    log.add(cut=6)
    assert (log.header.cut.turns, log.header.cut.exchanges) == (1, 1)
    assert log.state.turns - log.header.cut.turns == 1
    assert (log.state.unanswered.turn, log.state.unanswered.exchange, log.state.unanswered.said) == (0, 0, 0)
    log.add(ask("three"))
    assert (log.state.turns, log.state.turn) == (2, 10)


def test_e6_an_unanswered_input_that_leaves_has_no_retry(log):
    """The same input afterwards is recorded like any other."""
    log.add(ask(), opens=True)
    log.add(abandons="failed")
    log.add(cut=2)
    assert (log.state.unanswered, log.state.turn) == (None, 0)
    log.add(ask(), opens=True)
    assert log.kinds == ["input"]


def test_e6_a_summary_leaves_with_its_entry_and_waits_for_what_it_passed_over(log):
    """What it covers may leave before it; what came late and is not covered yet keeps the place."""
    log.add(ask(), answer(1))
    log.add(parks=(2,))
    log.add(ask("two"), answer())
    log.add(summary(4), ask("three"), answer())
    log.add(result(exchange=2))
    assert log.state.late == 2
    log.refuses(InvalidOption, cut=2)
    log.add(summary(7), ask("four"))
    assert log.state.late == 0
    log.add(cut=2)
    assert (log.state.summary, log.state.summarised) == (9, 7)
    log.add(cut=9)
    assert (log.state.summary, log.state.summarised, log.kinds) == (0, 0, ["input"])


def test_e6_a_journal_that_leaves_out_what_is_cut_is_found_out(log):
    """A missing entry is named; nothing is anchored to what was not seen."""
    log.add(ask(), answer(), ask("two"), answer())
    for stored in ([], log.entries[1:], [log.entries[0], *log.entries[2:]]):
        with pytest.raises(DecisionHistoryCorrupt):
            extend(log.header, Delta(idempotency="cut", cut=4), 9, stored=stored)


def test_e6_a_cut_makes_room_for_its_own_commit(log):
    """A bound is on what is retained when the commit is done."""
    log.add(ask("x" * 100), answer())
    bound = log.header.bytes
    log.refuses(DecisionHistoryRetentionExceeded, ask("y" * 100), max_retained_bytes=bound)
    log.add(ask("y" * 100), max_retained_bytes=bound, cut=2)
    assert log.header.bytes < bound


# --- replay ----------------------------------------------------------------------------------------------------------


def test_i08_a_replay_is_told_from_a_conflict_by_content_alone(log):
    """Same drafts and flags: the first receipt. Any other byte, kind, place or flag: a conflict."""
    delta = Delta(drafts=(ask(), answer(2), result(1)), idempotency="same")
    receipt = extend(log.header, delta, 5).receipt
    assert replayed(receipt, delta) == receipt
    assert replayed(receipt, msgspec.structs.replace(delta, sent=b"{}", max_retained_bytes=9)) == receipt
    for drafts in (
        (),
        (ask(), answer(2)),
        (ask(), answer(2), result(0)),
        (ask(), answer(2), result(1, text="other")),
        (say("ask"), answer(2), result(1)),
    ):
        with pytest.raises(DecisionHistoryConflict):
            replayed(receipt, msgspec.structs.replace(delta, drafts=drafts))
    for flags in ({"opens": True}, {"settles": True}, {"abandons": "failed"}):
        with pytest.raises(DecisionHistoryConflict):
            replayed(receipt, msgspec.structs.replace(delta, **flags))


def test_i08_a_replay_is_told_by_what_was_given_where_a_commit_says_so(log):
    """Whatever was made of it; other flags or another thing given are a conflict, and so is a commit without one."""
    delta = Delta(drafts=(ask(),), idempotency="same", given=b"one")
    receipt = extend(log.header, delta, 5).receipt
    for drafts in ((ask(),), (ask("other"),), ()):
        assert replayed(receipt, msgspec.structs.replace(delta, drafts=drafts)) == receipt
    for change in ({"given": b"two"}, {"given": b""}, {"settles": True}):
        with pytest.raises(DecisionHistoryConflict):
            replayed(receipt, msgspec.structs.replace(delta, **change))


# --- recovery --------------------------------------------------------------------------------------------------------


def test_o33_recovery_marks_the_attempt_once_and_fences_by_the_epoch(log):
    """The killed attempt is taken back; the epoch grows, so the old worker cannot write."""
    log.add(ask(), opens=True)
    log.add(answer(1))
    held = take(msgspec.structs.replace(log.header, token=""), "t", "law", 9)
    recovered = recover(held, None, 10)
    assert [entry.kind for entry in recovered.entries] == [Kind.ABANDONED]
    assert (recovered.entries[0].exchange, recovered.entries[0].call) == (2, 2)
    assert recovered.header.epoch == held.epoch + 1
    assert recovered.header.token == ""
    assert recovered.header.state.open == ()
    assert recovered.header.state.unanswered is not None


@pytest.mark.parametrize(
    ("token", "epoch"), [("t", 0), ("t", -1), ("t", 2), ("u", 1), ("", 1)], ids=lambda value: repr(value)
)
def test_i13_a_reservation_is_its_token_and_its_epoch(log, token, epoch):
    """Either one that differs is another's."""
    held = take(log.header, "t", "law", 9)
    assert (check_owner(held, "t", 1), held.epoch) == (held, 1)
    with pytest.raises(DecisionHistoryFenced):
        check_owner(held, token, epoch)
    with pytest.raises(DecisionHistoryFenced):
        check_owner(None, "t", 1)


@pytest.mark.parametrize("epoch", [0, 2])
def test_i14_a_recovery_that_names_another_epoch_is_refused(log, epoch):
    """The one that holds now is not the one that was meant; none named is whoever holds."""
    held = take(log.header, "t", "law", 9)
    with pytest.raises(DecisionHistoryNotReserved):
        recover(held, epoch, 10)
    assert recover(held, 1, 10).header.epoch == recover(held, None, 10).header.epoch == 2


def test_o33_an_interrupt_before_anything_was_written_is_still_seen(log):
    """The mark covers nothing, and says that there was an attempt."""
    log.add(ask(), answer())
    grown = interrupt(log.header, "recovered", 9, "i")
    assert (grown.entries[0].exchange, grown.entries[0].call) == (3, 2)
    assert grown.header.state == msgspec.structs.replace(log.state, abandoned=(3, 3))


def test_b8_every_entry_carries_the_chain_and_the_header_its_end(log):
    """The digest of each entry follows from the one before, the first from the key."""
    log.add(ask(), say(), answer(2), result(1), result(0))
    log.add(ask("x"), opens=True)
    log.add(abandons="failed")
    digest = first_digest(KEY)
    for position, entry in enumerate(log.entries):
        assert entry.seq == position + 1
        digest = recompute_digest(digest, entry)
        assert digest == entry.digest
    assert digest == log.header.digest
    assert log.header.bytes == sum(len(e.payload) for e in log.entries if e.kind is not Kind.ABANDONED)
