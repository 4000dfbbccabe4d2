"""
Windows over random histories: every one is compared with a naive model that tries all cuts of the full message list.

Budgets are short by default; `MINUTEBOOK_PROVE=1` builds a million windows and a hundred thousand counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.budgets import PROVE, budget
from tests.policy.histories import REFUSED, SHAPES, Both, Remembering, compact, random_steps, real_window, steps

from minutebook.errors import DecisionHistoryCorrupt, DecisionHistoryLimitExceeded, InvalidOption
from minutebook.model import units
from minutebook.model.bounds import WindowLimits
from minutebook.model.entries import Kind
from minutebook.policy import pairing, projection, window

WINDOWS = budget(6_000, 1_000_000)
COUNTS = budget(600, 100_000)
FORMATS = tuple(SHAPES)
HUGE = 2**40

quick = settings(
    max_examples=budget(60, 2_000), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def violations(shape, messages):
    """Count what breaks the pairing rules in a list of wire messages, looking at nothing else."""
    found, waiting, seen = 0, [], set()
    for message in messages:
        made, answered = shape.ids(message)
        for holder, key in answered:
            if not waiting or waiting[0] != holder.get(key, ""):
                found += 1  # no call, another order, or something stands between
            else:
                waiting.pop(0)
        if not answered and waiting and not (made and shape.name == "openai-responses"):
            found += 1
        for holder, key in made:
            id_ = holder.get(key, "")
            found += bool(id_) and id_ in seen
            seen.add(id_)
            waiting.append(id_)
    return found + len(waiting)


def is_input(shape, message):
    """Return whether a message is the user's own words."""
    return message.get("role") == "user" and not shape.ids(message)[1]


def compare(both, max_messages, max_bytes, rows=1000, tail=0):
    """Build one window both ways; return it after every rule was checked."""
    told = both.story.window(max_messages, max_bytes)
    real = real_window(both, max_messages, max_bytes, rows=rows, tail=tail)
    if REFUSED in (told, real):
        assert told == real == REFUSED
        return None
    plan, built = real
    text, kept = told
    assert built.json.decode() == text
    messages = json.loads(built.json)
    shape = both.shape
    assert violations(shape, messages) == 0
    assert not messages or is_input(shape, messages[0])
    assert len(messages) == plan.messages == built.sent.messages <= max_messages
    assert len(built.json) == built.sent.bytes <= max_bytes
    assert built.sent.digest == hashlib.sha256(text.encode()).hexdigest()
    assert [unit.key for unit in plan.units] == [unit.key for unit in kept]
    assert plan.trimmed == (len(kept) < len(both.story.units()))
    if not pairing.repeated_ids(plan.units, both.wire.id_form):
        assert plan.size == len(built.json)
    return built


def every_limit(both, random):
    """Yield limits of interest: every number of messages, and bytes around the size of every cut."""
    units = both.story.units()
    whole = both.story.plain(units)
    for count in range(1, len(whole) + 2):
        yield count, HUGE
    sizes = {len(compact(both.story.plain(units[at:])).encode()) for at in range(len(units) + 1)}
    for size in sorted(sizes):
        for limit in (size - 1, size, size + 1):
            if limit > 0:
                yield HUGE, limit
        yield random.randint(1, len(whole) + 1), size


@quick
@given(history=steps, name=st.sampled_from(FORMATS), rows=st.integers(1, 9), tail=st.integers(0, 12))
def test_i22_i23_every_window_equals_the_naive_model_at_every_limit(history, name, rows, tail):
    """Every call has its result, in order; within all bounds or refused; what left is a prefix; at any page size."""
    both = Both(name).run(history)
    for max_messages, max_bytes in every_limit(both, Random(0)):
        compare(both, max_messages, max_bytes, rows, min(tail, len(both.entries)))


