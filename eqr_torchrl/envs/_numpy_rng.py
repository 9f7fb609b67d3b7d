"""The state of one NumPy generator as plain values, which ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def numpy_generator_state(generator: np.random.Generator | np.random.RandomState) -> dict[str, Any]:
    """Capture a generator.

    Args:
        generator: a ``Generator`` (Gymnasium's ``np_random``) or ``RandomState`` (dm_control's ``task.random``).

    Returns:
        Its state, in dictionaries of numbers, strings and tensors.

    Examples:
        >>> import numpy as np
        >>> generator = np.random.default_rng(0)
        >>> state = numpy_generator_state(generator)
        >>> first = generator.random()
        >>> set_numpy_generator_state(generator, state)
        >>> generator.random() == first
        True
    """
    if isinstance(generator, np.random.RandomState):
        return _to_plain(generator.get_state(legacy=False))
    return _to_plain(generator.bit_generator.state)


def set_numpy_generator_state(generator: np.random.Generator | np.random.RandomState, state: dict[str, Any]) -> None:
    """Put a state from :func:`numpy_generator_state` back.

    Args:
        generator: a generator of the same kind.
        state: the state; it is not changed.

    Raises:
        ValueError: if the state is of another bit generator.
    """
    name = numpy_generator_state(generator)["bit_generator"]
    if state["bit_generator"] != name:
        raise ValueError(f"the saved generator must be a {name}: got a {state['bit_generator']}.")
    if isinstance(generator, np.random.RandomState):
        generator.set_state(_from_plain(state))
    else:
        generator.bit_generator.state = _from_plain(state)


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):  # torch has few unsigned types; the words of every bit generator fit into int64
        return torch.from_numpy(value.astype(np.int64))
    return value.item() if isinstance(value, np.generic) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _from_plain(item) for key, item in value.items()}
    # back to unsigned words: a copy, and of the width that NumPy checks for
    return value.numpy().astype(np.uint64) if isinstance(value, torch.Tensor) else value
