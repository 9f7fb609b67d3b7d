"""The tabular studies of Luis et al. (2024), https://arxiv.org/abs/2308.06590, where exact solutions can be computed.

python examples/tabular_eqr.py                        # experiment=toy: Figures 2 and 5
python examples/tabular_eqr.py experiment=nroom       # Figure 6
python examples/tabular_eqr.py experiment=qr_loss     # Figure 4
python examples/tabular_eqr.py experiment=psrl        # how the policy of Figure 6 is found
python examples/tabular_eqr.py experiment=unrolling   # Appendix A
"""

from __future__ import annotations

import contextlib
import csv
import sys
from pathlib import Path

import matplotlib
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from eqr_torchrl.lab.runs import LoopSettings, RunStatus
from eqr_torchrl.lab.runs.cli import run_hydra
from eqr_torchrl.lab.runs.folder import plan_run, prepare_folder

sys.path.insert(0, str(Path(__file__).parent))  # the studies, however this script is started
from tabular_studies.figures import STYLE, Findings


def main(cfg: DictConfig) -> None:
    """Runs one study, then writes what it found."""
    if cfg.num_threads is not None:
        torch.set_num_threads(cfg.num_threads)
    torch.manual_seed(cfg.seed)
    name = cfg.experiment._target_.rpartition(".")[-1]
    folder = prepare_folder(plan_run(cfg.runs_root, f"tabular-{name}-seed{cfg.seed}", run_dir=cfg.run_dir))
    with matplotlib.rc_context(STYLE):
        try:
            findings: Findings = instantiate(
                cfg.experiment,
                generator=torch.Generator().manual_seed(cfg.seed),
                progress=cfg.progress,
                _convert_="all",
            )
        except BaseException:
            with contextlib.suppress(OSError):
                folder.rmdir()  # nothing has been written
            raise
        with RunStatus(folder):
            OmegaConf.save(cfg, folder / "config.yaml", resolve=True)
            for file_name, (header, rows) in findings.tables.items():
                with open(folder / file_name, "w", newline="", encoding="utf-8") as file:
                    csv.writer(file, lineterminator="\n").writerows([header, *rows])
            (folder / "figures").mkdir(exist_ok=True)
            for file_name, figure in findings.figures.items():
                figure.savefig(folder / "figures" / file_name)
    print(*findings.summary, f"wrote {folder}", sep="\n")


def cli() -> None:
    """The command line."""
    run_hydra(main, Path(__file__).parents[1] / "configs" / "tabular", "tabular_eqr", schema=LoopSettings.of)


if __name__ == "__main__":
    cli()
