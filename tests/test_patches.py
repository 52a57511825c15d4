"""Pixel values and sizes equal transformers' own processor; budgets hold everywhere."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from vlm.errors import CheckpointError, PictureError
from vlm.images import PictureLimits, open_picture
from vlm.patches import patch_picture
from vlm.picture_size import PictureGeometry, fit_size

CLIP = PictureGeometry(
    mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
)


def noise(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def reference(geometry, max_px):
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": min(geometry.min_px, max_px), "longest_edge": max_px},
        patch_size=geometry.patch_size,
        temporal_patch_size=geometry.temporal_patch_size,
        merge_size=geometry.merge_size,
        image_mean=list(geometry.mean),
        image_std=list(geometry.std),
    )


@pytest.mark.parametrize("geometry", [PictureGeometry(), CLIP, PictureGeometry(patch_size=8)])
@pytest.mark.parametrize(
    "size", [(640, 480), (333, 1000), (1, 1), (300, 3), (3, 300), (200, 1), (2000, 700)]
)
def test_pixel_values_equal_transformers_bit_for_bit(size, geometry):
    image = noise(*size)
    side = geometry.token_side_px
    expected = reference(geometry, 512 * side**2)(
        images=image, return_tensors="pt", input_data_format="channels_last"
    )
    patched = patch_picture(open_picture(image), geometry, 512)
    assert patched.grid_thw == tuple(expected["image_grid_thw"][0].tolist())
    assert patched.pixel_values.dtype == torch.float32
    assert torch.equal(patched.pixel_values, expected["pixel_values"])
    assert patched.visual_tokens * 4 == len(patched.pixel_values)


def test_a_checkpoint_folder_gives_what_its_own_processor_gives(bundled_folder):
    image = noise(500, 400)
    processor = AutoImageProcessor.from_pretrained(bundled_folder, backend="pil")
    expected = processor(images=image, return_tensors="pt")
    geometry = PictureGeometry.from_folder(bundled_folder)
    patched = patch_picture(open_picture(image), geometry, 100_000)
    assert patched.grid_thw == tuple(expected["image_grid_thw"][0].tolist())
    assert torch.equal(patched.pixel_values, expected["pixel_values"])


def test_every_level_of_every_channel_is_bit_exact():
    ramp = np.arange(256, dtype=np.uint8)
    pixels = np.stack([ramp.reshape(16, 16).repeat(16, 0).repeat(16, 1)] * 3, axis=-1)
    expected = reference(CLIP, 2**24)(images=Image.fromarray(pixels), return_tensors="pt")
    patched = patch_picture(open_picture(Image.fromarray(pixels)), CLIP, 4096)
    assert len(set(patched.pixel_values[:, 0].tolist())) > 100
    assert torch.equal(patched.pixel_values, expected["pixel_values"])


def test_sizes_agree_with_smart_resize_within_the_models_own_limits():
    geometry = PictureGeometry()
    compared = 0
    for width in range(1, 4000, 97):
        for height in range(1, 3000, 89):
            if max(width, height) > 200 * min(width, height):
                continue
            for tokens in (256, 512, 1280):
                expected = smart_resize(height, width, 32, geometry.min_px, tokens * 1024)
                if expected[0] * expected[1] <= tokens * 1024:
                    assert fit_size(width, height, geometry, tokens) == expected[::-1]
                    compared += 1
    assert compared > 3000


@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 65, 256, 1280, 100_000])
def test_the_budget_holds_for_every_shape(tokens):
    geometry = PictureGeometry()
    for size in [(4000, 3000), (1, 1), (31, 639), (5000, 25), (690, 15420), (100, 150), (200, 1)]:
        width, height = fit_size(*size, geometry, tokens)
        assert width % 32 == 0 and height % 32 == 0 and min(width, height) >= 32
        assert width * height // 1024 <= min(tokens, geometry.max_px // 1024)


def test_the_ratio_is_kept():
    for width, height in [(4000, 3000), (1366, 768), (600, 900), (1080, 2400)]:
        fitted = fit_size(width, height, PictureGeometry(), 512)
        assert math.isclose(fitted[0] / fitted[1], width / height, rel_tol=0.06)


def test_tiny_pictures_are_enlarged_to_the_models_minimum():
    assert fit_size(1, 1, PictureGeometry(), 512) == (256, 256)
    assert fit_size(40, 20, PictureGeometry(min_px=4096), 512) == (96, 64)


def test_strips_beyond_the_ratio_are_refused():
    assert fit_size(5000, 25, PictureGeometry(), 512)
    with pytest.raises(PictureError, match="200 times"):
        fit_size(5000, 24, PictureGeometry(), 512)


def test_a_reduced_copy_is_not_enlarged_again():
    picture = open_picture(noise(800, 600), limits=PictureLimits(kept_px=100_000))
    assert picture.image.size == (400, 300) and (picture.width_px, picture.height_px) == (800, 600)
    patched = patch_picture(picture, PictureGeometry(), 1280)
    assert patched.visual_tokens <= 400 * 300 // 1024


def test_keys_tell_content_size_and_geometry_apart():
    same, other = open_picture(noise(320, 320)), open_picture(noise(320, 320, seed=1))
    keys = [
        patch_picture(same, PictureGeometry(), 100).key,
        patch_picture(same, PictureGeometry(), 64).key,
        patch_picture(same, CLIP, 100).key,
        patch_picture(other, PictureGeometry(), 100).key,
    ]
    assert len(set(keys)) == 4
    again = open_picture(noise(320, 320), name="other name.png")
    assert patch_picture(again, PictureGeometry(), 100).key == keys[0]


def test_geometry_comes_from_the_checkpoint(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(
        json.dumps(
            {
                "size": {"longest_edge": 262144, "shortest_edge": 4096},
                "patch_size": 14,
                "image_mean": [0.1, 0.2, 0.3],
                "image_std": [1, 2, 3],
            }
        )
    )
    geometry = PictureGeometry.from_folder(tmp_path)
    assert geometry == PictureGeometry(
        patch_size=14, min_px=4096, max_px=262144, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0)
    )
    file.write_text(json.dumps({"min_pixels": 1024, "max_pixels": 2048}))
    assert PictureGeometry.from_folder(tmp_path) == PictureGeometry(min_px=1024, max_px=2048)


@pytest.mark.parametrize("text", ["", "[]", '{"patch_size": 0}', '{"image_std": [1, 2]}', "{"])
def test_an_unusable_geometry_is_named(tmp_path, text):
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(CheckpointError, match="preprocessor_config.json"):
        PictureGeometry.from_folder(tmp_path)
    with pytest.raises(CheckpointError):
        PictureGeometry.from_folder(tmp_path / "nowhere")
