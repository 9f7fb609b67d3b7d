"""What the GPU path does, in under eight minutes on one GPU.

    python benchmarks/gpu.py --json

1. The same weights on the CPU and on the device give the same predictions, values and quantile loss (relative error).
2. Updates per second at the sizes of walker-run (24, 6) and quadruped-run (78, 12): eager, compiled, as a CUDA graph.
3. 200 training steps of examples/eqr_sac.py on Pendulum-v1, eager and as a CUDA graph: seconds, and the last return.

It needs Gymnasium, not DeepMind Control. With ``--device cpu`` it runs eager alone, which shows that the script works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from _timing import print_table
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.objectives import SoftUpdate

from eqr_torchrl import EnsembleSuccessors, EpistemicQuantileLoss, GaussianEnsemble, ModelBasedEnv, make_model_buffer
from eqr_torchrl.functional import quantile_huber_loss, quantile_midpoints
from eqr_torchrl.imagination import never_terminates
from eqr_torchrl.networks import make_actor, make_critic
from eqr_torchrl.objectives import make_optimizer, make_update
from eqr_torchrl.testing import toy_batch, toy_env

ROOT = Path(__file__).parents[1]
MODES = ("eager", "compiled", "CUDA graph")


def relative_error(network: Any, inputs: tuple[Tensor, ...], device: str) -> float:
    """Largest error of the outputs on the device, relative to the largest output on the CPU."""
    with torch.no_grad():
        here = torch.cat([value.flatten() for value in outputs(network, inputs)])
        network.to(device)
        there = torch.cat([value.flatten() for value in outputs(network, tuple(v.to(device) for v in inputs))]).cpu()
    return float((here - there).abs().max() / here.abs().max())


def outputs(network: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    result = network(*inputs)
    return result if isinstance(result, tuple) else (result,)


class HuberLoss(nn.Module):
    """The quantile loss of 51 quantiles and five members' atoms."""

    def forward(self, quantiles: Tensor, atoms: Tensor) -> Tensor:
        levels = quantile_midpoints(quantiles.shape[-1], device=quantiles.device)
        return quantile_huber_loss(quantiles, atoms, levels)


def compare_with_cpu(device: str) -> dict[str, float]:
    torch.manual_seed(0)
    env, rows = toy_env(24, 6), (torch.randn(256, 24), torch.rand(256, 6) * 2 - 1)
    members = tuple(value.expand(5, *value.shape).contiguous() for value in rows)
    return {
        "world model": relative_error(GaussianEnsemble(24, 6, precision="fp32"), members, device),
        "critic": relative_error(make_critic(env).module, rows, device),
        "quantile loss": relative_error(HuberLoss(), (torch.randn(256, 51), torch.randn(256, 255)), device),
    }


def updates_per_second(sizes: tuple[int, int], device: str, mode: str, num_updates: int) -> float:
    torch.manual_seed(0)
    env = toy_env(*sizes)
    world_model = GaussianEnsemble(*sizes).to(device)
    model_env = ModelBasedEnv(world_model, env, termination_fn=never_terminates)
    successors = EnsembleSuccessors(model_env)
    actor: Any = make_actor(env).to(device)
    loss = EpistemicQuantileLoss(actor, make_critic(env).to(device))
    loss.make_value_estimator(gamma=0.99)
    buffer = make_model_buffer(20_000, batch_size=256, device=device)
    rows = toy_batch(B=20_000, observation_dim=sizes[0], action_dim=sizes[1]).select("observation", "action")
    buffer.extend(rows.to(device))

    def losses_of(batch: TensorDictBase) -> TensorDictBase:
        return loss(successors(batch))

    update = make_update(
        torch.compile(losses_of) if mode == "compiled" else losses_of,
        make_optimizer(loss),
        SoftUpdate(loss, tau=0.005),
        sample=buffer.sample,
        cuda_graph=mode == "CUDA graph",
    )
    for _ in range(min(20, num_updates)):
        update()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(num_updates):
        update()
    synchronize(device)
    return num_updates / (time.perf_counter() - start)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def train(device: str, mode: str, env_steps: int, folder: Path) -> dict[str, Any]:
    graph = f"cuda_graph={str(mode == 'CUDA graph').lower()}"
    words = [f"device={device}", f"run_dir={folder}", f"env_steps={env_steps}", graph]
    command = [sys.executable, str(ROOT / "examples" / "eqr_sac.py"), "budget=smoke", "progress=false", *words]
    start = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    return {"status": done.returncode, "seconds": time.perf_counter() - start, "last line": lines[-1] if lines else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--updates", type=int, default=500, help="that are timed (%(default)s)")
    parser.add_argument("--env-steps", type=int, default=200, help="of each training (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as a last line of JSON")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    on_gpu = args.device == "cuda"
    modes = MODES if on_gpu else MODES[:1]
    figures: dict[str, Any] = {"card": torch.cuda.get_device_name() if on_gpu else "none", "torch": torch.__version__}

    figures["relative error"] = compare_with_cpu(args.device)
    print_table([(k, f"{v:.1e}") for k, v in figures["relative error"].items()], ("relative error against the CPU", ""))
    rows = []
    for sizes in ((24, 6), (78, 12)):
        for mode in modes:
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            try:
                rate = f"{updates_per_second(sizes, args.device, mode, args.updates):.0f}"
            except Exception as error:  # the other modes are still worth knowing
                rate = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            memory = f"{torch.cuda.max_memory_allocated() / 2**20:.0f}" if on_gpu else "-"
            rows.append((f"{sizes}", mode, rate, memory))
    figures["updates"] = rows
    print_table(rows, ("sizes (S, A)", "mode", "updates per second", "peak memory (MiB)"))
    with tempfile.TemporaryDirectory() as folder:
        trainings = {
            mode: train(args.device, mode, args.env_steps, Path(folder) / f"run{i}")
            for i, mode in enumerate(modes)
            if mode != "compiled"  # the scripts do not compile
        }
    figures["training"] = trainings
    print_table(
        [(name, str(t["status"]), f"{t['seconds']:.0f}", t["last line"]) for name, t in trainings.items()],
        ("mode", "status", "seconds", "last line"),
    )
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