def built_windows(count, seed=20261129):
    """Compare at least `count` windows over random histories, and return how many, and how many were cut or refused."""
    random = Random(seed)
    done = cut = refused = 0
    while done < count:
        both = Both(FORMATS[done % len(FORMATS)]).run(random_steps(random, random.randint(5, 60)))
        for max_messages, max_bytes in every_limit(both, random):
            built = compare(both, max_messages, max_bytes, random.randint(1, 20), random.randint(0, len(both.entries)))
            done += 1
            refused += built is None
            cut += built is not None and built.sent.trimmed
    return done, cut, refused


@pytest.mark.timeout(14_400 if PROVE else 120)
def test_i22_windows_over_random_histories(figure):
    """I-22: a million windows in the long run, every provider format, no violation."""
    done, cut, refused = built_windows(WINDOWS)
    figure(f"{done:,} windows, {cut:,} cut, {refused:,} refused, 0 violations")
    assert done >= WINDOWS
    assert cut > done // 10
    assert refused > done // 100


def _faulty_mandatory(self):
    return 0


def _results_as_they_came(entry):
    return (0, 0) if entry.kind is Kind.RESPONSE else (1, entry.seq)


FAULTS = {
    "the latest exchange may leave": (window.Scan, "_mandatory", _faulty_mandatory),
    "results in the order they arrived": (window, "_shown_order", _results_as_they_came),
    "one separator too few is counted": (window, "array_size", lambda messages, size: 1 + size + max(0, messages - 1)),
    "repeated ids stay": (projection, "repeated_ids", lambda units, form: {}),
    "an abandoned attempt is shown": (window, "pass_over", lambda mark, below, inputs: below),
    "what was said into a waiting exchange is lost": (window.Scan, "_take_waiting", lambda self, entry: None),
    "what was said beside an input is lost": (window.Scan, "missing_input", lambda self, limits: (0, 0)),
    "reading stops too early": (window.Scan, "reaches", lambda self, limits, low, roomy: bool(self._found)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_i22_i23_i26_a_planted_fault_is_found(fault, monkeypatch):
    """The comparison finds each fault that is planted in the policy."""
    owner, name, replacement = FAULTS[fault]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, KeyError, IndexError, DecisionHistoryCorrupt)):
        built_windows(20_000)


@pytest.mark.timeout(14_400 if PROVE else 120)
def test_i26_sizes_are_exact_to_the_byte(figure):
    """I-26: the planned size is the length of what is sent, and of a naive encoding; the limit bites one byte below."""
    random = Random(26)
    counted = 0
    while counted < COUNTS:
        both = Both(FORMATS[counted % len(FORMATS)]).run(random_steps(random, 40))
        built = compare(both, HUGE, HUGE)
        if not len(built):
            continue
        counted += 1
        size = len(json.dumps(json.loads(built.json), ensure_ascii=False, separators=(",", ":")).encode())
        assert size == len(built.json) == built.sent.bytes
        assert compare(both, HUGE, size).json == built.json
        shorter = compare(both, HUGE, size - 1)
        assert shorter is None or len(shorter.json) < size
    figure(f"{counted:,} counts, 0 bytes of difference")


def test_i26_a_planted_miscount_is_found(monkeypatch):
    """A unit that measures one byte too little is found at once."""
    monkeypatch.setattr(window.Unit, "size", property(lambda self: max(0, sum(e.size for e in self.entries) - 1)))
    with pytest.raises(AssertionError):
        built_windows(2_000)


@quick
@given(history=steps, name=st.sampled_from(FORMATS))
def test_rule_4_under_the_limits_the_window_is_the_projection_item_for_item(history, name):
    """O-04: nothing is changed without need, and two projections are byte-identical."""
    both = Both(name).run(history)
    first, again = compare(both, HUGE, HUGE), compare(both, HUGE, HUGE, rows=3)
    assert first.json == again.json
    assert first.messages == both.story.messages(both.story.units())


