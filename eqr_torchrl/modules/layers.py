"""Linear layers with the paper's initialisation, and the MLPs made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn


class OrthogonalLinear(nn.Linear):
    """A linear layer whose weight starts orthogonal with gain 1 and whose bias starts at zero.

    Being the layer's own ``reset_parameters``, the initialisation survives whatever re-initialises modules.

    Examples:
        >>> layer = OrthogonalLinear(3, 2)
        >>> torch.allclose(layer.weight @ layer.weight.T, torch.eye(2), atol=1e-6)
        True
    """

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def mlp(
    in_features: int,
    num_cells: Sequence[int],
    out_features: int,
    *,
    activation_class: Callable[[], nn.Module] = nn.Tanh,
) -> nn.Sequential:
    """Multilayer perceptron of :class:`OrthogonalLinear` layers.

    Args:
        in_features: size of the input.
        num_cells: size of each hidden layer.
        out_features: size of the output, which has no activation.
        activation_class: makes the activation after each hidden layer. Defaults to ``nn.Tanh``, as in the paper.

    Returns:
        A module from ``[..., in_features]`` to ``[..., out_features]``.

    Raises:
        ValueError: if a size is not positive.

    Examples:
        >>> mlp(3, (8, 8), 2)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """
    sizes = [in_features, *num_cells, out_features]
    if min(sizes) < 1:
        raise ValueError(f"num_cells, in_features and out_features must be positive, got {sizes}.")
    layers: list[nn.Module] = []
    for size_in, size_out in zip(sizes[:-2], sizes[1:-1], strict=True):
        layers += [OrthogonalLinear(size_in, size_out), activation_class()]
    return nn.Sequential(*layers, OrthogonalLinear(sizes[-2], sizes[-1]))
