"""The Muon optimizer in fp32, for weight matrices on a CPU.

Momentum is orthogonalised by Newton-Schulz steps (Keller Jordan, Muon, 2024). Matrices of
one shape are stacked, so that a small model costs few calls; torch's own Muon computes in
bf16, which is slow on CPUs without bf16 units.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

_COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Move the singular values of (k, rows, columns) matrices close to one."""
    x = matrices.transpose(1, 2) if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in _COEFFICIENTS:
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(a * x, torch.baddbmm(b * gram, gram, gram, alpha=c), x)
    return x.transpose(1, 2) if matrices.shape[1] > matrices.shape[2] else x


def _in_blocks(matrices: Tensor) -> Tensor:
    """Orthogonalise large square matrices in four blocks of columns: a fifth of the work."""
    count, rows, columns = matrices.shape
    if min(rows, columns) < 512 or columns % 4:
        return orthogonalise(matrices)
    blocks = matrices.view(count, rows, 4, columns // 4).transpose(1, 2).flatten(0, 1)
    done = orthogonalise(blocks).view(count, 4, rows, columns // 4)
    return 0.5 * done.transpose(1, 2).reshape(count, rows, columns)


class Muon(torch.optim.Optimizer):
    """Steps whose size is the same for every direction of a weight matrix."""

    def __init__(self, parameters: list[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[tuple(parameter.flatten(1).shape)].append(parameter)
            for shape, parameters in by_shape.items():
                updates = _in_blocks(torch.stack([self._momentum(p, group) for p in parameters]))
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                    parameter.add_(update.view_as(parameter), alpha=-scale)

    def _momentum(self, parameter: Tensor, group: dict[str, float]) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        gradient: Tensor = parameter.grad
        state["momentum"].mul_(group["momentum"]).add_(gradient)
        return gradient.add(state["momentum"], alpha=group["momentum"]).flatten(1)
