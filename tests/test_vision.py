"""The vision tower equals transformers', for any grid, and can be stopped inside a layer."""

from __future__ import annotations

import pytest
import torch
from reference_model import stock_model, vision_tower

from vlm import vision, vision_grid
from vlm.errors import CheckpointError, Stopped
from vlm.vision import VisionConfig


@pytest.fixture(scope="module")
def stock():
    return stock_model(is_tied=False)


@pytest.fixture
def tower(stock):
    return vision_tower(stock)


def expected(stock, pixel_values, grid):
    with torch.no_grad():
        return stock.model.visual(pixel_values, grid_thw=torch.tensor([grid]))


def assert_equal(features, stock_output):
    torch.testing.assert_close(features.embeddings, stock_output.pooler_output, atol=1e-4, rtol=0)
    assert len(features.deepstack) == len(stock_output.deepstack_features) == 2
    for ours, theirs in zip(features.deepstack, stock_output.deepstack_features, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("grid", [(1, 2, 2), (1, 4, 6), (1, 14, 8), (1, 2, 20), (1, 10, 10)])
def test_features_equal_transformers(stock, tower, grid):
    pixel_values = torch.randn(grid[1] * grid[2], 1536)
    features = tower.encode(pixel_values, grid)
    assert features.embeddings.shape == (grid[1] * grid[2] // 4, 96)
    assert features.embeddings.std() > 0.05
    assert_equal(features, expected(stock, pixel_values, grid))


def test_small_pieces_give_the_same_features(stock, tower, monkeypatch):
    monkeypatch.setattr(vision, "PATCHES_AT_ONCE", 12)
    monkeypatch.setattr(vision, "PAIRS_AT_ONCE", 500)
    pixel_values = torch.randn(80, 1536)
    assert_equal(tower.encode(pixel_values, (1, 8, 10)), expected(stock, pixel_values, (1, 8, 10)))


def test_grids_with_equal_patches_do_not_share_tables(stock, tower):
    pixel_values = torch.randn(48, 1536)
    for grid in ((1, 4, 12), (1, 12, 4), (1, 6, 8), (1, 4, 12)):
        assert_equal(tower.encode(pixel_values, grid), expected(stock, pixel_values, grid))


def test_kept_tables_are_bounded(tower, monkeypatch):
    monkeypatch.setattr(vision_grid, "MAX_TABLE_PATCHES", 50)
    for height in range(2, 24, 2):
        tower.encode(torch.zeros(height * 2, 1536), (1, height, 2))
    assert 0 < tower._grids.patches <= 50
    kept = tower._grids.tables((1, 22, 2))
    assert tower._grids.tables((1, 22, 2)) is kept


def test_progress_rises_to_one(tower):
    seen: list[float] = []
    tower.encode(torch.zeros(16, 1536), (1, 4, 4), seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 8


def test_stop_inside_a_layer_leaves_the_tower_usable(stock, tower, monkeypatch):
    monkeypatch.setattr(vision, "PATCHES_AT_ONCE", 8)
    calls = 0

    def stop(fraction: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Stopped

    pixel_values = torch.randn(32, 1536)
    with pytest.raises(Stopped):
        tower.encode(pixel_values, (1, 4, 8), stop)
    assert calls == 3
    assert_equal(tower.encode(pixel_values, (1, 4, 8)), expected(stock, pixel_values, (1, 4, 8)))


def test_input_is_left_unchanged(tower):
    pixel_values = torch.randn(16, 1536)
    before = pixel_values.clone()
    tower.encode(pixel_values, (1, 4, 4))
    assert torch.equal(pixel_values, before)


@pytest.mark.parametrize("grid", [(1, 4, 2), (2, 2, 4)])
def test_wrong_grid_is_refused(tower, grid):
    with pytest.raises(ValueError, match="does not fit"):
        tower.encode(torch.zeros(16, 1536), grid)


def test_rotary_frequencies_equal_transformers(stock, tower):
    assert torch.equal(tower.inv_freq, stock.model.visual.rotary_pos_emb.inv_freq)


def test_nbytes_counts_every_tensor(tower):
    features = tower.encode(torch.zeros(16, 1536), (1, 4, 4))
    assert features.nbytes == 3 * 4 * 96 * 4


def test_unknown_activation_and_missing_key_are_named(stock):
    config = stock.config.to_dict()
    with pytest.raises(CheckpointError, match="'relu'"):
        VisionConfig.from_config(
            {"vision_config": config["vision_config"] | {"hidden_act": "relu"}}
        )
    with pytest.raises(CheckpointError, match="depth"):
        VisionConfig.from_config({"vision_config": {}})
