from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from eqr_torchrl.imagination import TRANSITION_KEYS, make_replay_buffer
from eqr_torchrl.lab.logs import read_transitions, transitions_from
from eqr_torchrl.lab.runs import capture_state, checkpoint_path, save_checkpoint
from eqr_torchrl.testing import toy_env

COLUMNS = {"observation": ["x", "v"], "action": ["u"], "reward": "r", "next_observation": ["x2", "v2"]}


def arrays():
    """Two episodes of three and two steps: the first ends by a rule, the second by the clock."""
    state = np.array([[0, 1], [1, 1], [2, 1], [7, 0], [8, 0]], np.float64)
    return {
        "observations": state,
        "actions": np.array([[1.0], [-1.0], [0.5], [0.0], [1.0]]),
        "rewards": np.arange(5.0),
        "next_observations": state + np.array([1, 0]),
        "terminals": np.array([0, 0, 1, 0, 0]),
        "timeouts": np.array([0, 0, 0, 0, 1]),
    }


def test_npz_with_the_keys_of_d4rl_has_the_layout_of_torchrl(tmp_path):
    np.savez(tmp_path / "log.npz", **arrays())
    data = read_transitions(tmp_path / "log.npz")
    assert data.batch_size == torch.Size([5]) and data["observation"].dtype == torch.float32
    assert data["next", "observation"][:, 0].tolist() == [1, 2, 3, 8, 9]
    assert data["next", "reward"].shape == data["next", "done"].shape == (5, 1)
    assert data["next", "terminated"].flatten().tolist() == [False, False, True, False, False]
    assert data["next", "truncated"].flatten().tolist() == [False, False, False, False, True]
    assert data["next", "done"].flatten().tolist() == [False, False, True, False, True]


def test_without_next_observations_they_are_those_of_the_next_row_inside_an_episode(tmp_path):
    rows = arrays()
    rows.pop("next_observations")
    rows["terminals"], rows["timeouts"] = np.zeros(5), np.array([0, 0, 1, 0, 1])
    np.savez(tmp_path / "log.npz", **rows)
    data = read_transitions(tmp_path / "log.npz")  # rows 0, 1 and 3: those of 2 and 4 are unknown
    assert data["next", "observation"].tolist() == [[1, 1], [2, 1], [8, 0]]
    assert data["next", "done"].flatten().tolist() == [False, True, True]
    rows["terminals"] = rows.pop("timeouts")
    np.savez(tmp_path / "ends.npz", **rows)
    with pytest.warns(UserWarning, match="2 terminations have no next observation .*the limit that was crossed"):
        read_transitions(tmp_path / "ends.npz")


def test_next_observations_of_ends_alone_are_enough(tmp_path):
    """Rows 2 and 4 end: only row 2 says where, [3, 1]. Rows 0, 1 and 3 take the following row; row 4 is left out."""
    rows = arrays()
    known = np.full((5, 2), np.nan)
    known[2] = rows["next_observations"][2]
    np.savez(tmp_path / "log.npz", **{**rows, "next_observations": known})
    data = read_transitions(tmp_path / "log.npz")
    assert data["next", "observation"].tolist() == [[1, 1], [2, 1], [3, 1], [8, 0]]
    assert data["next", "terminated"].flatten().tolist() == [False, False, True, False]
    assert data["next", "truncated"].flatten().tolist() == [False, False, False, True]


ISO = ["2026-11-30T00:00", "2026-11-30T00:15", "2026-11-30T00:30", "2026-11-30T02:00", "2026-11-30T02:15"]


@pytest.mark.parametrize("time", [[0.0, 1.0, 2.0, 8.0, 9.0], ISO, [f"{stamp}:00+01:00" for stamp in ISO]])
def test_a_gap_in_time_ends_the_episode_before_it(time):
    """Row 2 is followed by a step of six in place of one: its next observation is unknown, so that row 1 is the end."""
    rows = {"observation": np.arange(5.0), "action": np.ones(5), "reward": np.ones(5), "time": np.array(time, object)}
    rows["time"] = rows["time"].astype(float) if isinstance(time[0], float) else rows["time"]
    with pytest.warns(UserWarning, match=r"1 gaps in time, the first after row 2 of the file .*: episodes end there"):
        data = transitions_from(rows)
    assert data["next", "observation"].flatten().tolist() == [1, 2, 4]
    assert data["next", "truncated"].flatten().tolist() == [False, True, True]
    with pytest.warns(UserWarning, match="1 gaps in time"):  # a next observation that was logged is kept
        data = transitions_from({**rows, "next_observation": np.arange(5.0) + 1})
    assert data["next", "truncated"].flatten().tolist() == [False, False, True, False, True]


def test_a_row_that_was_written_twice_is_a_gap_in_time():
    rows = {"observation": np.array([0.0, 1, 2, 2, 3, 4]), "action": np.ones(6), "reward": np.ones(6)}
    with pytest.warns(UserWarning, match="1 gaps in time, the first after row 2"):
        data = transitions_from({**rows, "time": np.array([0, 1, 2, 2, 3, 4])})
    assert data["observation"].flatten().tolist() == [0, 1, 2, 3]
    assert data["next", "truncated"].flatten().tolist() == [False, True, False, True]


