"""One training step of the world model, and predictions, against the same scheme as a loop over networks.

Sizes of walker-run: 24 observations, 6 actions, 5 members of 4 x 200 cells, 256 rows of each member in a step.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

import torch
from _timing import parse_arguments, print_json, print_table, sample_alternately, time_alternately
from tensordict import TensorDict
from torch import Tensor, nn

from eqr_torchrl.networks._cpu import onednn_matmul
from eqr_torchrl.world_models import FixedStepsFit, GaussianEnsemble
from eqr_torchrl.world_models.rows import Rows

S, A, M, B, CELLS, ROWS, IMAGINED = 24, 6, 5, 256, 200, 10_000, 20_000
STEPS = 4  # in one timing


class LiteralMember(nn.Module):
    """One member as the published scheme has it: a Gaussian network with softly clamped log-variance."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [S + A, CELLS, CELLS, CELLS, CELLS]
        self.hidden = nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.SiLU()) for a, b in pairwise(sizes)))
        self.head = nn.Linear(CELLS, 2 * (S + 1))
        self.low, self.high = torch.full((1, S + 1), -10.0), torch.full((1, S + 1), 0.5)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.head(self.hidden(inputs)).chunk(2, -1)
        log_var = self.high - nn.functional.softplus(self.high - log_var)
        return mean, self.low + nn.functional.softplus(log_var - self.low)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        mean, log_var = self(inputs)
        nll = (mean - targets).square() * torch.exp(-log_var) + log_var
        return nll.mean() + 0.01 * (self.high.sum() - self.low.sum())


