"""The token guard's arithmetic and its search: SPEC D10 to D12, case O-26."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from fractions import Fraction
from math import ceil, log2
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.histories import REFUSED, SHAPES, Both, compact, history_over, random_steps, steps

from minutebook.errors import DecisionHistoryLimitExceeded, InvalidOption, ProviderContextWindowExceeded
from minutebook.model.bounds import WindowLimits
from minutebook.model.context import ContextWindow, window_exceeded
from minutebook.model.tails import Tail
from minutebook.policy import tokens
from minutebook.policy.room import Room
from minutebook.policy.tokens import TokenGuard
from minutebook.testing import drive

HUGE = 2**40

# --- the reservation -------------------------------------------------------------------------------------------------


def test_d11_o26_the_reservation_is_ceil_of_the_input_plus_margin_plus_output() -> None:
    """O-26 b: 11,000 counted tokens with 2,400 of output reserve 16,112 of 16,000 and do not fit."""
    window = ContextWindow(context_window_tokens=16_000)
    assert window.reservation(11_000, 2_400) == 16_112
    counted = window.measured("openai", 11_000, 2_400)
    assert (counted.reservation, counted.window, counted.fits) == (16_112, 16_000, False)
    assert window.measured("openai", 11_000, 2_288).fits, "a reservation of exactly the window fits"
    assert not window.measured("openai", 11_000, 2_289).fits


@pytest.mark.parametrize(
    ("multiplier", "ratio"),
    [
        (1, Fraction(1)),
        (2, Fraction(2)),
        (1.1, Fraction(11, 10)),
        (1.0, Fraction(1)),
        ("1.1", Fraction(11, 10)),
        ("1000", Fraction(1000)),
        ("1.000000000000000000000000000000000001", 1 + Fraction(1, 10**36)),
        (Decimal("1.10"), Fraction(11, 10)),
        (Decimal("1.1E+1"), Fraction(11)),
        (Fraction(4, 3), Fraction(4, 3)),
    ],
)
def test_d11_the_factor_is_exact_whatever_it_is_written_as(multiplier: object, ratio: Fraction) -> None:
    """D11: no rounding of floats: a float means the decimal that it is written as, and no context of `decimal` acts."""
    window = ContextWindow(
        context_window_tokens=2**62,
        input_token_multiplier=multiplier,  # type: ignore[arg-type]
        safety_margin_tokens=0,
    )
    with localcontext(prec=2):
        for count in (0, 1, 10, 99, 100, 10**15, 10**30):
            assert window.reservation(count, 7) == ceil(count * ratio) + 7
    assert (
        ContextWindow(context_window_tokens=9, input_token_multiplier="1.1", safety_margin_tokens=0).reservation(100, 0)
        == 110
        < ceil(100 * 1.1)
    ), "the float product would round up"


@given(
    window=st.integers(1, 10**6),
    margin=st.integers(0, 10**5),
    output=st.integers(1, 10**5),
    ratio=st.fractions(1, 10, max_denominator=10**6),
)
def test_d12_the_most_input_is_the_last_that_fits(window: int, margin: int, output: int, ratio: Fraction) -> None:
    """D12: it fits when the reservation is at most the window, to the token."""
    context = ContextWindow(
        context_window_tokens=window + margin, input_token_multiplier=ratio, safety_margin_tokens=margin
    )
    most = context.most_input(output)
    assert context.reservation(most, output) <= window + margin < context.reservation(most + 1, output)


@pytest.mark.parametrize(
    "options",
    [
        *({"context_window_tokens": bad} for bad in (0, -1, True, 1.0, "9", None, 2**62 + 1)),
        *({"safety_margin_tokens": bad} for bad in (-1, True, 1.0, "9", None, 1000, 2**63)),
        *(
            {"input_token_multiplier": bad}
            for bad in (
                *(0, -1, 0.9, "0.99", True, None, b"1", 1001, 1e300, float("nan"), float("inf"), 10**400),
                *("", "1,2", "1e0", " 1", "1 ", "１", "+1", "1.", ".5", "1." + "0" * 37 + "1", "nan"),
                *(Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("1E+999999"), Decimal("1E-999999")),
                *(Decimal("1." + "1" * 60), Fraction(1, 2), Fraction(10**60 + 1, 10**60), [], 1 + 0j),
            )
        ),
    ],
    ids=repr,
)
def test_d10_a_window_is_checked_where_it_is_given(options: dict[str, object]) -> None:
    """D10: nothing is guessed and nothing is rounded; a value that exists is legal."""
    with pytest.raises(InvalidOption) as caught:
        ContextWindow(**{"context_window_tokens": 1000, **options})  # type: ignore[arg-type]
    assert caught.value.option == next(iter(options))


def test_d10_an_output_allowance_that_leaves_no_input_is_refused() -> None:
    """D10: a request that could never fit is told before the first one is made."""
    context = ContextWindow(context_window_tokens=1_000, safety_margin_tokens=500)
    context.check_output(498)
    with pytest.raises(InvalidOption, match="no room"):
        context.check_output(499)


# --- the search ------------------------------------------------------------------------------------------------------


def most_counts(removable: int) -> int:
    """The bound of D12."""
    return 2 * ceil(log2(removable + 1)) + 2


class Counter:
    """A counter by table: what the request without so many of the oldest units counts."""

    def __init__(self, counts: list[int], window: int) -> None:
        self.counts = counts
        self.context = ContextWindow(context_window_tokens=window, input_token_multiplier=1, safety_margin_tokens=0)
        self.asked: list[int] = []

    async def measure(self, removed: int) -> object:
        self.asked.append(removed)
        return self.context.measured("openai", self.counts[removed], 0)

    def search(self, sizes: list[int] | None = None) -> int | None:
        """How many leave; `None` where not even the minimum fits."""
        sizes = [100] * (len(self.counts) - 1) if sizes is None else sizes
        most_input = self.context.most_input(0)
        try:
            return drive(tokens.fewest_removed(sizes, sum(sizes) + 50, most_input, self.measure))  # type: ignore[arg-type]
        except ProviderContextWindowExceeded as refused:
            self.refused = refused
            return None

    def naive(self) -> int | None:
        """Drop one and count again."""
        window = self.context.context_window_tokens
        return next((removed for removed, count in enumerate(self.counts) if count <= window), None)


def falling(steps: list[int], least: int) -> list[int]:
    counts = [least]
    for step in reversed(steps):
        counts.append(counts[-1] + step)
    return counts[::-1]


monotone = st.builds(falling, st.lists(st.integers(0, 50), max_size=200), st.integers(0, 50))
any_sizes = st.lists(st.integers(0, 10**6), min_size=200, max_size=200)


def check_monotone(counts: list[int], window: int, sizes: list[int]) -> None:
    counter = Counter(counts, window)
    assert counter.search(sizes[: len(counts) - 1]) == counter.naive()
    assert len(counter.asked) <= most_counts(len(counts) - 1)
    assert len(counter.asked) == len(set(counter.asked)), "no request is counted twice"


@settings(max_examples=500, deadline=None)
@given(counts=monotone, window=st.integers(1, 3_000), sizes=any_sizes)
def test_d12_for_a_monotone_counter_the_search_is_dropping_one_by_one(
    counts: list[int], window: int, sizes: list[int]
) -> None:
    """D12: whatever the stored sizes say, the answer is the naive loop's, within the bound on counts."""
    check_monotone(counts, window, sizes)


