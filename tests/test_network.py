"""The batched training forward equals transformers' own."""

import pytest
import torch
from transformers import Qwen3VLForConditionalGeneration

from vlm.bundled.fresh_weights import prepare_weights
from vlm.bundled.network import _RMSNorm, encode_pictures, patches, run_text


@pytest.fixture(scope="module")
def model(bundled_folder):
    return Qwen3VLForConditionalGeneration.from_pretrained(
        bundled_folder, dtype=torch.float32, local_files_only=True
    ).eval()


@pytest.fixture(scope="module")
def pixels():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 96, 160, 3), dtype=torch.uint8, generator=generator)


@torch.no_grad()
def test_vision_features_equal_transformers(model, pixels):
    embeddings, deepstack = encode_pictures(model, pixels)
    grids = torch.tensor([[1, 6, 10], [1, 6, 10]])
    wanted = model.model.visual(patches(pixels).flatten(0, 1), grids)
    torch.testing.assert_close(embeddings.flatten(0, 1), wanted.pooler_output, atol=3e-4, rtol=1e-4)
    for ours, theirs in zip(deepstack, wanted.deepstack_features, strict=True):
        torch.testing.assert_close(ours.flatten(0, 1), theirs, atol=3e-4, rtol=1e-4)


@torch.no_grad()
def test_logits_equal_transformers(model, pixels):
    image = model.config.image_token_id
    ids = torch.tensor([[1, 5, 7, *[image] * 15, 8, 9, 10]])
    kinds = (ids == image).int()
    grids = torch.tensor([[1, 6, 10]])
    wanted = model(
        input_ids=ids,
        pixel_values=patches(pixels)[0],
        image_grid_thw=grids,
        mm_token_type_ids=kinds,
    ).logits
    position_ids, _ = model.model.get_rope_index(ids, kinds, image_grid_thw=grids)
    embeddings, deepstack = encode_pictures(model, pixels)
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None, None]
    hidden, unseen = run_text(
        model, ids, position_ids, mask, embeddings[0], [level[0] for level in deepstack]
    )
    torch.testing.assert_close(model.lm_head(hidden), wanted, atol=1e-3, rtol=1e-4)
    assert unseen == 0


def test_the_gradient_of_the_norm_is_right():
    x = torch.randn(3, 4, 8, dtype=torch.double, requires_grad=True)
    weight = torch.randn(8, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: _RMSNorm.apply(x, w, 1e-6), (x, weight))


def test_fresh_heads_look_at_one_neighbour_each(model):
    fresh = Qwen3VLForConditionalGeneration(model.config)
    prepare_weights(fresh, 1)
    attention = fresh.model.visual.blocks[0].attn
    q, k, _ = attention.qkv.bias.detach().view(3, attention.num_heads, -1)
    frequencies = fresh.model.visual.rotary_pos_emb.inv_freq
    rows, columns = torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")
    place = torch.stack((rows.flatten(), columns.flatten()), 1)
    angles = (place[:, :, None] * frequencies).flatten(1).repeat(1, 2)

    def turn(x):
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    seen = []
    for head in range(5):
        scores = turn(q[head].expand(49, -1)) @ turn(k[head].expand(49, -1)).T
        weights = (scores * attention.scaling).softmax(-1)[24]  # from the middle, row 3, column 3
        assert weights.max() > 0.5
        seen.append((place[weights.argmax()] - 3).tolist())
    assert seen == [[0, 0], [0, -1], [0, 1], [-1, 0], [1, 0]]
