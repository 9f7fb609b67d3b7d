from __future__ import annotations

import pandas as pd
import pytest
from run_tables import COLUMNS, evaluations, values, write_run

from eqr_torchrl.lab.comparison import read_runs

HEADER = "env,algorithm,seed,env_steps,episode_return\n"


def test_reads_run_folders_and_files_alike(tmp_path):
    write_run(tmp_path / "sweep" / "0", evaluations({"0": {5: 1.5}}))
    write_run(tmp_path / "sweep" / "1", evaluations({"1": {5: 2.5}}))
    expected = [("reach", "sac", "", "0", 5, 1.5), ("reach", "sac", "", "1", 5, 2.5)]
    assert values(read_runs(tmp_path / "sweep"), COLUMNS) == expected
    assert values(read_runs([str(tmp_path / "sweep" / seed) for seed in "01"]), COLUMNS) == expected
    assert values(read_runs([tmp_path / "sweep", tmp_path / "sweep" / "1"]), COLUMNS) == expected  # once, not twice
    assert values(read_runs(tmp_path / "sweep" / "1" / "evaluations.csv"), COLUMNS) == expected[1:]


def test_each_row_names_its_file(tmp_path):
    folder = write_run(tmp_path / "0", evaluations({"0": {5: 1.5}}))
    assert read_runs(tmp_path)["file"].tolist() == [str(folder / "evaluations.csv")]


def test_reads_other_column_names_and_comments(tmp_path):
    file = tmp_path / "theirs.csv"
    file.write_text("# from elsewhere\ntask,algorithm,seed,step,score\nreach,td3,a,1e3,7\n")
    table = read_runs(file, columns={"env": "task", "env_steps": "step", "episode_return": "score"})
    assert values(table, COLUMNS) == [("reach", "td3", "", "a", 1000, 7.0)]


def test_a_byte_order_mark_changes_nothing(tmp_path):
    text = HEADER + "reach,sac,0,1,2\n"
    (tmp_path / "plain.csv").write_text(text, encoding="utf-8")
    (tmp_path / "excel.csv").write_text(text, encoding="utf-8-sig")
    plain, excel = (read_runs(tmp_path / f"{name}.csv").drop(columns="file") for name in ("plain", "excel"))
    pd.testing.assert_frame_equal(plain, excel)


@pytest.mark.parametrize("torn", ["reach,sac,0,2000,5", "reach,sac,0,20", "rea"])
def test_a_last_row_that_is_cut_off_is_left_out(tmp_path, torn):
    file = tmp_path / "killed.csv"
    file.write_text(HEADER + "reach,sac,0,1000,60.25\n" + torn)  # the return of the last row was 512.3
    with pytest.warns(UserWarning, match=r"killed\.csv: no line break follows the last row"):
        table = read_runs(file)
    assert values(table, ["env_steps", "episode_return"]) == [(1000, 60.25)]


def test_same_run_from_two_places_is_refused_unless_renamed(tmp_path):
    for name in ("first", "second"):
        write_run(tmp_path / name, evaluations({"3": {5: 1.0}}, algorithm="eqr_sac", utility="mean"))
    with pytest.raises(ValueError, match="reach/eqr_sac/mean with seed 3 is in .*first.* and .*second.*NAME=PATH"):
        read_runs(tmp_path)
    table = read_runs([tmp_path / "first", f"long={tmp_path / 'second'}"])
    assert table["algorithm"].tolist() == ["eqr_sac", "long"]


def test_run_without_evaluations_yet_is_named(tmp_path):
    write_run(tmp_path / "new", evaluations({}))
    write_run(tmp_path / "old", evaluations({"0": {5: 1.0}}))
    with pytest.warns(UserWarning, match=r"new/evaluations\.csv holds no evaluation yet"):
        assert read_runs(tmp_path)["episode_return"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must start with a line of column names: it is empty"),
        ("env,algorithm,seed,env_steps\nreach,sac,0,1\n", "episode_return not found"),
        (HEADER + "reach,sac,0,1,nan\n", "row 1: .*episode_return finite, got '1' and 'nan'"),
        (HEADER + "reach,sac,0,0.25,2\n", "row 1: env_steps must be a whole number .*, got '0.25' and '2'"),
        (HEADER + "reach,sac,0,1,2\nreach,sac,0,,5\n", "row 2: .*got '' and '5'"),
        (HEADER + "reach,sac,0,1,2\nreach,sac,0,1\n", "row 2: must have 5 cells like the header, got 4"),
        (HEADER + "reach,sac,0,1,5,75\nreach,sac,0,2,6,25\n", "row 1: must have 5 cells like the header, got 6"),
        ((HEADER + "Mühle,sac,0,1,2\n").encode("latin-1"), "must be UTF-8 text, got byte 0xfc"),
        ((HEADER + "reach,sac,0,1,2\n").encode("utf-16"), "must be UTF-8 text, got byte 0xff"),
    ],
)
def test_unreadable_files_are_named(tmp_path, text, message):
    file = tmp_path / "bad.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"bad\.csv.*{message}"):
        read_runs(file)


def test_missing_sources_are_named(tmp_path):
    with pytest.raises(ValueError, match="found no .*nowhere.csv"):
        read_runs(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="found none under"):
        read_runs(tmp_path)