@quick
@given(history=steps, name=st.sampled_from(FORMATS))
def test_i25_building_windows_writes_nothing(history, name):
    """Header and every entry, digests included, are the same before and after."""
    both = Both(name).run(history)
    before = (both.header, msgspec.msgpack.encode(both.entries))
    for max_messages, max_bytes in every_limit(both, Random(1)):
        real_window(both, max_messages, max_bytes, low=0.5)
    assert (both.header, msgspec.msgpack.encode(both.entries)) == before


CHILD = """
import hashlib, random, sys
from tests.policy.histories import Both, REFUSED, SHAPES, random_steps, real_window
digest = hashlib.sha256()
for seed in range(int(sys.argv[1])):
    for name in SHAPES:
        both = Both(name).run(random_steps(random.Random(seed), 60))
        for limit in range(1, 12):
            real = real_window(both, limit, 2**40)
            digest.update(b"refused" if real == REFUSED else real[1].json)
        digest.update(both.header.digest)
print(digest.hexdigest())
"""


def test_i24_windows_are_the_same_bytes_under_every_hash_seed():
    """Child processes with different hash seeds print one digest over all windows and chains."""
    digests = set()
    for seed in ("0", "1", "4294967295"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()}
        command = [sys.executable, "-c", CHILD, budget("12", "200")]
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(digests) == 1


def pythons():
    """
    Return the interpreters to compare, by name: the test's own, those of MINUTEBOOK_PYTHONS (paths, between colons)
    and every `python3.x` on the path. One is asked for its version, since a shim may stand for none.
    """
    named = [path for path in os.environ.get("MINUTEBOOK_PYTHONS", "").split(os.pathsep) if path]
    on_path = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    found = {platform.python_version(): sys.executable}
    for path in [*named, *filter(None, on_path)]:
        asked = [path, "-c", "import platform, msgspec, hypothesis; print(platform.python_version())"]
        version = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip()
        if version:
            found.setdefault(version, path)
        elif path in named:
            raise AssertionError(f"{path} does not run, or lacks msgspec or hypothesis")
    return found


def test_i24_windows_are_the_same_bytes_on_every_python(figure):
    """Each interpreter that is here, and has what the package needs, prints one digest over all windows and chains."""
    found = pythons()
    if len(found) == 1:
        pytest.skip(f"Python {min(found)} is the only one here with msgspec; name others in MINUTEBOOK_PYTHONS")
    digests = {}
    for version, path in found.items():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{os.getcwd()}/src", os.getcwd()])}
        run = subprocess.run(
            [path, "-c", CHILD, budget("12", "200")], env=environment, check=True, capture_output=True, text=True
        )
        digests[version] = run.stdout
    assert len(set(digests.values())) == 1, digests
    figure(f"the same windows on Python {', '.join(sorted(digests))}")


# --- the start that stays (SPEC B3, case O-50) -----------------------------------------------------------------------


def grow(both, turns, start=0, low=0.5, limits=(12, HUGE), tell=None):
    """Go through turns of one exchange each, remembering the window's start as a commit does; yield the windows."""
    for turn in range(start, start + turns):
        both._open([both.shape.user(f"question {turn}")])
        real = real_window(both, *limits, low=low)
        plan, built = real
        calls = [(f"c{turn}", "look")] if turn % 2 else []
        body, sent = both.shape.response("" if calls else f"answer {turn}", calls)
        draft = both.wire.response(body)
        both._commit(
            [draft],
            lambda story, seqs, sent=sent, calls=calls: story.answer(seqs[-1], sent, calls),
            window_from=plan.window_from,
            window_limits=limits,
        )
        if calls:
            both._give(both.story.open()[-1], 1, 0)
        both._settle(0, 0, 0)
        yield plan, built


