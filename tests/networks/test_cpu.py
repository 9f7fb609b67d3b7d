"""Precision and backend of matmuls: what is chosen, and that user code never sees another setting of the process."""

from __future__ import annotations

import pytest
import torch
from torchrl.objectives import SoftUpdate

from eqr_torchrl.imagination import ModelBasedEnv, branched_rollout, make_model_buffer
from eqr_torchrl.networks import _cpu, fast_inference
from eqr_torchrl.objectives import EpistemicQuantileLoss, make_optimizer, make_update
from eqr_torchrl.testing import toy_actor, toy_batch, toy_critic, toy_env
from eqr_torchrl.world_models import GaussianEnsemble


@pytest.mark.parametrize(("flag", "fast"), [("avx512_bf16", True), ("amx_bf16", True), ("avx2", False)])
def test_auto_is_bf16_where_the_cpu_has_the_instructions(monkeypatch, flag, fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {flag: True})
    assert _cpu.uses_bf16("auto") is fast
    assert _cpu.uses_bf16("bf16") and not _cpu.uses_bf16("fp32")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bw": True}, True),
        ({"cpu_name": "Intel Core", "avx512_bw": False}, False),
        ({"cpu_name": "AMD EPYC", "avx512_bw": True}, False),
        ({}, False),
    ],
)
def test_mkl_uses_avx512_on_processors_of_intel_alone(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert _cpu.mkl_uses_avx512.__wrapped__() is expected  # without its cache


def test_float32_matmuls_keep_float32_accuracy():
    x, w = torch.randn(300, 200), torch.randn(200, 100)
    exact = x.double() @ w.double()
    with _cpu.onednn_matmul():
        product = x @ w
    # rounding the inputs to bfloat16 would give errors of 1e-1
    torch.testing.assert_close(product.double(), exact, rtol=0, atol=1e-4)


def test_the_setting_of_the_process_is_restored_also_after_an_error():
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    with pytest.raises(KeyError), _cpu.onednn_matmul():
        raise KeyError
    assert matmul.fp32_precision == before


@pytest.mark.parametrize("capabilities", [{"avx2": True}, {"avx512_bw": True, "amx_bf16": True}])
def test_nothing_is_set_where_it_would_not_help_or_would_round(monkeypatch, capabilities):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(_cpu, "_onednn_keeps_float32", _cpu._onednn_keeps_float32.__wrapped__)  # without its cache
    before = torch.backends.mkldnn.matmul.fp32_precision
    with _cpu.onednn_matmul():
        assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_code_of_a_user_inside_an_update_finds_the_setting_of_the_process(monkeypatch):
    monkeypatch.setattr(_cpu, "_onednn_keeps_float32", lambda: True)  # as on an AMD processor with AVX-512
    found = []

    def look(*_):
        found.append((torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision))

    class Mean(torch.nn.Module):
        def forward(self, quantiles):
            look()
            return quantiles.mean(-1)

    actor, critic = toy_actor(), toy_critic()
    critic.module.register_forward_hook(look)
    loss = EpistemicQuantileLoss(actor, critic, utility=Mean(), target_inference=fast_inference)
    before = torch.backends.mkldnn.matmul.fp32_precision
    update = make_update(loss, make_optimizer(loss), SoftUpdate(loss, tau=0.1), before_step=look, after_step=look)
    update(toy_batch(B=64, M=3, K=2))
    assert len(found) == 6  # a hook at target, prediction and policy loss; utility; before and after the step
    assert set(found) == {("highest", before)}


def test_rules_of_a_user_inside_a_rollout_find_the_setting_of_the_process(monkeypatch):
    monkeypatch.setattr(_cpu, "_onednn_keeps_float32", lambda: True)
    found = []

    def rule(next_observation, action):
        found.append(torch.get_float32_matmul_precision())
        return torch.zeros(*action.shape[:-1], 1, dtype=torch.bool)

    model_env = ModelBasedEnv(GaussianEnsemble(3, 1, num_cells=(8,)), toy_env(), termination_fn=rule)
    buffer = make_model_buffer(100, batch_size=5)
    branched_rollout(model_env, toy_actor(), torch.zeros(10, 3), buffer, num_starts=10, horizon=2)
    assert set(found) == {"highest"}
