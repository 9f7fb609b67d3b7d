"""Watches a trained agent: returns of its deterministic policy, and a video where rendering works.

python examples/enjoy.py runs/eqr_sac-Pendulum-v1-seed0-...                   # returns of five episodes
python examples/enjoy.py runs/.../checkpoints/policy.pt --episodes 20         # the policy file alone is enough
python examples/enjoy.py policy.pt --env crane:Crane                          # of an environment of your own
python examples/enjoy.py pretrained/dmc_pendulum-swingup                      # a policy that comes with the package
MUJOCO_GL=egl python examples/enjoy.py runs/... --video episode.gif           # .mp4 with pip install imageio[ffmpeg]

DeepMind Control and MuJoCo render without a display with MUJOCO_GL=egl or osmesa, Gymnasium's classic control needs
pygame. An environment of your own needs render() and render_mode="rgb_array", as in Gymnasium.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from eqr_torchrl.lab._command import parser_of, run_command, short
from eqr_torchrl.lab.evaluation import evaluate
from eqr_torchrl.lab.runs import load_agent

RENDERING = "without a display, set MUJOCO_GL=egl or MUJOCO_GL=osmesa; classic control needs pip install pygame"


def main() -> None:
    """Loads, acts, prints, and writes the video."""
    parser = parser_of(__doc__, "enjoy.py")
    parser.add_argument("source", help="run folder, one of its checkpoints, or its policy.pt")
    parser.add_argument("--env", help="environment in place of the one that source names, such as crane:Crane")
    parser.add_argument("--episodes", type=int, default=5, help="episodes to run (%(default)s)")
    parser.add_argument("--max-steps", type=int, default=1000, help="longest episode, in env steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode's start (%(default)s)")
    parser.add_argument("--video", type=Path, help="file for a video of the first episode, .gif or .mp4")
    args = parser.parse_args()
    if args.video is not None and args.video.suffix not in (".gif", ".mp4"):
        raise ValueError(f"--video must end in .gif or .mp4, got {args.video}.")
    for name in ("episodes", "max_steps"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {getattr(args, name)}.")

    agent = load_agent(args.source)
    named = {} if args.env is None else {"name": args.env}
    is_dmc = str({**(agent.settings.get("env") or {}), **named}.get("name", "")).startswith("dmc/")
    filming = {} if args.video is None or is_dmc else {"render_mode": "rgb_array"}
    try:
        env = agent.make_env(seed=args.seed, **named, **filming)
    except (TypeError, ValueError) as error:
        if not filming or "render_mode" not in str(error):
            raise
        raise ValueError(f"--video needs an environment whose constructor takes render_mode: {error}.") from error
    returns = []
    for episode in range(args.episodes):  # the same start for each policy, whatever noise the steps before drew
        row = evaluate(env, agent.actor, num_episodes=1, max_steps=args.max_steps, seed=args.seed + episode)[0]
        returns.append(row["episode_return"])
        print(f"episode {episode + 1}: return {short(returns[-1])} in {row['episode_length']} steps")
    spread = statistics.stdev(returns) if len(returns) > 1 else 0.0
    mean = short(statistics.mean(returns))
    print(f"mean return {mean}, standard deviation {short(spread)}, {agent.env_steps} env steps")
    if args.video is not None:
        frames: list[Any] = []
        env.set_seed(args.seed)
        with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
            env.rollout(args.max_steps, agent.actor, callback=lambda env, _: frames.append(picture(env)))
        write_video(args.video, frames, rate=frame_rate(env))
        print(f"{len(frames)} frames written to {args.video}")


def picture(env: Any) -> Any:
    """What the environment looks like now: an array ``[height, width, 3]`` of bytes."""
    try:
        physics = getattr(env, "physics", None)
        image = env.render() if physics is None else physics.render(height=240, width=320, camera_id=0)
    except Exception as error:  # every renderer has errors of its own
        raise RuntimeError(f"cannot render: {type(error).__name__}: {error} ({RENDERING}).") from error
    if image is None or getattr(image, "ndim", 0) != 3:
        raise RuntimeError("cannot render: render() must return an array [height, width, 3].")
    return image


def frame_rate(env: Any) -> float:
    """Frames per second at which the episode runs in real time."""
    if hasattr(env, "control_timestep"):
        return 1 / env.control_timestep()
    metadata = getattr(env, "metadata", None)
    return float(metadata.get("render_fps", 30)) if isinstance(metadata, dict) else 30.0


def write_video(path: Path, frames: list[Any], rate: float) -> None:
    """Writes frames as a GIF or MP4."""
    try:
        import imageio.v3 as imageio
    except ImportError as error:
        raise ImportError("a video needs imageio: pip install 'eqr_torchrl[video]'.") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gif":
        imageio.imwrite(path, frames, duration=1000 / rate, loop=0)
    else:
        try:
            imageio.imwrite(path, frames, fps=rate, plugin="FFMPEG")
        except ImportError as error:
            raise ImportError(f"{path} needs FFmpeg: pip install 'imageio[ffmpeg]', or write a .gif.") from error


def cli() -> None:
    """The command line."""
    run_command(main)


if __name__ == "__main__":
    cli()
