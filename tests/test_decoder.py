"""The decoder equals transformers' logits however a chat is cut, cached, stopped, continued."""

from __future__ import annotations

import pytest
import torch
from reference_model import Chat, chat, decoder, stock_model, vision_tower

from vlm.decoder import Segment
from vlm.decoder_config import DecoderConfig
from vlm.errors import CheckpointError, Stopped
from vlm.linear import available_kinds

PICTURES = {
    "text": (),
    "one picture": ((1, 6, 8),),
    "two pictures": ((1, 6, 8), (1, 8, 6)),
}


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def stock(request):
    return stock_model(request.param)


@pytest.fixture(scope="module")
def model(stock):
    return decoder(stock), vision_tower(stock)


class Runner:
    """Feeds slices of a chat to our decoder, as the engine does."""

    def __init__(self, model, given: Chat) -> None:
        self.decoder, tower = model
        self.chat = given
        self.hidden = self.decoder.embed(given.token_ids)
        features = [tower.encode(pixels, grid) for pixels, grid in given.pictures]
        self.levels = [
            torch.cat(level) for level in zip(*(f.deepstack for f in features), strict=True)
        ]
        if features:
            self.hidden[given.visual_index] = torch.cat([f.embeddings for f in features])
        self.cache = self.decoder.new_cache()

    def run(self, start: int, end: int, between_layers=None):
        """Return logits of tokens start..end, which must follow what the cache holds."""
        assert self.cache.length == start
        index = self.chat.visual_index
        inside = (index >= start) & (index < end)
        out = self.decoder.forward(
            self.hidden[start:end],
            self.chat.position_ids[:, start:end],
            self.cache,
            [level[inside] for level in self.levels],
            index[inside] - start,
            between_layers,
        )
        assert self.cache.length == end
        assert self.cache.is_even
        return self.decoder.logits(out)


