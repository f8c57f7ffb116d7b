"""GLUE: readers of both forms of its files, rows without an image on every system, submissions and their averages."""

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from glue_files import COLUMNS, write_task
from pyarrow import parquet
from task_groups import small_network, tokenizer
from tiny_commands import Cli, ok

from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS, GlueCounts, GlueRow, glue_files, read_glue
from roibeam.pipelines.finetuning.metrics.glue import averages, number_measures, open_submission, write_glue_results
from roibeam.pipelines.finetuning.rows import LABEL
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.losses import loss_named
from roibeam.pipelines.finetuning.run.network import read_network
from roibeam.pipelines.finetuning.scored_tasks import SCORED_TASKS
from roibeam.pipelines.finetuning.systems.named_systems import SYSTEMS
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.finetuning.task import NUMBER_LOSS
from roibeam.pipelines.finetuning.tasks.named_tasks import TASKS


def rows_of(folder: Path, name: str, split: str, counts: GlueCounts | None = None) -> list[GlueRow]:
    task = GLUE_TASKS[name]
    return list(read_glue(glue_files(folder, task, split), task, split, counts or GlueCounts()))


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_every_task_reads_its_files_and_its_parquet_alike(name: str, tmp_path: Path) -> None:
    """Numbers of parquet go through the words that the file, or the published table, has for them."""
    task = GLUE_TASKS[name]
    write_task(tmp_path / "tsv", name)
    for split in task.rows:
        rows = rows_of(tmp_path / "tsv", name, split)
        assert [row.id for row in rows] == [str(place) for place in range(len(rows))]
        assert [row.label is None for row in rows] == [split.startswith("test")] * len(rows)
        words = task.numbers[::-1]  # another order than the published one: the file tells it
        numbers = {word: place for place, word in enumerate(words or task.labels)}
        labels = [-1 if row.label is None else numbers.get(row.label, row.label) for row in rows]
        columns = {each: [row.texts[place] for row in rows] for place, each in enumerate(task.parquet_texts)}
        known = pa.array([float(each) for each in labels]) if not task.labels else pa.array(labels)
        table = pa.table({**columns, "label": known})
        told = {"info": {"features": {"label": {"names": words}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(told)}) if words else table
        folder = tmp_path / "parquet" / task.other_folder
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, folder / f"{split.replace('dev', 'validation')}-00000-of-00001.parquet")
        again = rows_of(tmp_path / "parquet", name, split)
        assert [row.texts for row in again] == [row.texts for row in rows]
        same = [row.label if task.labels or row.label is None else float(row.label) for row in again]
        assert same == [row.label if task.labels or row.label is None else float(row.label) for row in rows]


def test_broken_rows_are_left_out_of_training_and_refused_in_a_test_file(tmp_path: Path) -> None:
    write_task(tmp_path, "qqp")
    for split in ("train", "test"):
        path = tmp_path / "QQP" / f"{split}.tsv"
        path.write_text(path.read_text("utf-8").replace("\n", "\ntorn row\n", 1), "utf-8")
    counts = GlueCounts()
    assert [row.id for row in rows_of(tmp_path, "qqp", "train", counts)] == [str(each) for each in range(1, 9)]
    assert counts.notes("train") == ["train: 1 row left out: 1 with 1 field of 6"]
    with pytest.raises(ValueError, match=r"test.tsv', line 2: with 1 field of 5; a submission needs every row"):
        rows_of(tmp_path, "qqp", "test")


def test_microsofts_own_files_are_parted_by_their_list(tmp_path: Path) -> None:
    lines = [COLUMNS["mrpc"], *(f"{row % 2}\t{row}\t{row + 10}\tone {row}\ttwo {row}" for row in range(6))]
    (tmp_path / "msr_paraphrase_train.txt").write_text("\n".join(lines), "utf-8-sig")
    with pytest.raises(ValueError, match=r"dev_ids.tsv is missing beside it"):
        rows_of(tmp_path, "mrpc", "dev")
    (tmp_path / "dev_ids.tsv").write_text("1\t11\n4\t14\n", "utf-8")
    assert [row.texts[0] for row in rows_of(tmp_path, "mrpc", "dev")] == ["one 1", "one 4"]
    assert len(rows_of(tmp_path, "mrpc", "train")) == 4


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("sentence2", "sentence3", "no column 'sentence2'; RTE has sentence1, sentence2, label"),
        ("\tentailment", "\tmaybe", "line 2: label must be one of entailment, not_entailment, got 'maybe'"),
    ],
)
def test_files_that_are_none_of_the_task_say_so(old: str, new: str, says: str, tmp_path: Path) -> None:
    write_task(tmp_path, "rte")
    path = tmp_path / "RTE" / "dev.tsv"
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    with pytest.raises(ValueError, match=says):
        rows_of(tmp_path, "rte", "dev")
    with pytest.raises(ValueError, match=r"no train.tsv and no train-\*.parquet of CoLA"):
        glue_files(tmp_path, GLUE_TASKS["cola"], "train")


