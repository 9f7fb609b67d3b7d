from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import ObservationNorm

from eqr_torchrl.lab.runs import (
    capture_state,
    checkpoint_path,
    latest_checkpoint,
    load_agent,
    load_checkpoint,
    restore_state,
    save_checkpoint,
)


def transitions(start: int, n: int) -> TensorDict:
    rows = torch.arange(start, start + n, dtype=torch.float32).unsqueeze(-1)
    following = TensorDict({"observation": rows + 1, "done": torch.zeros(n, 1, dtype=torch.bool)}, [n])
    return TensorDict({"observation": rows, "next": following}, [n])


def make_replay(capacity: int = 10) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=4)


def test_checkpoint_is_one_file_that_needs_no_pickled_code(tmp_path):
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    path = save_checkpoint(tmp_path / "a.pt", capture_state(network=network, optimizer=optimizer, env_steps=7))
    assert torch.load(path, weights_only=True)["state"]["env_steps"] == 7
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_what_weights_only_refuses_is_named_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"got pathlib\.\w*Path at state\['a'\]\[1\]"):
        save_checkpoint(tmp_path / "a.pt", {"a": [1, tmp_path]})
    assert not any(tmp_path.iterdir())


def test_a_failing_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path / "a.pt", {"env_steps": 1})

    def full_disk(content, file):
        file.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match=r"cannot write .*a\.pt: no space left on device"):
        save_checkpoint(path, {"env_steps": 2})
    assert load_checkpoint(path) == {"env_steps": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.pt"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / ".step_000000001.pt.tmp").write_bytes(b"half")
    save_checkpoint(tmp_path / "step_000000002.pt", {})
    assert [file.name for file in tmp_path.iterdir()] == ["step_000000002.pt"]


def test_rotation_keeps_the_newest(tmp_path):
    for step in (5, 1000, 20, 300):
        save_checkpoint(checkpoint_path(tmp_path, step), {"env_steps": step}, keep_last=2)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step_000000300.pt", "step_000001000.pt"]
    assert latest_checkpoint(tmp_path / "checkpoints") == checkpoint_path(tmp_path, 1000)
    with pytest.raises(ValueError, match="keep_last must be at least 1"):
        save_checkpoint(checkpoint_path(tmp_path, 1), {}, keep_last=0)


def test_loaded_state_does_not_alias_the_file_or_the_parts(tmp_path):
    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)

    def train(steps):
        for _ in range(steps):
            network(torch.ones(2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(3)
    path = save_checkpoint(tmp_path / "a.pt", capture_state(network=network, optimizer=optimizer))
    state = load_checkpoint(path)
    first = load_checkpoint(path)
    restore_state(state, network=network, optimizer=optimizer)
    train(10)
    again = load_checkpoint(path)
    for part in (state, again):
        torch.testing.assert_close(part["network"], first["network"], rtol=0, atol=0)
        torch.testing.assert_close(part["optimizer"]["state"], first["optimizer"]["state"], rtol=0, atol=0)
    save_checkpoint(tmp_path / "elsewhere" / "b.pt", capture_state(network=network, optimizer=optimizer))
    path.unlink()
    train(1)
    assert load_checkpoint(tmp_path / "elsewhere" / "b.pt")["network"].keys() == first["network"].keys()


def test_all_random_number_generators_go_on_where_they_were(tmp_path):
    own = torch.Generator().manual_seed(1)

    def draw():
        return (
            random.random(),
            np.random.normal(),  # noqa: NPY002 - the global generator is what is under test
            torch.randn(1).item(),
            torch.rand(1, generator=own).item(),
        )

    draw()
    path = save_checkpoint(tmp_path / "a.pt", capture_state(own=own))
    expected = [draw() for _ in range(3)]
    restore_state(load_checkpoint(path), own=own)
    assert [draw() for _ in range(3)] == expected


def test_fingerprint_mismatch_is_one_line_that_names_the_entries(tmp_path):
    path = save_checkpoint(tmp_path / "a.pt", {}, fingerprint={"algorithm": "eqr_sac", "env": "p", "members": 5})
    load_checkpoint(path, fingerprint={"algorithm": "eqr_sac", "env": "p", "members": 5})
    with pytest.raises(
        ValueError,
        match="saved with algorithm='eqr_sac', members=5, this run has algorithm='mbpo', members=3, which cannot take",
    ) as error:
        load_checkpoint(path, fingerprint={"algorithm": "mbpo", "env": "p", "members": 3})
    assert "\n" not in str(error.value)


def test_other_versions_are_a_warning(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path / "a.pt", {"x": 1})
    monkeypatch.setattr("eqr_torchrl.lab.runs.checkpoint.metadata.version", lambda name: "9.9")
    with pytest.warns(UserWarning, match=r"torch .* \(now 9.9\)"):
        assert load_checkpoint(path) == {"x": 1}


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_unreadable_files_are_one_line(tmp_path, content):
    path = tmp_path / "a.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="checkpoint") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


def test_a_file_of_somebody_else_is_refused(tmp_path):
    torch.save({"weight": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="must be a checkpoint of format 3: got None"):
        load_checkpoint(tmp_path / "a.pt")


def test_a_file_of_an_older_version_is_refused_in_one_line(tmp_path):
    path = tmp_path / "old.pt"
    for content in ({"format": 2, "state": {}}, {"format": 2, "actor": {}}):  # a checkpoint and a policy of 0.2.0
        torch.save(content, path)
        for load in (load_checkpoint, load_agent):
            with pytest.raises(ValueError, match=r"old.pt has format 2, of an older version .* format 3 is needed"):
                load(path)


def test_other_shapes_and_missing_parts_are_one_line():
    state = capture_state(critic=torch.nn.Linear(2, 51))
    with pytest.raises(
        ValueError, match=r"critic does not fit .* bias must be a tensor of shape \(5,\), saved .*\(51,\)"
    ):
        restore_state(state, critic=torch.nn.Linear(2, 5))
    with pytest.raises(ValueError, match="must hold actor: it holds critic, rng"):
        restore_state(state, actor=torch.nn.Linear(2, 5))
    old = {name: value for name, value in state["critic"].items() if name != "bias"}
    with pytest.raises(ValueError, match=r"bias must be .*, saved is nothing: another version wrote it, or other"):
        restore_state({**state, "critic": old}, critic=torch.nn.Linear(2, 51))
    optimizer = torch.optim.Adam(torch.nn.Linear(2, 2).parameters())
    other = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match=r"groups of \[1\], saved \[2\]"):
        restore_state(capture_state(optimizer=optimizer), optimizer=other)


@pytest.mark.parametrize("rows", [0, 6, 23])  # empty, partly filled, full and wrapped
def test_replay_buffer_goes_on_as_if_nothing_happened(tmp_path, rows):
    old, new = make_replay(), make_replay()
    for start in range(0, rows, 3):
        old.extend(transitions(start, min(3, rows - start)))
    path = save_checkpoint(tmp_path / "a.pt", capture_state(replay=old))
    old.extend(transitions(100, 2))
    expected = old.sample()
    restore_state(load_checkpoint(path), replay=new)
    path.unlink()
    new.extend(transitions(100, 2))
    assert len(new) == len(old)
    assert (new.sample() == expected).all()
    assert (new[:] == old[:]).all()


def test_only_the_filled_part_of_a_replay_buffer_is_saved(tmp_path):
    replay = make_replay(capacity=1_000_000)  # 1e6 rows of 3 values: over 10 MB
    replay.extend(transitions(0, 10))
    assert save_checkpoint(tmp_path / "a.pt", capture_state(replay=replay)).stat().st_size < 50_000


def test_replay_rows_are_views_until_they_are_written():
    replay = make_replay()
    replay.extend(transitions(0, 6))
    rows = capture_state(replay=replay)["replay"]["rows"]
    assert rows["observation",].data_ptr() == replay.storage.get(slice(0, 1))["observation"].data_ptr()
    assert rows["observation",].untyped_storage().nbytes() == 6 * 4


def test_replay_buffer_with_its_own_generator(tmp_path):
    def make():
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=3)
        buffer.set_rng(torch.Generator().manual_seed(0))
        return buffer

    old, new = make(), make()
    old.extend(transitions(0, 5))
    old.sample()
    path = save_checkpoint(tmp_path / "a.pt", capture_state(replay=old))
    restore_state(load_checkpoint(path), replay=new)
    assert (new.sample() == old.sample()).all()


def test_restoring_over_a_used_buffer_replaces_its_rows():
    old, used = make_replay(), make_replay()
    old.extend(transitions(0, 4))
    used.extend(transitions(50, 9))
    restore_state(capture_state(replay=old), replay=used)
    assert (used[:] == old[:]).all()


def test_a_full_buffer_goes_on_in_a_larger_one():
    full, larger = make_replay(), make_replay(20)
    full.extend(transitions(0, 13))  # rows 3 to 12 are left, and the cursor is at 3
    restore_state(capture_state(replay=full), replay=larger)
    larger.extend(transitions(13, 1))
    assert larger[:]["observation"][:, 0].tolist() == [float(row) for row in range(3, 14)]


def test_replay_buffers_that_cannot_go_on_are_refused():
    full = make_replay()
    full.extend(transitions(0, 10))
    state = capture_state(replay=full)
    with pytest.raises(ValueError, match="replay: 10 rows do not fit into a buffer of capacity 9"):
        restore_state(state, replay=make_replay(9))
    prefetching = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2, prefetch=1)
    with pytest.raises(ValueError, match="prefetch=None"):
        capture_state(replay=prefetching)


