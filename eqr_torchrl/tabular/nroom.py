"""N rooms in a row, joined by doorways: the grid world of the paper."""

from __future__ import annotations

import torch

from eqr_torchrl.tabular.conjugate import DirichletPosterior, NormalPosterior
from eqr_torchrl.tabular.mdp import MDP
from eqr_torchrl.tabular.posterior import ConjugatePosterior

_MOVES = ((0, -1), (0, 1), (1, 0), (-1, 0))  # row and column steps of actions 0..3: left, right, down, up


def nroom_cells(num_rooms: int = 3, room_size: int = 5) -> list[tuple[int, int]]:
    """Row and column of each cell that is not a wall, row by row, in the order of the states of :func:`nroom_mdp`.

    Args:
        num_rooms: number of rooms side by side, at least 1.
        room_size: rows and columns of a room, an odd number.

    Raises:
        ValueError: if ``num_rooms`` is not positive or ``room_size`` is not a positive odd number.

    Examples:
        >>> len(nroom_cells()), nroom_cells().index((2, 8))
        (77, 38)
    """
    if num_rooms < 1:
        raise ValueError(f"num_rooms must be positive, got {num_rooms}.")
    if room_size < 1 or room_size % 2 == 0:
        raise ValueError(f"room_size must be a positive odd number, got {room_size}.")
    width = num_rooms * (room_size + 1) - 1
    door = room_size // 2
    return [
        (row, column)
        for row in range(room_size)
        for column in range(width)
        if (column + 1) % (room_size + 1) or row == door
    ]


def nroom_mdp(
    num_rooms: int = 3,
    room_size: int = 5,
    *,
    success_probability: float = 1.0,
    left_prize_ends_episode: bool = False,
    gamma: float = 0.99,
) -> MDP:
    """The grid world of Example 2.

    Leaving the centre of the right-most room earns 1 and ends the episode; leaving the centre of the left-most room
    earns 0.1; leaving the start, the centre of the middle room, earns 0.01. Nothing else is rewarded, and a move into a
    wall stays where it is.

    Args:
        num_rooms: number of rooms side by side, at least 3.
        room_size: rows and columns of a room, an odd number.
        success_probability: how often a move goes in its direction; otherwise it goes in one of the other three
            directions, all equally likely. The paper's study has 1.
        left_prize_ends_episode: end the episode on leaving the small prize, too, as for the policy of the paper's
            study. Without it the best policy goes back and forth over the small prize, which is worth 4.7.
        gamma: discount.

    Returns:
        An MDP in float64, ``S`` = cells + 1: the last state is terminal. Actions are left, right, down, up.

    Raises:
        ValueError: if there are fewer than 3 rooms, or ``success_probability`` is no probability.

    Examples:
        >>> mdp = nroom_mdp()
        >>> mdp.num_states, mdp.initial_state, mdp.terminal_states
        (78, 38, (77,))
    """
    if num_rooms < 3:
        raise ValueError(f"num_rooms must be at least 3, got {num_rooms}.")
    if not 0 <= success_probability <= 1:
        raise ValueError(f"success_probability must lie in [0, 1], got {success_probability}.")
    cells = nroom_cells(num_rooms, room_size)
    index = {cell: state for state, cell in enumerate(cells)}
    end, num_actions = len(cells), len(_MOVES)
    centres = [index[_centre(room, room_size)] for room in range(num_rooms)]
    left, start, right = centres[0], centres[num_rooms // 2], centres[-1]

    # [S, A]: the cell each move reaches
    moved = ([(row + down, column + along) for down, along in _MOVES] for row, column in cells)
    reached = torch.tensor([[index.get(cell, state) for cell in four] for state, four in enumerate(moved)])
    moves = torch.nn.functional.one_hot(reached, end + 1).double()  # [S, A, S + 1]
    slips = (moves.sum(1, keepdim=True) - moves) / (num_actions - 1)
    transitions = torch.zeros(end + 1, num_actions, end + 1, dtype=torch.float64)
    transitions[:end] = success_probability * moves + (1 - success_probability) * slips
    for state in (right, end, *((left,) if left_prize_ends_episode else ())):
        transitions[state] = 0.0
        transitions[state, :, end] = 1.0
    rewards = torch.zeros(end + 1, num_actions, dtype=torch.float64)
    rewards[start], rewards[left], rewards[right] = 0.01, 0.1, 1.0
    return MDP(transitions, rewards, gamma, terminal_states=(end,), initial_state=start)


def nroom_prior(num_rooms: int = 3, room_size: int = 5, *, gamma: float = 0.99) -> ConjugatePosterior:
    """The prior over MDPs of the paper's grid world, before any data.

    Each successor has the Dirichlet concentration ``cells ** -0.5``, walls and neighbourhood being unknown; mean
    rewards are standard normal, and one observation nearly determines them (its precision is 1e6).

    Args:
        num_rooms: as for :func:`nroom_mdp`.
        room_size: as for :func:`nroom_mdp`.
        gamma: discount.

    Examples:
        >>> round(float(nroom_prior().transitions.concentration[0, 0, 0]), 5)
        0.11396
    """
    num_cells = len(nroom_cells(num_rooms, room_size))
    table, end = (num_cells + 1, len(_MOVES)), (num_cells,)
    start = nroom_cells(num_rooms, room_size).index(_centre(num_rooms // 2, room_size))
    transitions = DirichletPosterior.prior(*table, concentration=num_cells**-0.5, terminal_states=end)
    rewards = NormalPosterior.prior(*table, terminal_states=end)
    return ConjugatePosterior(transitions, rewards, gamma, end, start)


def _centre(room: int, room_size: int) -> tuple[int, int]:
    return room_size // 2, room * (room_size + 1) + room_size // 2
