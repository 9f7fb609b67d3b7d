"""Directive ``algorithm-table``: what each file of ``configs/algorithm`` picks, read from the composed configs."""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CONFIGS = Path(__file__).parents[2] / "configs"
COLUMNS = ("`algorithm=`", "critic", "rollouts into the model buffer", "successors", "loss")


def algorithm_rows() -> list[tuple[str, ...]]:
    """One row of the table for each algorithm file."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    rows = []
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for path in sorted((CONFIGS / "algorithm").glob("*.yaml")):
            cfg = OmegaConf.to_container(compose("eqr_sac", [f"algorithm={path.stem}"]), resolve=True)
            critics, quantiles = cfg["loss"].get("num_qvalue_nets", 1), cfg["critic"].get("num_quantiles", 1)
            outputs = "values, one a member" if path.stem == "member_values" else "quantiles"
            critic = f"{critics} x " + (f"{quantiles} {outputs}" if quantiles > 1 else "scalar")
            rules = "; ".join(
                f"{rule['member']}, " + ("L starts in all" if rule["starts"] == "shared" else "L starts a member")
                for rule in cfg["rollout"]["rules"]
            )
            drawn = cfg["successors"].get("num_next_states")
            successors = f"{drawn} of each member, {cfg['successors']['sampling']}" if drawn else "as stored"
            rows.append((f"`{path.stem}`", critic, rules, successors, f"`{cfg['loss']['_target_'].split('.')[-1]}`"))
    return rows


class AlgorithmTable(SphinxDirective):
    """``algorithm-table``, without arguments."""

    def run(self) -> list[nodes.Node]:
        for path in CONFIGS.rglob("*.yaml"):
            self.env.note_dependency(str(path))
        rows = [COLUMNS, ("---",) * len(COLUMNS), *algorithm_rows()]
        lines = ["| " + " | ".join(row) + " |" for row in rows]  # read as Markdown, the language of the page
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("algorithm-table", AlgorithmTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