def test_no_warnings_on_the_way(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore_state(load_checkpoint(save_checkpoint(tmp_path / "a.pt", capture_state(n=1))))


@pytest.mark.skipif(not Path("/dev/shm").is_dir() or os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_named_and_keeps_the_old_checkpoint(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounts are not allowed here")
    try:
        path = save_checkpoint(checkpoint_path(tmp_path, 1), {"weight": torch.ones(1000)}, keep_last=1)
        with pytest.raises(OSError, match=r"cannot write .*step_000000002\.pt: no space left on the disk"):
            save_checkpoint(checkpoint_path(tmp_path, 2), {"weight": torch.ones(1_000_000)}, keep_last=1)
        assert load_checkpoint(path)["weight"].sum() == 1000
        assert [file.name for file in path.parent.iterdir()] == ["step_000000001.pt"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


WRITE_AND_KILL = """
import os, signal, sys, time, torch
from eqr_torchrl.lab.runs import checkpoint_path, latest_checkpoint, save_checkpoint
for delay in sys.argv[2:]:
    folder = os.path.join(sys.argv[1], delay)
    child = os.fork()
    for step in range(1, 100_000) if child == 0 else ():
        save_checkpoint(checkpoint_path(folder, step), {"rows": torch.full((3_000_000,), float(step))}, keep_last=1)
    while latest_checkpoint(folder) is None:
        time.sleep(0.001)
    time.sleep(float(delay))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks writers")
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    delays = ("0.0", "0.013", "0.031", "0.057")
    subprocess.run([sys.executable, "-c", WRITE_AND_KILL, str(tmp_path), *delays], check=True, timeout=300)
    for delay in delays:
        path = latest_checkpoint(tmp_path / delay)
        assert path is not None and (load_checkpoint(path)["rows"] == int(path.stem[5:])).all()


def test_a_copy_under_another_name_is_no_checkpoint(tmp_path):
    path = save_checkpoint(checkpoint_path(tmp_path, 20), {})
    path.with_stem(f"{path.stem}_good").write_bytes(path.read_bytes())
    assert latest_checkpoint(tmp_path) == path


def test_what_was_just_saved_is_never_removed(tmp_path):
    save_checkpoint(checkpoint_path(tmp_path, 1000), {})
    path = save_checkpoint(checkpoint_path(tmp_path, 10), {}, keep_last=1)
    assert path.is_file() and checkpoint_path(tmp_path, 1000).is_file()


def test_transforms_of_a_replay_buffer_are_restored():
    def make_buffer(loc):
        transform = ObservationNorm(loc=loc, scale=1.0, in_keys=["observation"])
        return TensorDictReplayBuffer(storage=LazyTensorStorage(5), batch_size=2, transform=transform)

    old, new = make_buffer(3.0), make_buffer(0.0)
    old.extend(TensorDict({"observation": torch.zeros(4, 1)}, [4]))
    restore_state(capture_state(replay=old), replay=new)
    assert new.sample()["observation"].flatten().tolist() == [3.0, 3.0]


def test_rows_that_fill_a_smaller_buffer_leave_it_ready_for_the_next():
    old, new = (TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=2) for size in (10, 5))
    old.extend(TensorDict({"x": torch.arange(5)}, [5]))
    restore_state(capture_state(replay=old), replay=new)
    new.add(TensorDict({"x": torch.tensor(9)}))  # in place of the oldest
    assert new[:]["x"].tolist() == [9, 1, 2, 3, 4]
