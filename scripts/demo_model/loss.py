"""Weighted cross entropy that keeps no logits: gradients are made chunk by chunk on the way forward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

_CHUNK = 512


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, low: bool
    ) -> Tensor:
        kind = torch.bfloat16 if low else table.dtype
        narrow, small = table.to(kind), hidden.to(kind)
        hidden_gradient = torch.empty_like(small)
        table_gradient = torch.zeros_like(table)
        losses = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for first in range(0, len(hidden), _CHUNK):
            part = slice(first, first + _CHUNK)
            logits = (small[part] @ narrow.T).float()
            wanted, weight = targets[part, None], weights[part, None]
            normaliser = logits.logsumexp(1, keepdim=True)
            losses += ((normaliser - logits.gather(1, wanted)) * weight).sum()
            slopes = logits.sub_(normaliser).exp_()
            slopes.scatter_add_(1, wanted, torch.full_like(weight, -1.0))
            slopes = slopes.mul_(weight).to(kind)
            hidden_gradient[part] = slopes @ narrow
            table_gradient += slopes.T @ small[part]
        ctx.save_for_backward(hidden_gradient.to(hidden.dtype), table_gradient)
        return losses

    @staticmethod
    def backward(ctx: FunctionCtx, slope: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, table_gradient = ctx.saved_tensors
        return hidden_gradient * slope, table_gradient * slope, None, None, None


def weighted_loss(hidden: Tensor, table: Tensor, targets: Tensor, weights: Tensor, *, low: bool) -> Tensor:
    """The sum of weight x cross entropy over positions with a weight above zero.

    `hidden` [positions, width], `table` [vocabulary, width]. `low`: multiplies matrices in bfloat16.
    """
    counted = weights > 0
    loss: Tensor = _CrossEntropy.apply(hidden[counted], table, targets[counted], weights[counted], low)
    return loss
