"""`roibeam data check`: what a data set lacks is named, with the published counts."""

from pathlib import Path

from glue_files import write_task
from tiny_commands import Cli, ok


def test_a_cut_split_and_a_missing_one_are_named(roibeam: Cli, tmp_path: Path) -> None:
    write_task(tmp_path, "wnli", rows=71, test_rows=146)
    (tmp_path / "WNLI" / "train.tsv").rename(tmp_path / "kept")
    lines = ok(roibeam("data", "check", "wnli", tmp_path)).out.splitlines()
    found = {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines[1:]}
    assert found["dev"] == ["71", "71", "0 .. 70"] and found["test"] == ["146", "146", "0 .. 145"]
    assert found["train"][:2] == ["-", "635"] and "has no train.tsv" in found["train"][2]
    (tmp_path / "WNLI" / "train.tsv").write_bytes(b"\xff\xfe")
    assert roibeam("data", "check", "wnli", tmp_path).code == 1  # there, and cannot be read
    (tmp_path / "kept").rename(tmp_path / "WNLI" / "train.tsv")
    result = roibeam("data", "check", "wnli", tmp_path)
    assert result.code == 1 and "564 rows fewer: cut, or another version" in result.out


def test_tables_of_one_s_own_have_no_published_count(roibeam: Cli, tmp_path: Path) -> None:
    (tmp_path / "val.csv").write_text("id,image,question,answer\n7,a,what?,cat\n9,b,who?,dog\n")
    lines = ok(roibeam("data", "check", "vqa", tmp_path)).out.splitlines()
    assert [line.split(maxsplit=3)[1:] for line in lines if line.startswith("val ")] == [["2", "not", "known  7 .. 9"]]
    assert [line.split()[0] for line in lines[1:]] == ["val", "train", "test"]


def test_nothing_there_is_a_failure(roibeam: Cli, tmp_path: Path) -> None:
    result = roibeam("data", "check", "vcr", tmp_path)
    assert result.code == 1 and result.out.count("no ") >= 3
    unknown = roibeam("data", "check", "vqq", tmp_path)
    assert unknown.code and "no task 'vqq': did you mean vqa" in unknown.err
