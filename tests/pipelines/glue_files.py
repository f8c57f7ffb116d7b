"""GLUE's files, small and made, with quotes that do not close."""

from pathlib import Path

from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS

SENTENCES = ("a red ball is left of a box", 'a "blue cat sits', "two dogs", "one green box")
COLUMNS = {
    "cola": "", "sst-2": "sentence\tlabel", "mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "sts-b": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label", "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel", "wnli": "index\tsentence1\tsentence2\tlabel",
}  # fmt: skip


def label_of(name: str, row: int) -> str:
    labels = GLUE_TASKS[name].labels
    return labels[row % len(labels)] if labels else f"{row % 5}.500"


def write_task(root: Path, name: str, rows: int = 8, *, test_rows: int = 5) -> Path:
    """All splits of a task in the official form, with quotes that do not close."""
    task = GLUE_TASKS[name]
    folder = root / task.name
    folder.mkdir(parents=True)
    for split in task.rows:
        is_test, columns = split.startswith("test"), COLUMNS[name].split("\t") if COLUMNS[name] else []
        if name == "cola":
            columns = ["index", "sentence"] if is_test else list(task.header)
        elif is_test:
            columns = ["index", *(each for each in columns if each not in (task.label, "index", "id"))]
        lines = ["\t".join(columns)] if name != "cola" or is_test else []
        for row in range(test_rows if is_test else rows):
            told = {text: SENTENCES[(row + place) % 4] for place, text in enumerate(task.texts)}
            told |= {task.label: label_of(name, row), "index": str(row)}
            lines.append("\t".join(told.get(each, "x") for each in columns))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return root