@pytest.mark.parametrize("name", FORMATS)
def test_b3_the_start_stays_for_several_turns_and_the_prefix_is_byte_identical(name):
    """Between two cuts each window begins with all bytes of the one before it; a cut leaves room for several turns."""
    both = Both(name)
    windows = list(grow(both, 40))
    cuts, since = [], 0
    for (before_plan, before), (plan, built) in pairwise(windows):
        since += 1
        if plan.start == before_plan.start or (not before_plan.trimmed and plan.window_from == before_plan.window_from):
            assert built.json.startswith(before.json[:-1])
            assert plan.left == (0, 0)
        else:
            cuts.append(since)
            since = 0
            assert plan.left[0] == before_plan.window_from
            assert len(built) <= 6 + 3
        assert both.header.state.window_limits == (12, HUGE)
    assert len(cuts) >= 3
    assert all(turns >= 2 for turns in cuts[1:])
    assert both.header.state.window_from == windows[-1][0].window_from > 0


def test_b3_the_kept_start_equals_the_naive_model():
    """With a start kept in the header, windows equal those of the model that is told the start."""
    for name in FORMATS:
        for low in (0.1, 0.5, 0.65, 0.99):
            both = Both(name)
            for _plan, built in grow(both, 30, low=low):
                assert built.sent.messages <= 12
            told = both.story.window(12, HUGE, start=both.header.state.window_from, low=low)
            real = real_window(both, 12, HUGE, low=low)
            assert told[0] == real[1].json.decode()
            for rows in (1, 2, 3, 5):
                assert real_window(both, 12, HUGE, low=low, rows=rows)[1].json == real[1].json
                assert real_window(both, 12, HUGE, low=low, rows=rows)[0].trimmed == real[0].trimmed


def test_b3_other_limits_are_planned_anew():
    """A start that was chosen under other limits does not bind; raised limits show more again."""
    both = Both("openai-chat")
    for _ in grow(both, 40):
        pass
    cut = real_window(both, 12, HUGE, low=0.5)[1]
    wider = real_window(both, 40, HUGE, low=0.5)[1]
    assert len(wider) > len(cut)
    assert wider.sent.first < cut.sent.first
    assert len(real_window(both, 4, HUGE, low=0.5)[1]) <= 4


def test_b3_low_water_1_equals_dropping_one_by_one():
    """Without hysteresis the window is the longest that fits, whatever the header remembers."""
    both = Both("openai-chat")
    for _ in grow(both, 20, low=1.0):
        for limit in range(1, 16):
            compare(both, limit, HUGE)


@quick
@given(history=steps, name=st.sampled_from(FORMATS), rows=st.integers(1, 9), low=st.sampled_from((0.2, 0.65, 0.9)))
def test_b3_hysteresis_equals_the_naive_model_over_random_histories(history, name, rows, low):
    """The start that a first window chose stays while it fits, through abandoned attempts and late results."""
    both, start = Both(name), None
    limits = (9, HUGE)
    for step in history:
        both.run([step])
        told, real = both.story.window(*limits, start=start, low=low), real_window(both, *limits, rows=rows, low=low)
        if REFUSED in (told, real):
            assert told == real == REFUSED
            continue
        plan, built = real
        assert built.json.decode() == told[0]
        state = msgspec.structs.replace(both.header.state, window_from=plan.window_from, window_limits=limits)
        both.header = msgspec.structs.replace(both.header, state=state)
        start = plan.window_from or None
        if both.header.attempt is not None:  # a mark takes the state back; here the start is kept through it
            kept = msgspec.structs.replace(
                both.header.attempt.state, window_from=plan.window_from, window_limits=limits
            )
            attempt = msgspec.structs.replace(both.header.attempt, state=kept)
            both.header = msgspec.structs.replace(both.header, attempt=attempt)


def with_start(header, plan, limits):
    """Return the header as a commit leaves it after this window, in an attempt's way back too."""
    kept = {"window_from": plan.window_from, "window_limits": limits}
    header = msgspec.structs.replace(header, state=msgspec.structs.replace(header.state, **kept))
    if header.attempt is None:
        return header
    back = msgspec.structs.replace(header.attempt.state, **kept)
    return msgspec.structs.replace(header, attempt=msgspec.structs.replace(header.attempt, state=back))


