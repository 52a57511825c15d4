"""The compiled layer gives the bits of the layer in Python, for any mix of conversations."""

import pytest
import torch
from reference_model import decoder, stock_model

from vlm import fused_layer
from vlm.decoder import Segment
from vlm.linear import available_kinds

pytestmark = pytest.mark.skipif("int8" not in available_kinds(), reason="no FBGEMM here")


def logits_of(model, steps):
    """Forward two prompts, then steps of given row counts together; return all logits."""
    generator = torch.Generator().manual_seed(3)
    width, caches, lengths, out = model.config.hidden_size, [], [], []
    for length in (9, 14):
        cache = model.new_cache()
        hidden = torch.randn(length, width, generator=generator)
        model.forward(hidden, torch.arange(length).expand(3, -1), cache)
        caches.append(cache)
        lengths.append(length)
    for counts in steps:
        hidden = torch.randn(sum(counts), width, generator=generator)
        positions = [torch.arange(n, n + c) for n, c in zip(lengths, counts, strict=True)]
        segments = [Segment(cache, c) for cache, c in zip(caches, counts, strict=True)]
        before = hidden.clone()
        rows = model.forward_together(hidden, torch.cat(positions).expand(3, -1), segments)
        assert hidden.equal(before)
        out.append(model.logits(rows))
        lengths = [n + c for n, c in zip(lengths, counts, strict=True)]
    assert all(cache.is_even for cache in caches)
    return torch.cat(out)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_it_equals_the_layer_in_python_to_the_last_bit(kind, monkeypatch):
    steps = [(1, 1), (1, 1), (3, 1), (2, 4), (1, 1)]
    model = decoder(stock_model(False), kind)
    assert all(layer.is_fusable for layer in model._layers)
    fused = logits_of(model, steps)
    monkeypatch.setattr("vlm.decoder.MOST_ROWS", 0)
    assert fused.equal(logits_of(model, steps))


def test_other_kinds_run_in_python():
    model = decoder(stock_model(False), "fp32")
    assert not any(layer.is_fusable for layer in model._layers)
    logits_of(model, [(1, 1)])


def test_where_nothing_can_be_compiled_the_layer_runs_in_python(monkeypatch):
    def refuse(function):
        raise RuntimeError("not supported on this Python")

    fused_layer.compiled_layer.cache_clear()
    monkeypatch.setattr(torch.jit, "script", refuse)
    try:
        model = decoder(stock_model(False), "fp16")
        assert not any(layer.is_fusable for layer in model._layers)
        logits_of(model, [(1, 1)])
    finally:
        fused_layer.compiled_layer.cache_clear()
