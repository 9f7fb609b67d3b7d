from __future__ import annotations

import pytest
import torch

from eqr_torchrl import functional as F
from eqr_torchrl.functional.quantiles import _count_below


def pairwise_loss(quantiles, targets, levels, kappa):
    """Every predicted quantile against every target atom, as the definition says."""
    u = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)
    huber = torch.where(u.abs() < kappa, 0.5 * u.square(), kappa * (u.abs() - 0.5 * kappa)) if kappa else u.abs()
    return ((levels.unsqueeze(-1) - (u < 0).to(u.dtype)).abs() * huber).mean(-1).sum(-1)


# pinball: 1/4 * (1 + 1 + 4) / 3 + 3/4 * (0 + 0 + 3) / 3;  huber: 1/4 * (.5 + .5 + 3.5) / 3 + 3/4 * (0 + 0 + 2.5) / 3
@pytest.mark.parametrize(("kappa", "expected"), [(0.0, 1.25), (1.0, 1.0)])
def test_quantile_huber_loss_matches_hand_computation(kappa, expected):
    theta, y = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 1.0, 4.0]])
    loss = F.quantile_huber_loss(theta, y, F.quantile_midpoints(2), kappa=kappa)
    torch.testing.assert_close(loss, torch.tensor([expected]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e3, 1.0), (-1e3, 300.0), (0.0, 1e-2)])
@pytest.mark.parametrize("num_quantiles", [1, 7])
def test_sorted_loss_and_gradient_equal_the_pairwise_definition(dtype, kappa, offset, scale, num_quantiles):
    generator = torch.Generator().manual_seed(0)
    theta = (offset + scale * torch.randn(3, 2, num_quantiles, generator=generator, dtype=torch.float64)).to(dtype)
    y = (offset + scale * torch.randn(3, 2, 11, generator=generator, dtype=torch.float64)).to(dtype)
    levels = F.quantile_midpoints(num_quantiles, dtype=dtype)
    theta.requires_grad_()
    loss = F.quantile_huber_loss(theta, y, levels, kappa=kappa)
    (gradient,) = torch.autograd.grad(loss.sum(), theta)
    # the oracle works in float64 on the very same numbers: a pairwise float32 sum is the less exact of the two
    exact = theta.detach().double().requires_grad_()
    expected = pairwise_loss(exact, y.double(), levels.double(), kappa)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_ties_and_targets_on_the_cuts_count_once(kappa):
    theta = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.0, 0.0, kappa, -kappa, 1.0, 1.0]], dtype=torch.float64)
    levels = F.quantile_midpoints(3, dtype=torch.float64)
    loss = F.quantile_huber_loss(theta, y, levels, kappa=kappa)
    expected = pairwise_loss(theta, y, levels, kappa)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), theta)[0] for value in (loss, expected)))


def test_pinball_gradient_counts_a_tied_target_as_not_below():
    theta = torch.tensor([[2.0]], requires_grad=True)
    loss = F.quantile_huber_loss(theta, torch.tensor([[2.0, 2.0, 1.0, 3.0]]), torch.tensor([0.25]), kappa=0.0)
    (gradient,) = torch.autograd.grad(loss, theta)
    assert gradient.item() == pytest.approx((0.75 * 1 - 0.25 * 3) / 4)  # one target below, three not


def test_gradient_scales_with_the_gradient_of_the_output_and_misses_the_targets():
    theta, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 9, requires_grad=True)
    loss = F.quantile_huber_loss(theta, y, F.quantile_midpoints(5)).sum()
    once, none = torch.autograd.grad(loss, (theta, y), retain_graph=True, allow_unused=True)
    torch.testing.assert_close(torch.autograd.grad(3 * loss, theta)[0], 3 * once)
    assert none is None


def descend(y, levels, *, kappa: float, lr: float, steps: int = 400):
    """Quantiles of the samples ``y`` by gradient steps on the loss, at a rate that falls to zero."""
    theta = torch.zeros(1, len(levels), requires_grad=True)
    for step in range(steps):
        (gradient,) = torch.autograd.grad(F.quantile_huber_loss(theta, y, levels, kappa=kappa).sum(), theta)
        theta.data -= lr * (1 - step / steps) * gradient
    return theta.detach()


