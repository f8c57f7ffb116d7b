"""The texts of a task with made records of their images."""

from captioned_records import FakeStore, make_record

from roibeam.pipelines.data.captions.captioned_store import UsableCaptions, join_task_texts
from roibeam.pipelines.data.captions.task_texts import TaskCorpus, TaskTable, TaskTexts


def store_of(texts: TaskTexts) -> FakeStore:
    names = dict.fromkeys(name for text in texts.texts() for name in text.names)
    return FakeStore({name: make_record(name, seed) for seed, name in enumerate(names)})


def joined(texts: TaskTexts) -> tuple[FakeStore, TaskTable]:
    store = store_of(texts)
    rows, report = join_task_texts(store, texts, UsableCaptions(128), 1.0)  # type: ignore[arg-type]
    assert report.joined == report.captions == len(rows)
    return store, rows


def corpus_of(texts: TaskTexts) -> TaskCorpus:
    return TaskCorpus(*joined(texts))