@settings(max_examples=500, deadline=None)
@given(counts=st.lists(st.integers(0, 100), min_size=1, max_size=200), window=st.integers(1, 100), sizes=any_sizes)
def test_d12_for_any_counter_what_is_sent_was_counted_and_fits(
    counts: list[int], window: int, sizes: list[int]
) -> None:
    """D12: a counter that lies about length may cost a better answer, and never the bound or the fit."""
    counter = Counter(counts, window)
    removed = counter.search(sizes[: len(counts) - 1])
    assert len(counter.asked) <= most_counts(len(counts) - 1)
    if removed is None:
        assert counter.asked[-1] == len(counts) - 1
        assert counter.refused.count == counts[-1], "what is told is what the minimum counts"
        assert counter.refused.reservation > counter.refused.window
    else:
        assert removed in counter.asked
        assert counts[removed] <= window
        assert removed == 0 or counts[removed - 1] > window, "the next longer request was counted and is too large"


@settings(max_examples=500, deadline=None)
@given(
    counts=st.one_of(monotone, st.lists(st.integers(0, 100), min_size=1, max_size=200)),
    window=st.integers(1, 3_000),
    sizes=any_sizes,
    loop=st.integers(0, 10**7),
)
def test_d12_what_leaves_room_was_counted_and_fits_within_the_same_bound(
    counts: list[int], window: int, sizes: list[int], loop: int
) -> None:
    """D12, D8: no more counts than without room, and what comes back leaves what the least can leave."""
    counter, sizes = Counter(counts, window), sizes[: len(counts) - 1]
    room = Room(low_water=0.5, least=1 / 3, size=loop)
    try:
        whole, most = sum(sizes) + 2, counter.context.most_input(0)
        removed = drive(tokens.fewest_removed_with_room(sizes, whole, room, most, counter.measure))  # type: ignore[arg-type]
    except ProviderContextWindowExceeded:
        removed = len(sizes) + 1
    assert len(counter.asked) <= most_counts(len(counts) - 1)
    assert len(counter.asked) == len(set(counter.asked)), "no request is counted twice"
    if removed > len(sizes):
        assert counts[-1] > window
        return
    assert removed in counter.asked
    assert counts[removed] <= window
    space = window - counts[-1]
    assert removed in (0, len(sizes)) or counts[removed] - counts[-1] <= space / 2


