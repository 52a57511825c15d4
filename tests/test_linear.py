"""Each packed format equals fp32 within its rounding, for any rows and for extreme inputs."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from vlm import linear
from vlm.linear import available_kinds, int8_input_levels, pack

NEEDS_FBGEMM = pytest.mark.skipif("int8" not in available_kinds(), reason="no FBGEMM here")
KINDS = [
    "fp32",
    "bf16",
    pytest.param("fp16", marks=NEEDS_FBGEMM),
    pytest.param("int8", marks=NEEDS_FBGEMM),
]
# Root mean square of the error over that of the output, for normal weights and inputs.
ERROR_BOUND = {"fp32": 1e-6, "fp16": 5e-4, "bf16": 6e-3, "int8": 2.4e-2}


def sample(rows=5, width=320, out=200, seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, width, generator=generator) * 0.05
    shift = torch.randn(out, generator=generator) if bias else None
    return torch.randn(rows, width, generator=generator), weight, shift


def exact(x, weight, bias):
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


def relative_error(y, expected):
    return float((y - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_fp32_within_rounding(kind, rows, bias):
    x, weight, shift = sample(rows, bias=bias)
    layer = pack(weight, shift, kind)
    y = layer(x)
    assert y.dtype == torch.float32
    assert y.shape == (rows, layer.out_features)
    assert relative_error(y, exact(x, weight, shift)) < ERROR_BOUND[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_input_is_left_unchanged(kind):
    x, weight, shift = sample()
    before = x.clone()
    pack(weight, shift, kind)(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_cut_into_blocks_give_the_same(kind, monkeypatch):
    x, weight, shift = sample(out=203)
    whole = pack(weight, shift, kind)(x)
    monkeypatch.setattr(linear, "MAX_PACK_ELEMENTS", 320 * 50)
    torch.testing.assert_close(pack(weight, shift, kind)(x), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_any_float_type(kind, dtype):
    x, weight, shift = sample()
    weight, shift = weight.to(dtype), shift.to(dtype)
    error = relative_error(pack(weight, shift, kind)(x), exact(x, weight, shift))
    assert error < ERROR_BOUND[kind]


@NEEDS_FBGEMM
def test_fp16_holds_bf16_weights_exactly():
    x, weight, _ = sample(bias=False)
    weight = weight.to(torch.bfloat16)
    weight[weight.abs() < 6e-5] = 0
    y = pack(weight, None, "fp16")(x)
    torch.testing.assert_close(y, exact(x, weight, None).float(), atol=2e-6, rtol=0)


@NEEDS_FBGEMM
def test_weights_beyond_fp16_stay_exact():
    x, weight, _ = sample(bias=False)
    weight[3, 4] = 1e6
    assert relative_error(pack(weight, None, "fp16")(x), exact(x, weight, None)) < 1e-6


@NEEDS_FBGEMM
def test_int8_rotation_leaves_little_of_the_error_that_one_huge_value_makes(monkeypatch):
    x, weight, _ = sample(64, width=1024, bias=False)
    x[:, 7] = 60.0
    expected = exact(x, weight, None)
    error = relative_error(pack(weight, None, "int8")(x), expected)
    monkeypatch.setattr(linear, "_rotation", lambda columns: torch.eye(1))
    plain = relative_error(pack(weight, None, "int8")(x), expected)
    assert error < 0.04
    assert plain > 3 * error


@pytest.mark.parametrize("columns", [2048, 704, 48, 7])
def test_the_rotation_is_orthogonal_and_fits_the_columns(columns):
    rotation = linear._rotation(columns)
    assert columns % len(rotation) == 0
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(len(rotation)))


@NEEDS_FBGEMM
def test_int8_row_does_not_depend_on_its_neighbours():
    x, weight, shift = sample(6)
    layer = pack(weight, shift, "int8")
    together = layer(torch.cat((x, x * 1000)))
    for row in range(6):
        torch.testing.assert_close(together[row], layer(x[row : row + 1])[0], atol=1e-5, rtol=0)


@NEEDS_FBGEMM
def test_int8_largest_values_do_not_saturate():
    """All inputs and weights at their extremes, the worst case for 16-bit partial sums."""
    for sign in (1.0, -1.0):
        weight = torch.full((64, 256), sign)
        y = pack(weight, None, "int8")(torch.ones(3, 256))
        torch.testing.assert_close(y, torch.full((3, 64), 256 * sign), rtol=1e-5, atol=0)
    assert int8_input_levels() in (63, 127)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_rows_give_the_bias(kind):
    _, weight, shift = sample()
    y = pack(weight, shift, kind)(torch.zeros(2, 320))
    torch.testing.assert_close(y, shift.expand(2, -1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_inputs_are_not_hidden(kind, bad):
    x, weight, shift = sample()
    x[1, 3] = bad
    y = pack(weight, shift, kind)(x)
    assert not torch.isfinite(y[1]).any()
    assert torch.isfinite(y[[0, 2]]).all()


def test_fp32_shares_the_weights_it_is_given():
    _, weight, shift = sample()
    layer = pack(weight, shift, "fp32")
    weight.zero_()
    assert torch.equal(layer(torch.ones(1, 320))[0], shift)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_bytes(kind):
    _, weight, _ = sample()
    per_weight = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}[kind]
    assert pack(weight, None, kind).weight_bytes == pytest.approx(
        weight.numel() * per_weight, rel=0.02
    )


def test_missing_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(linear, "available_kinds", lambda: ("fp32", "bf16"))
    _, weight, _ = sample()
    with pytest.raises(ValueError, match="FBGEMM"):
        pack(weight, None, "int8")


@NEEDS_FBGEMM
def test_packing_warns_of_nothing():
    _, weight, shift = sample()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pack(weight, shift, "int8")
        pack(weight, shift, "fp16")
