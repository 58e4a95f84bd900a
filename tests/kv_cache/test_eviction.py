"""The order of eviction, one consideration at a time. `now` is 100 throughout."""

import numpy as np

from facet.kv_cache.eviction import EvictionOrder

NOW = 100


def order_of(*checkpoints: dict[str, int]) -> EvictionOrder:
    order = EvictionOrder(capacity=2)
    for checkpoint in checkpoints:
        fields = {"position": 640, "fallback": 0, "now": 90, "interval": 0} | checkpoint
        order.add(**{name: fields[name] for name in ("position", "fallback", "now", "interval")})
    return order


def first_to_go(order: EvictionOrder, *blocks_freed: int) -> int:
    freed = np.zeros(order.capacity, np.int64)
    freed[: len(blocks_freed)] = blocks_freed
    return order.worst(freed, NOW)


def test_what_saves_less_goes_first() -> None:
    assert first_to_go(order_of({"position": 640}, {"position": 320}), 10, 10) == 1


def test_a_fallback_nearby_makes_a_checkpoint_cheap_to_lose() -> None:
    assert first_to_go(order_of({"position": 320}, {"position": 640, "fallback": 600}), 10, 10) == 1


def test_what_holds_more_goes_first() -> None:
    assert first_to_go(order_of({}, {}), 10, 20) == 1


def test_what_frees_nothing_stays_while_something_else_does() -> None:
    assert first_to_go(order_of({"position": 16}, {"position": 9999}), 0, 1) == 1
    assert first_to_go(order_of({"position": 16}, {"position": 9999}), 0, 0) == 0


def test_of_sequences_seen_once_the_oldest_goes_first() -> None:
    assert first_to_go(order_of({"now": 95}, {"now": 50}), 10, 10) == 1


def test_in_a_loop_the_one_just_served_goes_before_the_one_about_to_be() -> None:
    just_served, about_to_be = {"now": 99, "interval": 32}, {"now": 70, "interval": 32}
    assert first_to_go(order_of(about_to_be, just_served), 10, 10) == 1


def test_what_is_long_overdue_goes_before_what_is_not() -> None:
    overdue, expected = {"now": 10, "interval": 8}, {"now": 95, "interval": 32}
    assert first_to_go(order_of(expected, overdue), 10, 10) == 1


def test_a_turn_that_was_continued_goes_before_the_last_one_but_a_parting_stays() -> None:
    order = order_of({"position": 500}, {"position": 640, "fallback": 500})
    order.num_longer[0] = 1
    assert first_to_go(order, 10, 10) == 0
    order.num_longer[0] = 2
    assert first_to_go(order, 10, 10) == 1


def test_a_fallback_takes_over_the_expectations_of_what_was_dropped() -> None:
    order = order_of({"now": 10, "interval": 3}, {"now": 60, "interval": 40}, {"now": 50})
    order.inherit(0, 1)
    assert (order.last_use[0], order.interval[0]) == (60, 40)
    order.inherit(1, 2)
    assert order.last_use[1] == 60, "an older use says nothing new"


def test_a_use_is_remembered_with_its_interval() -> None:
    order = order_of({"now": 90})
    order.use(0, NOW)
    assert (order.last_use[0], order.interval[0]) == (100, 10)


def test_numbers_are_reused_and_grow_when_all_are_taken() -> None:
    order = EvictionOrder(capacity=2)
    numbers = [order.add(position=16, fallback=0, now=1, interval=0) for _ in range(5)]
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    order.remove(3)
    assert order.num_kept == 4
    assert order.add(position=32, fallback=0, now=1, interval=0) == 3
