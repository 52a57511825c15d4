"""Caches grow without losing tokens, cut where it is valid, and stay within their budgets."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from vlm.kv_cache import (
    BLOCK_TOKENS,
    ConversationCaches,
    FeatureCache,
    KVCache,
    common_prefix,
)
from vlm.vision import VisionFeatures

LAYERS, KV_HEADS, HEAD_DIM = 3, 2, 4
TOKEN_BYTES = LAYERS * 2 * KV_HEADS * HEAD_DIM * 4


def new_cache() -> KVCache:
    return KVCache(LAYERS, KV_HEADS, HEAD_DIM)


def tokens(start: int, end: int) -> torch.Tensor:
    """Keys (kv_heads, n, head_dim) that tell which token they belong to."""
    return torch.arange(start, end).float().view(1, -1, 1).expand(KV_HEADS, -1, HEAD_DIM)


def fill(cache: KVCache, count: int) -> KVCache:
    start = cache.length
    for layer in range(LAYERS):
        cache.append(layer, tokens(start, start + count) + layer, -tokens(start, start + count))
    return cache


def assert_holds(cache: KVCache, count: int) -> None:
    assert cache.length == count
    assert cache.is_even
    for layer in range(LAYERS):
        k, v = cache.layer(layer)
        assert torch.equal(k, tokens(0, count) + layer)
        assert torch.equal(v, -tokens(0, count))


# KVCache


def test_append_returns_all_tokens_of_the_layer():
    cache = new_cache()
    k, v = cache.append(1, tokens(0, 3), -tokens(0, 3))
    k, v = cache.append(1, tokens(3, 5), -tokens(3, 5))
    assert torch.equal(k, tokens(0, 5))
    assert torch.equal(v, -tokens(0, 5))
    assert cache.length == 0  # the other layers hold nothing yet
    assert not cache.is_even


def test_growth_keeps_what_was_written():
    cache = new_cache()
    for _ in range(50):
        fill(cache, 7)
    assert_holds(cache, 350)


def test_growth_copies_little():
    cache, copied, capacity = new_cache(), 0, 0
    for count in range(1, 20_000):
        cache.reserve(count)
        if cache.nbytes != capacity:
            copied, capacity = copied + count - 1, cache.nbytes
    assert copied < 3 * 20_000
    assert cache.nbytes < 1.6 * 20_000 * TOKEN_BYTES


def test_writing_in_place_within_the_reserve():
    cache = new_cache()
    cache.reserve(100)
    reserved = cache.nbytes
    address = fill(cache, 1).layer(0)[0].data_ptr()
    fill(cache, 99)
    assert cache.nbytes == reserved == 2 * BLOCK_TOKENS * TOKEN_BYTES
    assert cache.layer(0)[0].data_ptr() == address


@pytest.mark.parametrize("kept", [0, 1, 9, 10])
def test_truncate_then_continue(kept):
    cache = fill(new_cache(), 10)
    cache.truncate(kept)
    assert_holds(cache, kept)
    fill(cache, 4)
    assert_holds(cache, kept + 4)


def test_truncate_after_an_interrupted_pass():
    cache = fill(new_cache(), 10)
    for layer in range(2):
        cache.append(layer, tokens(500, 520), tokens(500, 520))
    assert cache.length == 10
    assert not cache.is_even
    cache.truncate(10)
    assert_holds(cache, 10)
    assert_holds(fill(cache, 2), 12)


@pytest.mark.parametrize("wanted", [-1, 11])
def test_truncate_beyond_what_is_there_is_refused(wanted):
    with pytest.raises(ValueError, match="10 tokens"):
        fill(new_cache(), 10).truncate(wanted)


# Prefixes


def picture(key: str, count: int) -> list[tuple[str, int]]:
    return [(key, i) for i in range(count)]


A, B = picture("a", 5), picture("b", 5)


@pytest.mark.parametrize(
    ("cached", "wanted", "expected"),
    [
        ([1, 2, 3], [1, 2, 3, 4, 5], 3),
        ([1, 2, 3], [1, 9, 3, 4], 1),
        ([1, 2, 3], [9, 2, 3], 0),
        ([], [1, 2], 0),
        ([1, 2, 3], [1, 2, 3], 2),
        ([1, 2, 3, 4], [1, 2], 1),
        ([1], [1], 0),
        ([1, *A, 2], [1, *A, 2, 3], 7),
        ([1, *A, 2], [1, *A, 9], 6),
        ([1, *A, 2], [1, *B, 2], 1),
        ([1, *A, 2, *A, 3], [1, *A, 2, *B, 3], 7),
        ([1, *A], [1, *A], 1),
        ([1, *A[:3]], [1, *A, 2], 1),
        ([1, *A, 2], [1, *A[:3], 2], 1),
        ([*A], [*A, 4], 5),
    ],
)
def test_longest_valid_prefix(cached, wanted, expected):
    assert common_prefix(cached, wanted) == expected


# ConversationCaches


def give(caches: ConversationCaches, conversation: str, keys: list) -> KVCache:
    """Answer a prompt: take, compute what is missing, give back."""
    prefix = caches.take(conversation, keys)
    fill(prefix.kv_cache, len(keys) - prefix.length)
    caches.give_back(conversation, prefix.kv_cache, keys)
    return prefix.kv_cache


def roomy() -> ConversationCaches:
    return ConversationCaches(10**9, new_cache)


def test_follow_up_gets_its_own_cache_cut_to_the_prefix():
    caches = roomy()
    first = give(caches, "x", [1, 2, *A, 3, 4])
    prefix = caches.take("x", [1, 2, *A, 3, 9, 9])
    assert prefix.kv_cache is first
    assert prefix.length == 8
    assert_holds(prefix.kv_cache, 8)


def test_another_conversation_gets_nothing_of_it():
    caches = roomy()
    mine = give(caches, "x", [1, 2, 3])
    other = caches.take("y", [1, 2, 3, 4])
    assert other.length == other.kv_cache.length == 0
    assert other.kv_cache is not mine
    assert caches.take("x", [1, 2, 3, 4]).length == 3


def test_two_takes_never_share_a_cache():
    caches = roomy()
    give(caches, "x", [1, 2, 3])
    first = caches.take("x", [1, 2, 3, 4])
    second = caches.take("x", [1, 2, 3, 4])
    assert second.length == 0
    assert second.kv_cache is not first.kv_cache
    caches.give_back("x", first.kv_cache, [1, 2, 3])  # no longer the one that is out
    assert caches.take("x", [1, 2, 3, 4]).length == 0


def test_dropped_while_out_does_not_come_back():
    caches = roomy()
    prefix = caches.take("x", [1, 2, 3])
    caches.drop("x")
    assert (caches.count, caches.nbytes) == (0, 0)
    caches.give_back("x", fill(prefix.kv_cache, 3), [1, 2, 3])
    assert (caches.count, caches.nbytes) == (0, 0)
    assert caches.take("x", [1, 2, 3, 4]).length == 0


def test_freed_caches_are_counted_and_one_that_is_out_comes_back():
    caches = roomy()
    give(caches, "a", [1, 2])
    freed = caches.nbytes
    out = caches.take("b", [1, 2, 3]).kv_cache
    fill(out, 2)
    assert caches.free() == freed > 0
    assert caches.nbytes == out.nbytes
    caches.give_back("b", out, [1, 2])
    assert caches.take("b", [1, 2, 3]).length == 2
    assert caches.take("a", [1, 2, 3]).length == 0


def test_keys_must_match_the_cache():
    caches = roomy()
    prefix = caches.take("x", [1, 2, 3])
    with pytest.raises(ValueError, match="2 tokens was given back with 3 keys"):
        caches.give_back("x", fill(prefix.kv_cache, 2), [1, 2, 3])
    assert caches.count == 0


def test_uneven_cache_is_not_kept():
    caches = roomy()
    prefix = caches.take("x", [1, 2, 3])
    fill(prefix.kv_cache, 3).append(0, tokens(0, 1), tokens(0, 1))
    with pytest.raises(ValueError, match="given back"):
        caches.give_back("x", prefix.kv_cache, [1, 2, 3])
    assert caches.count == 0


def test_least_recently_used_goes_first():
    one = BLOCK_TOKENS * TOKEN_BYTES
    caches = ConversationCaches(3 * one, new_cache)
    for name in ("a", "b", "c"):
        give(caches, name, [1, 2, 3])
    give(caches, "a", [1, 2, 3, 4])
    give(caches, "d", [1, 2, 3])
    assert caches.nbytes == 3 * one
    assert caches.count == 3
    assert [caches.take(name, [1, 2, 9]).length for name in "abcd"] == [2, 0, 2, 2]


def test_a_cache_above_the_whole_budget_is_not_kept():
    caches = ConversationCaches(BLOCK_TOKENS * TOKEN_BYTES - 1, new_cache)
    give(caches, "x", [1, 2, 3])
    assert (caches.count, caches.nbytes) == (0, 0)


def test_nbytes_counts_reserved_bytes_also_of_a_cache_that_is_out():
    caches = roomy()
    give(caches, "x", [1, 2, 3])
    prefix = caches.take("x", [1, 2, 3, 4])
    prefix.kv_cache.reserve(10 * BLOCK_TOKENS)
    assert caches.nbytes == 10 * BLOCK_TOKENS * TOKEN_BYTES
    assert caches.count == 1


def test_empty_cache_given_back_is_forgotten():
    caches = roomy()
    prefix = caches.take("x", [1, 2])
    caches.give_back("x", prefix.kv_cache, [])
    assert caches.count == 0


def test_reading_from_another_thread_while_answers_run():
    caches = ConversationCaches(5 * BLOCK_TOKENS * TOKEN_BYTES, new_cache)
    failures, done = [], threading.Event()

    def read():
        while not done.is_set():
            try:
                assert caches.nbytes >= 0
                assert caches.count >= 0
            except Exception as error:
                failures.append(error)
                return
            time.sleep(0.0001)  # lets go of the interpreter

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(500):
        give(caches, f"chat {i % 20}", [1, 2, 3, i])
    done.set()
    reader.join()
    assert failures == []


# FeatureCache


def features(value: float, count: int = 4) -> VisionFeatures:
    return VisionFeatures(torch.full((count, 8), value), (torch.full((count, 8), -value),))


def test_features_come_back_with_their_deepstack():
    cache = FeatureCache(10_000)
    kept = features(1.0)
    cache.put("a", kept)
    assert cache.get("a") is kept
    assert cache.get("b") is None
    assert cache.nbytes == 2 * 4 * 8 * 4


def test_features_least_recently_used_go_first():
    size = features(0).nbytes
    cache = FeatureCache(2 * size)
    cache.put("a", features(1))
    cache.put("b", features(2))
    assert cache.get("a") is not None
    cache.put("c", features(3))
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.get("c") is not None
    assert cache.nbytes == 2 * size


def test_features_above_the_budget_push_nothing_out():
    cache = FeatureCache(features(0).nbytes)
    cache.put("a", features(1))
    cache.put("huge", features(2, 50))
    assert cache.get("a") is not None
    assert cache.get("huge") is None


def test_features_put_twice_count_once():
    cache = FeatureCache(10_000)
    cache.put("a", features(1))
    cache.put("a", features(2))
    assert cache.nbytes == features(0).nbytes
    assert cache.get("a").embeddings[0, 0] == 2
    cache.clear()
    assert cache.nbytes == 0