@pytest.mark.timeout(3_600 if PROVE else 120)
def test_b3_hysteresis_over_long_random_histories(figure):
    """The same over histories of up to seventy steps, bounds by messages and by bytes, any page and any known tail."""
    random, done, cut = Random(50), 0, 0
    while done < budget(4_000, 200_000):
        both, start = Both(FORMATS[done % len(FORMATS)]), None
        low = random.choice((0.2, 0.5, 0.65, 0.9))
        limits = random.choice(((9, HUGE), (6, HUGE), (HUGE, 700), (12, 1_200)))
        for step in random_steps(random, random.randint(20, 70)):
            both.run([step])
            done += 1
            told = both.story.window(*limits, start=start, low=low)
            tail = random.randint(0, len(both.entries))
            real = real_window(both, *limits, rows=random.randint(1, 15), low=low, tail=tail)
            if REFUSED in (told, real):
                assert told == real == REFUSED
                continue
            plan, built = real
            assert built.json.decode() == told[0]
            assert plan.trimmed == (len(told[1]) < len(both.story.units()))
            cut += plan.trimmed
            both.header, start = with_start(both.header, plan, limits), plan.window_from or None
    figure(f"{done:,} windows with a kept start, {cut:,} cut")
    assert cut > done // 10


@pytest.mark.parametrize("name", FORMATS)
def test_d08_the_latest_exchange_stays_behind_a_turn_that_waits(name):
    """Between it and the current input stands the input of a parked exchange: all three stay, or it is refused."""
    both = Both(name).run([("append", 1, 0, 0), ("ask", 0, 0, 0), ("answer", 0, 0, 1), ("park", 0, 0, 0)])
    both.run([("settle", 0, 0, 0), ("ask", 1, 1, 0)])
    plan, built = real_window(both, 99, HUGE)
    latest = len(built) - 2
    assert latest >= 2
    assert real_window(both, len(built) - 1, HUGE) == REFUSED == both.story.window(len(built) - 1, HUGE)
    assert [unit.is_exchange for unit in plan.units] == [True, False, False]


# --- what a process remembers (SPEC B1) ------------------------------------------------------------------------------


def remembered_windows(count, seed=7):
    """Compare at least `count` windows made with what was settled before; return how many, and how many had some."""
    random, done, settled = Random(seed), 0, 0
    while done < count:
        both, start = Both(FORMATS[done % len(FORMATS)]), None
        low = random.choice((0.5, 0.65, 0.9, 1.0))
        limits = random.choice(((9, HUGE), (6, HUGE), (HUGE, 700), (12, 1_200), (99, HUGE)))
        process = Remembering(both, *limits, low=low)
        for step in random_steps(random, random.randint(20, 90)):
            both.run([step])
            if random.random() < 0.4:
                continue
            done += 1
            asked = limits if random.random() < 0.8 else (random.randint(1, 30), HUGE)
            told = both.story.window(*asked, start=start if asked == limits and low < 1 else None, low=low)
            real = process.window(WindowLimits(max_messages=asked[0], max_bytes=asked[1], low_water=low))
            assert (told == REFUSED) == (real == REFUSED)
            if real == REFUSED:
                continue
            plan, built = real
            settled += process.tail.settled is not None
            assert built.json.decode() == told[0]
            assert plan.trimmed == (len(told[1]) < len(both.story.units()))
            cold = real_window(both, *asked, low=low)[0]
            for field in ("messages", "size", "start", "window_from", "left"):
                assert getattr(plan, field) == getattr(cold, field), field
            if asked == limits:
                both.header, start = with_start(both.header, plan, limits), plan.window_from or None
    return done, settled


@pytest.mark.timeout(3_600 if PROVE else 120)
def test_b1_what_was_settled_before_changes_no_window(figure):
    """A process that remembers builds the windows of one that reads all anew, whatever was recorded in between."""
    done, settled = remembered_windows(budget(4_000, 200_000))
    figure(f"{done:,} windows, {settled:,} with settled exchanges")
    assert settled > done // 4


