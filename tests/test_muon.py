"""Muon: orthogonal steps in fp32."""

import torch

from vlm.bundled.muon import Muon, orthogonalise


def test_singular_values_come_close_to_one():
    matrices = torch.randn(3, 24, 60, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.7 and values.max() < 1.3


def test_tall_matrices_are_turned():
    matrices = torch.randn(1, 60, 24, generator=torch.Generator().manual_seed(1))
    turned = orthogonalise(matrices.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(orthogonalise(matrices), turned)


def test_large_matrices_in_blocks_step_half_as_far_so_that_no_direction_steps_further():
    weight = torch.zeros(512, 512, requires_grad=True)
    weight.grad = torch.randn(512, 512, generator=torch.Generator().manual_seed(1))
    Muon([weight], lr=1.0).step()
    assert 0.08 < weight.detach().pow(2).mean().sqrt() < 0.12
    assert torch.linalg.matrix_norm(weight.detach(), 2) < 1.2 * 0.2 * 512**0.5


def test_it_fits_a_linear_map():
    generator = torch.Generator().manual_seed(1)
    wanted, x = torch.randn(8, 6, generator=generator), torch.randn(64, 6, generator=generator)
    weight = torch.zeros(8, 6, requires_grad=True)
    muon = Muon([weight], lr=0.1)
    for step in range(300):
        for group in muon.param_groups:
            group["lr"] = 0.1 * (1 - step / 300)
        loss = (x @ weight.T - x @ wanted.T).pow(2).mean()
        loss.backward()
        muon.step()
        muon.zero_grad()
    assert loss < 0.01