def test_time_may_begin_anew_in_each_episode_and_must_be_a_time():
    rows = {
        "observation": np.arange(4.0),
        "action": np.ones(4),
        "reward": np.ones(4),
        "episode": np.array([0, 0, 1, 1]),
    }
    assert len(transitions_from({**rows, "time": np.array([0.0, 1.0, 0.0, 1.0])})) == 2  # without a warning
    for time, message in (
        (np.array(["30.11.2026"] * 4), "time must be one number or ISO timestamp a step.*got .*30.11.2026"),
        (np.arange(4.0)[::-1], "time must increase within an episode, its median step is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            transitions_from({**rows, "time": time})


def write_csv(path, header="run,x,v,u,r,stop,x2,v2", end=""):
    rows = arrays()
    lines = [header]
    for i in range(5):
        s, t = rows["observations"][i], rows["next_observations"][i]
        lines.append(
            f"{i // 3},{s[0]},{s[1]},{rows['actions'][i, 0]},{rows['rewards'][i]},{int(i == 2)},{t[0]},{t[1]}{end}"
        )
    path.write_text("\n".join(lines))


def test_csv_by_columns_is_the_same_log_as_the_arrays(tmp_path):
    write_csv(tmp_path / "log.csv")
    np.savez(tmp_path / "log.npz", **arrays())
    data = read_transitions(tmp_path / "log.csv", columns={**COLUMNS, "terminated": "stop", "episode": "run"})
    assert (data == read_transitions(tmp_path / "log.npz")).all()


def test_the_time_of_a_table_is_text(tmp_path):
    rows = [f"{stamp},{i},0.5,{i}.0" for i, stamp in enumerate(ISO)]
    (tmp_path / "log.csv").write_text("\n".join(["when,x,u,r", *rows]))
    columns = {"observation": "x", "action": "u", "reward": "r", "time": "when"}
    with pytest.warns(UserWarning, match="1 gaps in time, the first after row 2"):
        data = read_transitions(tmp_path / "log.csv", columns=columns)
    assert data["observation"].flatten().tolist() == [0, 1, 3]


def test_parquet_reads_as_csv(tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    write_csv(tmp_path / "log.csv")
    pandas.read_csv(tmp_path / "log.csv").to_parquet(tmp_path / "log.parquet")
    tables = [read_transitions(tmp_path / name, columns=COLUMNS) for name in ("log.csv", "log.parquet")]
    assert (tables[0] == tables[1]).all()


def test_hdf5_reads_as_npz(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, value in arrays().items():
            file[name] = value
    np.savez(tmp_path / "log.npz", **arrays())
    assert (read_transitions(tmp_path / "log.hdf5") == read_transitions(tmp_path / "log.npz")).all()


@pytest.mark.filterwarnings("ignore")  # of the packages that make the data set
def test_minari_data_sets_keep_their_ends(tmp_path, monkeypatch):
    """A data set of two episodes that is made here: Minari itself downloads nothing."""
    minari, gymnasium = pytest.importorskip("minari"), pytest.importorskip("gymnasium")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env, rows = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    episodes = [
        EpisodeBuffer(
            id=number,
            observations=rows.uniform(-1, 1, (length + 1, 3)).astype(np.float32),
            actions=rows.uniform(-1, 1, (length, 1)).astype(np.float32),
            rewards=list(rows.uniform(-1, 0, length)),
            terminations=[False] * (length - 1) + [number == 0],
            truncations=[False] * (length - 1) + [number == 1],
        )
        for number, length in enumerate((4, 7))
    ]
    minari.create_dataset_from_buffers("pendulum/made-v0", episodes, env=env)
    data = read_transitions("minari:pendulum/made-v0")
    assert data["next", "terminated"].flatten().nonzero().flatten().tolist() == [3]
    assert data["next", "done"].flatten().nonzero().flatten().tolist() == [3, 10]
    np.testing.assert_array_equal(data["observation"][4:], episodes[1].observations[:-1])
    np.testing.assert_array_equal(data["next", "observation"][4:], episodes[1].observations[1:])
    np.testing.assert_allclose(data["next", "reward"][4:, 0], episodes[1].rewards, rtol=1e-5)


def test_the_replay_buffer_of_a_run_is_read_in_the_order_of_time(tmp_path):
    replay = make_replay_buffer(20)
    rows = toy_env(max_steps=6).rollout(30, break_when_any_done=False).select(*TRANSITION_KEYS)
    replay.extend(rows[:18])
    replay.extend(rows[18:])  # the ring begins in the middle of its storage
    save_checkpoint(checkpoint_path(tmp_path, 30), {"parts": capture_state(replay=replay)})
    data = read_transitions(tmp_path)
    torch.testing.assert_close(data["observation"], rows["observation"][10:])
    torch.testing.assert_close(data["next", "done"], rows["next", "done"][10:])


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_rows_of_several_simulators_are_read_episode_after_episode(tmp_path, dropped):
    """A log of one simulator, then three that were written in turn; the first ``dropped`` rows are lost."""
    rows = [toy_env(max_steps=6).rollout(12, break_when_any_done=False).select(*TRANSITION_KEYS) for _ in range(4)]
    log, turns = rows[0], rows[1:]
    replay = make_replay_buffer(48 - dropped)
    replay.extend(log)
    replay.extend(torch.stack(turns, 1).reshape(-1))  # a ring: the oldest are written over
    save_checkpoint(checkpoint_path(tmp_path, 36), {"parts": capture_state(replay=replay)})
    data = read_transitions(tmp_path)
    episodes = [part[i : i + 6] for i in (0, 6) for part in turns]  # in the order in which they began
    expected = torch.cat([log[dropped:], *episodes])
    torch.testing.assert_close(data["observation"], expected["observation"])
    assert data["next", "done"].flatten().nonzero().flatten().tolist() == [6 * i + 5 - dropped for i in range(8)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": None}, "columns must map observation, action, reward (and next_observation"),
        ({"rewards": np.zeros((5, 2))}, "reward must be one vector a step, shape [n, size], got [5, 2]"),
        ({"actions": np.zeros((4, 1))}, "arrays must have one row a step, observation has 5: got action 4"),
        ({"next_observations": np.zeros((5, 3))}, "next_observation must have the shape of observation"),
        ({"terminals": np.arange(5)}, "terminated must be 0 or 1, got 2 in row 2 (from 0)"),
        ({"terminals": np.zeros((5, 2))}, "terminated must be one flag a step, got shape [5, 2]"),
    ],
)
def test_arrays_of_wrong_shape_are_refused_in_one_line(change, message, tmp_path):
    np.savez(tmp_path / "log.npz", **{key: value for key, value in {**arrays(), **change}.items() if value is not None})
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read_transitions(tmp_path / "log.npz")
    assert "\n" not in str(error.value)


def test_tables_name_the_columns_that_are_missing(tmp_path):
    write_csv(tmp_path / "log.csv")
    with pytest.raises(ValueError, match="columns must map observation, action, reward .*: got {}"):
        read_transitions(tmp_path / "log.csv")
    with pytest.raises(ValueError, match="run, x, v, u, r, stop, x2, v2: got"):
        read_transitions(tmp_path / "log.csv", columns={**COLUMNS, "reward": "gain"})
    write_csv(tmp_path / "text.csv", header="run,x,v,u,r,stop,x2,v2,note", end=",slow")
    with pytest.raises(ValueError, match="terminated must be numbers, note holds text"):
        read_transitions(tmp_path / "text.csv", columns={**COLUMNS, "terminated": "note"})


def test_unknown_sources_are_named(tmp_path):
    with pytest.raises(ValueError, match="a log must hold reward: found observation, action"):
        transitions_from({"observation": np.zeros((2, 1)), "action": np.zeros((2, 1))})
    with pytest.raises(FileNotFoundError, match="source must be a file that exists: got .*missing.npz"):
        read_transitions(tmp_path / "missing.npz")
    (tmp_path / "log.mat").touch()
    with pytest.raises(ValueError, match=r"source must be a file .npz, .*: got .*log.mat"):
        read_transitions(tmp_path / "log.mat")
    with pytest.raises(ValueError, match="a run folder whose checkpoint holds a replay buffer"):
        read_transitions(tmp_path)


def test_a_log_that_stops_in_an_episode_is_truncated_there():
    rows = {
        "observation": np.arange(4.0),
        "action": np.ones(4),
        "reward": np.ones(4),
        "next_observation": np.arange(4.0) + 1,
    }
    assert transitions_from(rows)["next", "done"].flatten().tolist() == [False, False, False, True]


def test_files_without_a_log_are_refused_in_one_line(tmp_path):
    (tmp_path / "cut.npz").write_bytes(b"PK")
    with open(tmp_path / "one.npz", "wb") as file:
        np.save(file, np.zeros(3))
    for name in ("cut", "one"):
        with pytest.raises(ValueError, match=f"{name}.npz must be a file of numpy.savez: it is another, or damaged"):
            read_transitions(tmp_path / f"{name}.npz")
    (tmp_path / "empty.csv").write_text("x,u,r\n")
    columns = {"observation": "x", "action": "u", "reward": "r"}
    with pytest.raises(ValueError, match="a log must have rows, observation has none"):
        read_transitions(tmp_path / "empty.csv", columns=columns)
    (tmp_path / "one.csv").write_text("x,u,r\n1,2,3\n")
    with pytest.raises(ValueError, match="a log must hold a step whose next observation is known: got none in 1 rows"):
        read_transitions(tmp_path / "one.csv", columns=columns)


@pytest.mark.parametrize("episode", [np.array([0.0, np.nan, 1.0]), np.array(["a", np.nan, "b"], object)])
def test_the_episode_of_every_row_is_known(episode):
    rows = {"observation": np.zeros((3, 1)), "action": np.zeros((3, 1)), "reward": np.zeros(3), "episode": episode}
    with pytest.raises(ValueError, match=r"episode must be given in every row, row 1 \(from 0\) has none"):
        transitions_from(rows)