@pytest.mark.parametrize(
    ("counts", "removed"),
    [([8_050, 3_000], 0), ([130_000, 125_000], 0), ([160_000, 65_000], 1)],
    ids=["at once", "beside the least", "too little beside it"],
)
def test_d12_room_for_a_loop_is_no_more_than_its_bytes(counts: list[int], removed: int) -> None:
    """D12, D8: what the least is without, as reasoning is that a cut makes stale, weighs nothing of the loop."""
    counter = Counter(counts, 190_000)
    room = Room(low_water=0.5, least=1 / 3, size=20_000)
    found = tokens.fewest_removed_with_room([200], 202, room, 190_000, counter.measure)  # type: ignore[arg-type]
    assert drive(found) == removed


@pytest.mark.parametrize(("size", "removed"), [(20_000, 0), (80_000, 1)])
def test_d12_room_for_a_loop_is_what_its_bytes_weigh_as_the_others_do(size: int, removed: int) -> None:
    """D12, D8: 150,000 bytes are 50,000 tokens, so a loop of 80,000 needs 26,667 of the 76,000 that there are."""
    counter = Counter([51_000, 1_000], 77_000)
    room = Room(low_water=0.5, least=1 / 3, size=size)
    found = tokens.fewest_removed_with_room([150_000], 153_000, room, 77_000, counter.measure)  # type: ignore[arg-type]
    assert drive(found) == removed


def test_d12_room_that_the_whole_request_shows_costs_one_count() -> None:
    """D12, D8: bytes weigh as all of the messages do, what must stay among them, not as those alone that may leave."""
    counter = Counter([1_500, 1_485], 3_000)
    room = Room(low_water=0.5, least=1 / 3, size=5_000)
    found = tokens.fewest_removed_with_room([100], 10_000, room, 3_000, counter.measure)  # type: ignore[arg-type]
    assert (drive(found), counter.asked) == (0, [0])


@pytest.mark.parametrize("removable", [0, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 127, 128])
def test_d12_the_bound_holds_for_every_answer_and_every_estimate(removable: int) -> None:
    """D12: 2⌈log₂(n+1)⌉ + 2, with the estimate at each possible place and the answer at each other one."""
    most = 0
    for answer in range(removable + 2):
        counts = [2 if removed < answer else 1 for removed in range(removable + 1)]
        for estimate in range(1, removable + 1) or [1]:
            sizes = [0] * removable
            if removable:
                sizes[estimate - 1] = 10**6
            counter = Counter(counts, 1)
            assert counter.search(sizes) == (answer if answer <= removable else None)
            most = max(most, len(counter.asked))
    assert most <= most_counts(removable)


def test_d12_an_estimate_that_is_right_costs_three_counts() -> None:
    """D12: the whole, the estimate, and its longer neighbour: units of equal weight need no more."""
    random = Random(12)
    for _ in range(100):
        units = random.randrange(1, 2_000)
        counts = [100 * (units - removed) + 50 for removed in range(units + 1)]
        counter = Counter(counts, random.randrange(50, counts[0]))
        assert counter.search() == counter.naive()
        assert len(counter.asked) <= 3


def test_o26_a_floor_that_never_fits_stops() -> None:
    """O-26 a: a counter with a floor of 7 and a window of 6: the refusal comes within the bound."""
    counter = Counter([7] * 1_001, 6)
    assert counter.search() is None
    assert len(counter.asked) <= most_counts(1_000) == 22


async def one_by_one(sizes: list[int], whole: int, most_input: int, measure: Any) -> int:
    """The loop that the search must equal: right, and far beyond the bound."""
    for removed in range(len(sizes) + 1):
        counted = await measure(removed)
        if counted.fits:
            return removed
    raise window_exceeded(counted)