class LiteralEnsemble(nn.Module):
    """The published scheme: a Python loop over members, transitions gathered and normalised batch by batch."""

    def __init__(self, data: dict[str, Tensor]) -> None:
        super().__init__()
        self.members = [LiteralMember() for _ in range(M)]
        self.registered = nn.ModuleList(self.members)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-3, weight_decay=5e-5)
        self.data = {name: value.numpy() for name, value in data.items()}
        inputs = torch.cat([data["observation"], data["action"]], -1)
        self.mean, self.std = inputs.mean(0, keepdim=True), inputs.std(0, keepdim=True)

    def inputs(self, observation: Tensor, action: Tensor) -> Tensor:
        return (torch.cat([observation, action], -1) - self.mean) / self.std

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = torch.stack([m.loss(inputs[i], targets[i]) for i, m in enumerate(self.members)]).mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train_on(self, index: Tensor) -> None:
        rows = index.numpy()
        batch = {name: torch.from_numpy(value[rows]) for name, value in self.data.items()}
        change = batch["next_observation"] - batch["observation"]
        self.step(self.inputs(batch["observation"], batch["action"]), torch.cat([change, batch["reward"]], -1))

    @torch.no_grad()
    def predict(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.inputs(observation, action)
        outputs = [member(rows) for member, rows in zip(self.members, inputs, strict=True)]
        mean, log_var = (torch.stack(values) for values in zip(*outputs, strict=True))
        mean = mean + nn.functional.pad(observation, (0, 1))
        return mean, log_var.exp().sqrt()


def main() -> None:
    """Times training steps and predictions of both."""
    arguments = parse_arguments(__doc__ or "")
    torch.manual_seed(0)
    data = {"observation": torch.randn(ROWS, S), "action": torch.rand(ROWS, A) * 2 - 1}
    data["next_observation"] = data["observation"] + 0.1 * torch.randn(ROWS, S)
    data["reward"] = data["observation"].mean(-1, keepdim=True) + 0.1 * torch.randn(ROWS, 1)
    literal, model = LiteralEnsemble(data), GaussianEnsemble(S, A)
    successors = {"observation": data["next_observation"], "reward": data["reward"]}
    stream = TensorDict({"observation": data["observation"], "action": data["action"], "next": successors}, [ROWS])
    fit, rows = FixedStepsFit(model, num_steps=1, batch_size=B, variance_weight=0.0), Rows(model, stream)
    fit(stream)  # a fit releases large blocks, after which glibc keeps the memory of a step instead of returning it
    index = torch.randint(ROWS, (M, STEPS * B))
    batch = rows.rows[index[:, :B]]
    observation, action = torch.randn(M, IMAGINED, S), torch.rand(M, IMAGINED, A) * 2 - 1
    left, right = torch.randn(4096, CELLS), torch.randn(CELLS, CELLS)

    def literal_steps() -> None:
        for chunk in index.split(B, 1):
            literal.train_on(chunk)

    def loop_steps() -> None:
        for _ in range(STEPS):
            literal.step(batch[..., : S + A], batch[..., S + A :])

    def ensemble_steps() -> None:
        with onednn_matmul():  # as in a fit
            for chunk in index.split(B, 1):
                fit._step(rows, chunk, None)

    def predict() -> None:
        with torch.no_grad(), onednn_matmul():  # as in rollouts and updates
            model(observation, action)

    def product() -> None:
        for _ in range(20):
            torch.mm(left, right)

    def onednn_product() -> None:
        with onednn_matmul():
            product()

    samples = sample_alternately(
        {
            "literal": literal_steps,
            "loop": loop_steps,
            "ensemble": ensemble_steps,
            "product": product,
            "onednn": onednn_product,
        },
        arguments.rounds,
    )
    lowest = {name: min(values) for name, values in samples.items()}
    seconds = {name: statistics.median(values) for name, values in samples.items()}
    seconds |= time_alternately(
        {"literal_predict": lambda: literal.predict(observation, action), "predict": predict},
        min(arguments.rounds, 7),
        warmup=1,
    )
    weights = sum(a * b for a, b in pairwise([S + A, CELLS, CELLS, CELLS, CELLS, 2 * (S + 1)]))  # of a member
    # a step: products forward, and twice as much backward but for the gradient of the inputs
    step_flops = 2 * M * B * (3 * weights - (S + A) * CELLS)
    peak = 20 * 2 * 4096 * CELLS**2
    milliseconds = {name: 1e3 * seconds[name] / STEPS for name in ("literal", "loop", "ensemble")}
    figures = {
        "step_literal_ms": milliseconds["literal"],
        "step_loop_ms": milliseconds["loop"],
        "step_ms": milliseconds["ensemble"],
        "step_ratio": milliseconds["literal"] / milliseconds["ensemble"],
        "step_ratio_to_loop": milliseconds["loop"] / milliseconds["ensemble"],
        "step_ratio_of_lowest": lowest["literal"] / lowest["ensemble"],
        "step_share_of_peak": step_flops / milliseconds["ensemble"] * 1e3 / (peak / seconds["onednn"]),
        "predict_literal_ms": 1e3 * seconds["literal_predict"],
        "predict_ms": 1e3 * seconds["predict"],
        "predict_ratio": seconds["literal_predict"] / seconds["predict"],
        "predict_gflops": 2 * M * IMAGINED * weights / seconds["predict"] / 1e9,
        "predict_share_of_peak": 2 * M * IMAGINED * weights / seconds["predict"] / (peak / seconds["onednn"]),
        "peak_gflops": peak / seconds["product"] / 1e9,
        "onednn_peak_gflops": peak / seconds["onednn"] / 1e9,
    }
    f = figures
    print_table(
        [
            (f"training step {M} x {B}, published scheme", f"{f['step_literal_ms']:.1f}", "1.00", ""),
            (f"training step {M} x {B}, loop over members", f"{f['step_loop_ms']:.1f}",
             f"{f['step_literal_ms'] / f['step_loop_ms']:.2f}", ""),
            (f"training step {M} x {B}, GaussianEnsemble", f"{f['step_ms']:.1f}", f"{f['step_ratio']:.2f}",
             f"{f['step_share_of_peak']:.0%}"),
            (f"predictions {M} x {IMAGINED}, loop over members", f"{f['predict_literal_ms']:.0f}", "1.00", ""),
            (f"predictions {M} x {IMAGINED}, GaussianEnsemble", f"{f['predict_ms']:.0f}", f"{f['predict_ratio']:.2f}",
             f"{f['predict_share_of_peak']:.0%}"),
        ],
        ("work", "ms", "ratio", "of oneDNN's float32 rate"),
    )  # fmt: skip
    if arguments.json:
        print_json(figures)


if __name__ == "__main__":
    main()