NORMAL = torch.special.ndtri(F.quantile_midpoints(2001))[None]  # a standard normal distribution by its quantiles


def test_descent_on_the_pinball_loss_finds_the_quantiles():
    levels = F.quantile_midpoints(5)
    found = descend(NORMAL, levels, kappa=0.0, lr=1.0)
    torch.testing.assert_close(found, torch.special.ndtri(levels)[None], atol=0.01, rtol=0)


def test_a_threshold_above_the_spread_biases_extreme_quantiles_and_a_small_one_does_not():
    # spread 0.1, so that steps grow with 0.1 / kappa; the expectile of level 0.05 of N(0, 1) lies at -1.14
    small, large = (
        descend(0.1 * NORMAL, torch.tensor([0.05]), kappa=k, lr=r).item() for k, r in ((0.002, 50), (1.0, 2))
    )
    assert small == pytest.approx(0.1 * torch.special.ndtri(torch.tensor(0.05)).item(), abs=0.002)
    assert large == pytest.approx(-0.114, abs=0.002)


# halves are exact in every type: |1/4 - 1{u < 0}| L(u), summed by hand for u = -1, 1, 3 and kappa = 1
@pytest.mark.parametrize("quantile_type", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target_type", [torch.float64, torch.float32, torch.bfloat16])
def test_predictions_and_targets_may_differ_in_type(quantile_type, target_type):
    theta = torch.tensor([[1.0]], dtype=quantile_type, requires_grad=True)
    y = torch.tensor([[0.0, 2.0, 4.0]], dtype=target_type)
    loss = F.quantile_huber_loss(theta, y, torch.tensor([0.25]), kappa=1.0)
    assert loss.dtype == quantile_type
    assert loss.item() == pytest.approx((0.75 * 0.5 + 0.25 * 0.5 + 0.25 * 2.5) / 3, rel=4e-3)
    loss.sum().backward()
    assert theta.grad.dtype == quantile_type
    assert theta.grad.item() == pytest.approx((0.75 - 0.25 - 0.25) / 3, rel=4e-3)


def test_targets_that_several_critics_share_are_sorted_without_a_warning():
    y = torch.randn(4, 6)
    shared = y.unsqueeze(1).expand(4, 3, 6)
    torch.set_warn_always(True)
    try:
        loss = F.quantile_huber_loss(torch.zeros(4, 3, 2), shared, F.quantile_midpoints(2))
    finally:
        torch.set_warn_always(False)
    expected = F.quantile_huber_loss(torch.zeros(4, 2), y, F.quantile_midpoints(2))
    torch.testing.assert_close(loss, expected.unsqueeze(1).expand(4, 3))


def test_a_nan_target_shows_in_the_loss():
    y = torch.tensor([[0.0, float("nan")], [0.0, 1.0]])
    loss = F.quantile_huber_loss(torch.zeros(2, 3), y, F.quantile_midpoints(3))
    assert loss.isnan().tolist() == [True, False]


@pytest.mark.parametrize("sizes", [((2, 3), (2, 4), 4), ((2, 3), (1, 4), 3), ((2, 3), (2, 0), 3)])
def test_shapes_that_do_not_fit_are_named(sizes):
    with pytest.raises(ValueError, match="must agree"):
        F.quantile_huber_loss(*map(torch.zeros, sizes))


@pytest.mark.parametrize(("num_samples", "num_quantiles"), [(10, 3), (5000, 10), (7, 7), (3, 8), (1, 4), (255, 51)])
def test_projection_takes_the_sample_of_the_nearest_level(num_samples, num_quantiles):
    samples = torch.randn(num_samples, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ordered = samples.sort().values.tolist()
    expected = []
    for i in range(num_quantiles):  # integers: level of sample j is (2j + 1) / 2J, of quantile i (2i + 1) / 2N
        gaps = [abs((2 * j + 1) * num_quantiles - (2 * i + 1) * num_samples) for j in range(num_samples)]
        expected.append(ordered[gaps.index(min(gaps))])
    assert F.quantile_projection(samples, num_quantiles).tolist() == expected


def test_wasserstein_distances_of_shifted_and_shuffled_atoms():
    q = torch.tensor([[0.0, 1.0, 5.0]])
    assert F.wasserstein_distance(q, q[:, [2, 0, 1]]).item() == 0
    assert F.wasserstein_distance(q, q + 2, p=2).item() == pytest.approx(2)
    other = torch.tensor([[0.0, 1.0, 8.0]])
    assert F.wasserstein_distance(q, other).item() == pytest.approx(1)
    assert F.wasserstein_distance(q, other, p=2).item() == pytest.approx(3**0.5)
    assert F.wasserstein_distance(q, other, p=float("inf")).item() == 3
    equal = q.clone().requires_grad_()
    F.wasserstein_distance(equal, q, p=2).sum().backward()
    assert equal.grad is not None and (equal.grad == 0).all()  # the root has no derivative there
    with pytest.raises(ValueError, match=r"p must be at least 1, got 0.5"):
        F.wasserstein_distance(q, other, p=0.5)


@pytest.mark.parametrize("num_values", [1, 2, 3, 7, 8, 9, 255, 256, 257])
def test_counting_below_is_a_left_sided_search_with_ties_infinities_and_nan(num_values):
    generator = torch.Generator().manual_seed(num_values)
    values = torch.randint(-5, 5, (3, 2, num_values), generator=generator).float()
    values[0, 0, -1] = float("inf")
    values[1, 0, 0] = -float("inf")
    cuts = torch.cat([torch.arange(-6.0, 6.0), torch.tensor([0.5, -float("inf"), float("inf")])]).expand(3, 2, -1)
    expected = (values.unsqueeze(-2) < cuts.unsqueeze(-1)).sum(-1)
    assert torch.equal(_count_below(values.sort(-1).values, cuts), expected)
    values[2, 1, 0] = float("nan")  # sorted to the end, below nothing
    expected = (values.unsqueeze(-2) < cuts.unsqueeze(-1)).sum(-1)
    assert torch.equal(_count_below(values.sort(-1).values, cuts), expected)


# --- torch.func, and derivatives of derivatives


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch's own jvp
@pytest.mark.parametrize("kappa", [0.0, 0.7])
def test_grad_vmap_and_jvp_of_torch_func_are_those_of_the_definition(kappa):
    theta, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 9, dtype=torch.float64)
    levels, tangent = F.quantile_midpoints(5, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)

    def ours(theta, y):
        return F.quantile_huber_loss(theta, y, levels, kappa=kappa)

    def definition(theta, y):
        return pairwise_loss(theta, y, levels, kappa)

    expected = definition(theta, y)
    torch.testing.assert_close(torch.func.vmap(ours)(theta, y), expected)
    torch.testing.assert_close(torch.func.vmap(ours, (1, None))(theta.T, y[0]), definition(theta, y[0].expand(6, 9)))
    gradients = [torch.func.grad(lambda q, f=f: f(q, y).sum())(theta) for f in (ours, definition)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(ours))(theta, y), gradients[1])
    torch.testing.assert_close(
        *(torch.func.jvp(lambda q, f=f: f(q, y), (theta,), (tangent,)) for f in (ours, definition))
    )
    hessians = [torch.func.hessian(lambda q, f=f: f(q, y[0]))(theta[0]) for f in (ours, definition)]
    torch.testing.assert_close(*hessians)
    assert bool(hessians[0].any()) == (kappa > 0)


def test_a_gradient_penalty_has_the_gradient_of_the_definition():
    theta, y, penalties = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 9, dtype=torch.float64), []
    levels = F.quantile_midpoints(5, dtype=torch.float64)
    for loss in (F.quantile_huber_loss, lambda *args: pairwise_loss(*args, 1.0)):
        q = theta.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(q, y, levels).sum(), q, create_graph=True)
        gradient.square().sum().backward()
        penalties.append(q.grad)
    assert penalties[1].any()
    torch.testing.assert_close(*penalties)