def glue_batches(system: str, folder: Path, name: str) -> tuple[Any, GroupBatches, list[Any]]:
    task = TASKS[name].open(folder, TASKS[name].options(), None)
    asked = OutputSpec(LABEL, len(task.labels) or 1, 0)
    network = small_network(system, LABEL, asked=asked)
    for parameter in network.module.parameters():  # some start at 0, and hide what they multiply
        torch.nn.init.normal_(parameter, std=0.1)
    options = {"loss": loss_named(LABEL, task.loss), "task": task}
    made = GroupBatches(SYSTEMS[system], network.encoder_config, tokenizer(), LayoutOptions(), asked, None, **options)
    return network, made, list(task.read("train").groups)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_reads_texts_alone_and_trains_exactly_what_it_reads(system: str, tmp_path: Path) -> None:
    """Padding and neighbours change nothing, what is trained gets a gradient, and a checkpoint comes back."""
    write_task(tmp_path, "sts-b")
    network, batches, groups = glue_batches(system, tmp_path, "sts-b")
    batch = batches.batch(groups)
    assert batch.inputs.region_mask.shape[1] == 0 and batch.targets is not None and batch.targets.shape == (8, 1)
    ids = batch.inputs.text_ids[0].tolist()
    assert ids.count(tokenizer().sep_id) == 2 and ids[0] == tokenizer().cls_id
    second = 0 if system == "imagebert" else 1  # whose segments tell text from image
    assert batch.inputs.text_segments[0][batch.inputs.text_mask[0]].max() == second
    scores = network.module(batch.inputs)
    alone = torch.cat([network.module(batches.batch([group]).inputs) for group in groups])
    torch.testing.assert_close(scores, alone, rtol=1e-4, atol=1e-6)
    loss = loss_named(LABEL, NUMBER_LOSS)
    term = loss.term(scores, batch.targets, torch.ones(8, 1, dtype=torch.bool))
    torch.testing.assert_close(term.total / term.count, (scores - batch.targets).square().mean())
    term.total.backward()
    got = {name for name, each in network.module.named_parameters() if each.grad is not None and each.grad.any()}
    trained = {name for name, each in network.module.named_parameters() if each.requires_grad}
    still = {name for name in trained - got if name.endswith("key.bias")}  # of no effect behind a softmax
    assert trained - got == still and got <= trained
    folder = tmp_path / "model"
    folder.mkdir()
    from safetensors.torch import save_file

    save_file({n: t.contiguous().clone() for n, t in network.module.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(network.described))
    again = read_network(folder, SYSTEMS[system], OutputSpec(LABEL, 1, 0)).module
    torch.testing.assert_close(again(batch.inputs), scores)


def test_averages_count_mnli_once_and_are_those_of_the_table() -> None:
    """InterBERT's Table 3: 82.0, 80.0 and 81.8 follow from the eight tasks, and not from nine columns."""
    table = {
        "BERT": (91.5, 56.7, 93.2, 88.2, 65.0, 83.7, 84.1, 87.9, 89.6, 82.0),
        "single stream": (90.8, 52.3, 91.6, 88.6, 59.2, 82.6, 84.1, 87.8, 86.4, 80.0),
        "InterBERT": (91.1, 57.3, 92.3, 88.9, 64.3, 84.1, 83.7, 88.1, 88.6, 81.8),
    }
    for qnli, cola, sst, sts, rte, matched, mismatched, qqp, mrpc, mean in table.values():
        values = {
            "QNLI": {"accuracy": qnli}, "CoLA": {"Matthews": cola}, "SST-2": {"accuracy": sst}, "QQP": {"F1": qqp},
            "STS-B": {"Spearman": sts}, "RTE": {"accuracy": rte}, "MNLI": {"accuracy": matched}, "MRPC": {"F1": mrpc},
        }  # fmt: skip
        values |= {name: {**own, "Pearson and Spearman": 0.0, "accuracy and F1": 0.0} for name, own in values.items()}
        found = averages({name: {**own, "Matthews": own.get("Matthews", 0.0), "accuracy": own.get("accuracy", 0.0)}
                          for name, own in values.items()}, {"accuracy": mismatched})  # fmt: skip
        assert round(found["average, InterBERT's Table 3"], 1) == mean
        assert "average, nine tasks" not in found


def test_a_correlation_with_what_is_always_alike_is_undefined() -> None:
    measures = number_measures([2.0] * 4, [1.0, 2.0, 3.0, 4.0])
    assert all(math.isnan(measures[name].mean) for name in ("Pearson", "Spearman", "Pearson and Spearman"))
    assert measures["within 0.5"].mean == 0.25


def test_a_zip_of_all_tasks_has_its_averages(tmp_path: Path) -> None:
    data, tables = tmp_path / "glue", tmp_path / "tables"
    tables.mkdir()
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name, task in GLUE_TASKS.items():
            write_task(data, name)
            for split in [each for each in task.rows if each.startswith("dev")]:
                end = {"dev_matched": "-m", "dev_mismatched": "-mm"}.get(split, "")
                path = tables / f"{task.name}{end}.tsv"
                write_glue_results(path, ((row.id, str(row.label)) for row in rows_of(data, name, split)))
                archive.write(path, path.name)
    opened = open_submission(data, "dev", "strict")
    found = {name: each.mean for name, each in opened.measures(str(tmp_path / "all.zip")).items()}
    assert found["average, nine tasks"] == found["average, InterBERT's Table 3"] == pytest.approx(1.0)
    assert "Table 3 prints BERT-base 82.0, Single Stream 80.0, InterBERT 81.8 (dev)" in opened.metric
    for name, split, rows in (
        ("mnli", "dev_matched", "BERT-base 83.7 / 84.1, Single"),
        ("mrpc", "dev", "prints F1: BERT-base 89.6, Single Stream 86.4, InterBERT 88.6 (dev)"),
    ):
        assert rows in SCORED_TASKS[name].open(data, split, "strict").metric
    assert found["MNLI-mm accuracy"] == 1.0 and found["STS-B Spearman"] == pytest.approx(1.0)
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.write(tables / "RTE.tsv", "mine/RTE.tsv")
    some = opened.measures(str(tmp_path / "one.zip"))
    assert set(some) == {"RTE accuracy"}
    with pytest.raises(ValueError, match=r"holds no CoLA.tsv; a submission has CoLA.tsv, SST-2.tsv"):
        opened.check(str(tmp_path / "one.zip"))
    (tmp_path / "none.zip").write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(ValueError, match="no zip of GLUE's tables"):
        opened.check(str(tmp_path / "none.zip"))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("0\tentailment\n", "expected a first line index<TAB>prediction, got 0"),
        ("index\tprediction\n0\tmaybe\n", "line 2: expected an index, a tab and entailment or not_entailment"),
        ("index\tprediction\n0\tentailment\n", "7 rows without a row"),
    ],
)
def test_tables_that_are_no_submission_say_so(table: str, says: str, tmp_path: Path) -> None:
    write_task(tmp_path, "rte")
    (tmp_path / "rte.tsv").write_text(table)
    with pytest.raises(ValueError, match=says):
        SCORED_TASKS["rte"].open(tmp_path, "dev", "strict").check(str(tmp_path / "rte.tsv"))