def _settled_to_the_end(self, header):
    return header.entries + 1


def _settled_without_the_way_back(self, header):
    return header.state.exchange or header.state.turn


SETTLED_FAULTS = {
    "all is settled": (window.Scan, "_settled_below", _settled_to_the_end),
    "an attempt cannot be taken back": (window.Scan, "_settled_below", _settled_without_the_way_back),
    "the input of a turn in two parts counts twice": (units.Settled, "cost", lambda self, at, turn: COST(self, at, 0)),
    "an input is settled before its answer": (window.Scan, "_has_exchange", lambda self, turn, below: True),
}
COST = units.Settled.cost


@pytest.mark.parametrize("fault", SETTLED_FAULTS)
def test_b1_control_what_is_settled_too_early_is_found(fault, monkeypatch):
    """The comparison finds each fault that is planted in what counts as settled."""
    owner, name, replacement = SETTLED_FAULTS[fault]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, KeyError, IndexError, DecisionHistoryCorrupt)):
        remembered_windows(20_000)


def test_b1_a_warm_window_takes_only_what_is_new(monkeypatch):
    """Beside 200 turns the next window looks at the entries of one or two of them, and reads nothing."""
    both = Both("openai-chat")
    process = Remembering(both, 40, HUGE)
    looked = []
    add = window.Scan.add
    monkeypatch.setattr(
        window.Scan, "add", lambda self, entries: add(self, [looked.append(e.seq) or e for e in entries])
    )
    for _ in grow(both, 200, limits=(40, HUGE), low=1.0):
        looked.clear()
        process.window()
    assert 0 < len(looked) <= 8
    assert process.tail.settled is not None
    assert len(process.tail.settled.units) <= 40 + 16 + 1


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, float("nan"), True, 2**63, "128", 1.0, None])
@pytest.mark.parametrize("option", ["max_messages", "max_bytes"])
def test_bad_input_51_limits_that_are_no_positive_integers_are_refused(option, value):
    """R at construction, with the option named."""
    with pytest.raises(InvalidOption) as caught:
        WindowLimits(**{option: value})
    assert caught.value.option == option


@pytest.mark.parametrize("value", [0, -0.5, 1.5, float("nan"), "1", True])
def test_bad_input_51_a_low_water_outside_its_range_is_refused(value):
    """Only 0 < low_water <= 1 makes sense."""
    with pytest.raises(InvalidOption):
        WindowLimits(low_water=value)


def test_bad_input_50_the_message_limit_bites_exactly_at_its_number():
    """One exchange of four messages: a limit of 4 sends it, a limit of 3 refuses and says the numbers."""
    both = Both("openai-chat").run([("ask", 1, 0, 0)])
    calls = [("a", "x"), ("b", "y")]
    body, sent = both.shape.response("", calls)
    both._commit([both.wire.response(body)], lambda story, seqs: story.answer(seqs[-1], sent, calls))
    both.run([("result", 0, 0, 0), ("result", 0, 0, 0), ("settle", 0, 0, 0)])
    assert len(compare(both, 4, HUGE)) == 4
    assert compare(both, 3, HUGE) is None
    size = len(compare(both, 4, HUGE).json)
    assert compare(both, 4, size).json
    assert compare(both, 4, size - 1) is None


def test_bad_input_49_an_exchange_larger_than_the_limit_refuses_without_content():
    """The refusal names sizes and limits, and holds no word of the conversation."""
    both = Both("openai-chat").run([("append", 1, 0, 0)])
    scan = window.Scan(both.header)
    scan.add(reversed(both.entries))
    with pytest.raises(DecisionHistoryLimitExceeded) as caught:
        scan.plan(WindowLimits(max_messages=1, max_bytes=50))
    assert caught.value.max_bytes == 50
    assert caught.value.bytes > 50
    assert "turn" not in str(caught.value)