async def unconfirmed(sizes: list[int], whole: int, most_input: int, measure: Any) -> int:
    """A search that takes the first request that fits, whatever could stay as well."""
    if (await measure(0)).fits:
        return 0
    counted = await measure(len(sizes))
    if counted.fits:
        return len(sizes)
    raise window_exceeded(counted)


async def uncounted(sizes: list[int], whole: int, most_input: int, measure: Any) -> int:
    """A search that trusts its arithmetic."""
    return 0 if (await measure(0)).fits else 1


@pytest.mark.parametrize("fault", [one_by_one, unconfirmed, uncounted])
def test_d12_a_planted_fault_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison and the bound find a search that counts too often, too little, or not at all."""
    monkeypatch.setattr(tokens, "fewest_removed", fault)
    with pytest.raises(AssertionError):
        test_d12_the_bound_holds_for_every_answer_and_every_estimate(31)


# --- windows held to tokens ------------------------------------------------------------------------------------------


def naive_window(both: Both, weigh: Any, limit: int, max_messages: int) -> Any:
    """The window by the book: plan by messages and bytes, then drop the oldest unit until the count fits."""
    planned = both.story.window(max_messages, HUGE)
    if planned == REFUSED:
        return None
    kept = planned[1]
    while weigh(compact(both.story.messages(kept)).encode()) > limit:
        if len(kept) <= both.story.must(both.story.units()):
            return None
        kept = kept[1:]
    return compact(both.story.messages(kept))


def guarded_window(both: Both, weigh: Any, limit: int, max_messages: int, told: list[Any]) -> Any:
    """The real window under a guard, with every request that was counted; `None` where it is refused."""
    asked: list[bytes] = []

    async def count(messages: bytes) -> int:
        asked.append(messages)
        return weigh(messages)  # type: ignore[no-any-return]

    guard = TokenGuard(
        context=ContextWindow(context_window_tokens=limit, input_token_multiplier=1, safety_margin_tokens=0),
        max_output_tokens=0,
        provider="openai",
        count=count,
    )
    limits = WindowLimits(max_messages=max_messages, max_bytes=HUGE)
    history = history_over(both.entries, both.wire, limits=limits)
    history._observer = told.append
    try:
        fitted, window, _ = drive(history.reader().fit(both.header, Tail(), limits, (), guard))
        plan = fitted.plan
    except (ProviderContextWindowExceeded, DecisionHistoryLimitExceeded):
        return None, asked
    assert window.json in asked, "what is sent was counted"
    assert weigh(window.json) <= limit, "and fits"
    assert (window.sent.bytes, window.sent.units, window.sent.messages) == (
        len(window.json),
        len(plan.units),
        len(json.loads(window.json)),
    )
    return window.json.decode(), asked


@settings(max_examples=200, deadline=None)
@given(
    history=steps,
    name=st.sampled_from(sorted(SHAPES)),
    percent=st.integers(1, 100),
    fixed=st.integers(0, 500),
    max_messages=st.integers(1, 40),
)
def test_d12_a_guarded_window_is_the_one_that_dropping_one_by_one_leaves(
    history: Any, name: str, percent: int, fixed: int, max_messages: int
) -> None:
    """D12: over random histories of every format; units leave whole, and the newest and what waits stay."""
    both = Both(name).run(history)
    whole = both.story.window(max_messages, HUGE)
    if whole == REFUSED:
        return

    def weigh(messages: bytes) -> int:
        return len(messages) // 4 + fixed

    limit = weigh(whole[0].encode()) * percent // 100 + 1
    told: list[Any] = []
    window, asked = guarded_window(both, weigh, limit, max_messages, told)
    assert window == naive_window(both, weigh, limit, max_messages)
    assert len(asked) <= most_counts(len(whole[1]))
    assert [event.count for event in told] == [weigh(messages) for messages in asked]


def test_d12_guarded_windows_are_cut_and_refused_often_enough_to_prove_something() -> None:
    """The property above compares windows of each kind: whole, cut and refused."""
    random = Random(12)
    kinds = {"whole": 0, "cut": 0, "refused": 0}
    for number in range(300):
        both = Both(sorted(SHAPES)[number % len(SHAPES)]).run(random_steps(random, 60))
        whole = both.story.window(1_000, HUGE)
        limit = max(1, len(whole[0].encode()) * random.randrange(10, 120) // 100)
        window, asked = guarded_window(both, len, limit, 1_000, [])
        assert window == naive_window(both, len, limit, 1_000)
        kinds["refused" if window is None else "whole" if len(asked) == 1 else "cut"] += 1
    assert min(kinds.values()) > 20, kinds