def test_a_run_on_texts_alone_trains_predicts_and_is_scored(roibeam: Cli, tmp_path: Path) -> None:
    """No store anywhere; what predict writes is scored as training judged it, and a store is refused."""
    data = write_task(tmp_path / "glue", "mrpc")
    words = ("--task", "mrpc", "--from", "none", "--system", "interbert", "--data", str(data), "--steps", "2")
    small = ("--batch-size", "4", "--set", "layout.max_pieces=24", "--device", "cpu")
    out = str(tmp_path / "run")
    told = roibeam("finetune", out, *words, *small, "--json")
    evaluation = json.loads(told.out)["evaluation"]
    predict = ("predict", out, "--data", data, "--device", "cpu")
    ok(roibeam(*predict, "--out", tmp_path / "MRPC.tsv", "--page", tmp_path / "page.html"))
    scored = json.loads(roibeam("score", "mrpc", tmp_path / "MRPC.tsv", "--data", data, "--json").out)
    assert {each["name"].replace(" ", "_"): each["value"] for each in scored["figures"]} == pytest.approx(evaluation)
    assert "texts alone" in roibeam("score", "mrpc", tmp_path / "MRPC.tsv", "--data", data).out
    unknown = ("--split", "test", "--out", tmp_path / "test.tsv", "--page", tmp_path / "test.html")
    assert "the right ones are not known" in ok(roibeam(*predict, *unknown)).out
    assert "nothing is evaluated" in (tmp_path / "test.html").read_text("utf-8")
    lines = (tmp_path / "test.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction" and [line.split("\t")[0] for line in lines[1:]] == list("01234")