def assert_close(ours, expected, atol=1e-4):
    assert expected.std() > 0.1
    torch.testing.assert_close(ours, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("grids", PICTURES.values(), ids=PICTURES)
def test_whole_pass_equals_transformers(stock, model, grids):
    given = chat(stock, *grids)
    assert_close(Runner(model, given).run(0, len(given.token_ids)), given.expected)


@pytest.mark.parametrize("grids", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize("step", [1, 3, 7])
def test_chunks_equal_whole(stock, model, grids, step):
    given = chat(stock, *grids)
    runner = Runner(model, given)
    total = len(given.token_ids)
    logits = [runner.run(i, min(i + step, total)) for i in range(0, total, step)]
    assert_close(torch.cat(logits), given.expected)


def test_decode_steps_after_prefill_equal_a_full_pass(stock, model):
    given = chat(stock, (1, 6, 8))
    runner = Runner(model, given)
    total = len(given.token_ids)
    runner.run(0, total - 6)
    logits = [runner.run(i, i + 1) for i in range(total - 6, total)]
    assert_close(torch.cat(logits), given.expected[-6:])


def test_reused_prefix_equals_cold(stock, model):
    first = chat(stock, (1, 6, 8), (1, 8, 6), seed=1)
    runner = Runner(model, first)
    runner.run(0, len(first.token_ids))
    shared = 5 + 14 + 2  # the text before the first picture, the picture, two words
    runner.cache.truncate(shared)
    logits = runner.run(shared, len(first.token_ids))
    assert_close(logits, first.expected[shared:])


@pytest.mark.parametrize("stop_at", [1, 2, 5, 9])
def test_stopped_pass_can_be_cut_back_and_repeated(stock, model, stop_at):
    given = chat(stock, (1, 6, 8))
    runner = Runner(model, given)
    total = len(given.token_ids)
    runner.run(0, 20)
    calls = 0

    def stop(fraction: float) -> None:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Stopped

    with pytest.raises(Stopped):
        runner.run(20, total, stop)
    assert runner.cache.is_even == (stop_at > 8)  # the fifth layer of five is reached
    runner.cache.truncate(20)
    assert_close(runner.run(20, total), given.expected[20:])


def test_conversations_in_turn_do_not_disturb_each_other(stock, model):
    a, b = chat(stock, (1, 6, 8), seed=2), chat(stock, (1, 8, 6), seed=3)
    runner_a, runner_b = Runner(model, a), Runner(model, b)
    runner_a.run(0, 25)
    runner_b.run(0, len(b.token_ids))
    assert_close(runner_a.run(25, len(a.token_ids)), a.expected[25:])


def test_forward_leaves_its_input_unchanged(stock, model):
    runner = Runner(model, chat(stock, (1, 6, 8)))
    before = runner.hidden.clone()
    runner.run(0, len(before))
    assert torch.equal(runner.hidden, before)


def test_progress_rises_to_one(stock, model):
    seen: list[float] = []
    Runner(model, chat(stock)).run(0, 5, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_embeddings_may_be_bf16(stock):
    ours = decoder(stock)
    table = stock.model.language_model.embed_tokens.weight.detach()
    ours._embed = table.to(torch.bfloat16)
    rows = ours.embed([3, 400])
    assert rows.dtype == torch.float32
    assert torch.equal(rows, table[[3, 400]].to(torch.bfloat16).float())


def test_rotary_frequencies_equal_transformers(stock, model):
    expected = stock.model.language_model.rotary_emb.inv_freq
    assert torch.equal(model[0]._rope.inv_freq, expected)


@pytest.mark.parametrize(("kind", "bound"), [("fp16", 2e-2), ("int8", 0.5), ("bf16", 0.5)])
def test_smaller_weights_stay_near_fp32(stock, model, kind, bound):
    if kind not in available_kinds():
        pytest.skip(f"no {kind} kernels on this machine")
    given = chat(stock, (1, 6, 8))
    logits = Runner((decoder(stock, kind), model[1]), given).run(0, len(given.token_ids))
    assert (logits - given.expected).abs().max() < bound * given.expected.std()


def test_config_is_read_in_both_spellings(stock):
    config = stock.config.to_dict()
    modern = DecoderConfig.from_config(config)
    text = dict(config["text_config"])
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope.pop("rope_theta")
    text["rope_scaling"] = rope
    assert DecoderConfig.from_config(config | {"text_config": text}) == modern
    assert modern.rope_theta == 5_000_000
    assert modern.mrope_section == (6, 5, 5)


def test_config_faults_are_named(stock):
    text = stock.config.to_dict()["text_config"]
    with pytest.raises(CheckpointError, match="'yarn'"):
        DecoderConfig.from_config(
            {"text_config": text | {"rope_parameters": {"rope_type": "yarn"}}}
        )
    with pytest.raises(CheckpointError, match="vocab_size"):
        DecoderConfig.from_config({"text_config": {"num_attention_heads": 2}})


def test_conversations_forwarded_together_get_what_each_gets_alone(stock, model):
    """One has a picture, another more rows: each has its own length, positions and cache."""
    grids, counts = [(), ((1, 6, 8),), ((1, 6, 8), (1, 8, 6))], [1, 3, 2]
    runners = [Runner(model, chat(stock, *g)) for g in grids]
    starts = [len(r.chat.token_ids) - n for r, n in zip(runners, counts, strict=True)]
    for runner, start in zip(runners, starts, strict=True):
        runner.run(0, start)
    out = runners[0].decoder.forward_together(
        torch.cat([r.hidden[start:] for r, start in zip(runners, starts, strict=True)]),
        torch.cat([r.chat.position_ids[:, s:] for r, s in zip(runners, starts, strict=True)], 1),
        [Segment(r.cache, n) for r, n in zip(runners, counts, strict=True)],
    )
    logits = runners[0].decoder.logits(out).split(counts)
    for runner, start, given in zip(runners, starts, logits, strict=True):
        assert runner.cache.is_even and runner.cache.length == len(runner.chat.token_ids)
        assert_close(given, runner.chat.expected[start:])
