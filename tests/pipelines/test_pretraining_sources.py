"""Several stores with their captions in one run: what is mixed, what must fit, what the run folder says."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captioned_records import CAPTIONS, TINY, WIDTH, FakeStore, captioned, make_record, pretrain_with
from torch import nn
from toy_training import assert_equal_checkpoints

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.model.inputs import VLBatch
from roibeam.pipelines.data.captions.captioned_store import CaptionedStore, LeakGuard
from roibeam.pipelines.data.captions.corpus import CaptionTable, Corpus
from roibeam.pipelines.data.held_out import HeldOut
from roibeam.pipelines.pretraining.run_setup import PretrainResult
from roibeam.pipelines.pretraining.samples.sampling import DataConfig, draw_pair, draw_second_caption
from roibeam.pipelines.pretraining.systems import SYSTEMS
from roibeam.pipelines.pretraining.task import PretrainTask
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer
from roibeam.pipelines.training.run_folder.training_data import trained_among
from roibeam.pipelines.training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("one_thread")

MATCHED = {"with_relationship_head": True, "with_pooler": True}


def store_of(name: str, count: int, **options: Any) -> FakeStore:
    """With ids of its own, but `image-0`, which every one has and which is another image in each."""
    ids, seed = ["image-0", *(f"{name}-{number}" for number in range(1, count))], 1000 * sum(map(ord, name))
    store = FakeStore({each: make_record(each, seed + place, **options) for place, each in enumerate(ids)})
    store.path = Path(name)
    return store


def two_stores() -> tuple[FakeStore, FakeStore]:
    return store_of("coco", 3), store_of("sbu", 5)


def rows_of(store: FakeStore, words: str, each: int = 2) -> list[tuple[str, str]]:
    return [(image_id, f"{words} {CAPTIONS[number]}") for image_id in store for number in range(each)]


def sources(weights: tuple[float | None, float | None] = (None, None), **changes: Any) -> list[CaptionedStore]:
    pairs = zip(two_stores(), ("beach", "tree"), weights, strict=True)
    return [captioned(store, rows_of(store, word), weight=weight, **changes) for store, word, weight in pairs]


def run(folder: Path, given: list[CaptionedStore] | None = None, **changes: Any) -> PretrainResult:
    settings: dict[str, Any] = {
        "train_config": TrainConfig(steps=6, learning_rate=1e-3, device="cpu", checkpoint_every=2),
        "data": DataConfig(batch_size=4),
    }
    settings |= changes
    settings["model_overrides"] = TINY | settings.get("model_overrides", {})
    return pretrain_with(sources() if given is None else given, folder, **settings)


def corpus_of(*stores: FakeStore) -> Corpus:
    pairs = [
        (store, CaptionTable(list(store), [(n // 2, f"{store.path} {n}") for n in range(2 * len(store))]))
        for store in stores
    ]
    return Corpus(*pairs[0], *pairs[1:])


# --- the corpus ---


def test_rows_of_several_sources_stand_one_behind_the_other() -> None:
    stores = two_stores()
    both, alone = corpus_of(*stores), [corpus_of(store) for store in stores]
    assert (len(both), both.sizes) == (16, (6, 10))
    for row in range(16):
        source, own = (0, row) if row < 6 else (1, row - 6)
        assert both.caption(row) == alone[source].caption(own) and both.record(row) is alone[source].record(own)
        assert (both.rows_of_image(row) - 6 * source).tolist() == alone[source].rows_of_image(own).tolist()
    # The same id in two stores is two images.
    assert both.record_id(0) == both.record_id(6) and both.record(0) is not both.record(6)
    assert both.first_rows(5) == [0, 6, 1, 7, 2] and both.first_rows(99)[-6:] == [5, 11, 12, 13, 14, 15]
    assert alone[0].first_rows(4) == [0, 1, 2, 3] and sorted(both.first_rows(99)) == list(range(16))


def test_partners_are_drawn_inside_a_source_as_if_there_were_no_other() -> None:
    stores = two_stores()
    both, second = corpus_of(*stores), corpus_of(stores[1])
    draws: dict[str, Any] = {"mismatched_probability": 1.0, "negatives": "caption_or_image"}
    for seed in range(200):
        for draw, options in ((draw_pair, draws), (draw_second_caption, {"mismatched_probability": 0.5})):
            row = seed % 10
            pair = draw(both, row + 6, np.random.default_rng(seed), **options)
            own = draw(second, row, np.random.default_rng(seed), **options)
            assert (pair.caption_row - 6, pair.image_row - 6, pair.matched) == tuple(own)
        assert both.draw_row_of_another_image(seed % 6, np.random.default_rng(seed)) < 6


def test_a_source_of_one_image_has_no_mismatched_pair() -> None:
    both = corpus_of(store_of("a", 4), store_of("b", 1))
    with pytest.raises(ValueError, match="'image-0'; mismatched pairs need a second image"):
        both.draw_row_of_another_image(8, np.random.default_rng(0))


# --- the stream of samples ---


def task_of(*, batch_size: int = 4, workers: int = 0, weights: tuple[float, ...] | None = (2, 1)) -> PretrainTask:
    system, tokenizer = SYSTEMS["vlbert"], load_tokenizer("captions", CAPTIONS * 2)
    sizes = {"vocab_size": tokenizer.vocab_size, "region_feature_size": WIDTH, "num_region_labels": 21}
    config = system.sizes["small"](**sizes, **MATCHED)
    rules = system.sampler(system.sampling(), tokenizer, config, num_classes=20)
    data = DataConfig(batch_size, workers)
    pairs = [(each.store, table(each)) for each in sources()]
    corpus = Corpus(*pairs[0], *pairs[1:])
    model: Any = nn.Identity()  # nothing is trained
    model.config = config
    return PretrainTask(model, corpus, rules, data, pad_id=tokenizer.pad_id, seed=3, weights=weights)


def table(source: CaptionedStore) -> CaptionTable:
    ids: list[str] = list(source.store)  # type: ignore[arg-type]
    return CaptionTable(ids, [(ids.index(str(each.name)), each.text) for each in source.captions])


def told(batches: list[VLBatch]) -> list[Any]:
    """Each row without its padding."""
    return [
        (
            batch.sample_ids[row],
            batch.text_ids[row, batch.text_mask[row]].tolist(),
            batch.text_labels[row, batch.text_mask[row]].tolist() if batch.text_labels is not None else None,
            batch.masked_regions[row, batch.region_mask[row]].tolist(),
            int(batch.match_labels[row]) if batch.match_labels is not None else None,
        )
        for batch in batches
        for row in range(batch.batch_size)
    ]


def read(task: PretrainTask, count: int, *, start: int = 0, ranks: int = 1) -> list[Any]:
    streams = [task.batches(start, rank=rank, num_ranks=ranks) for rank in range(ranks)]
    return list(islice((row for _ in range(count) for stream in streams for row in told([next(stream)])), count))


def test_samples_are_the_same_for_any_batches_processes_workers_and_start() -> None:
    alone = read(task_of(batch_size=1), 80)
    assert read(task_of(batch_size=5), 80) == alone
    assert read(task_of(batch_size=3), 80, ranks=2) == read(task_of(batch_size=2), 80, ranks=4) == alone
    assert read(task_of(batch_size=4, workers=2), 80) == alone
    assert read(task_of(), 40, start=29) == alone[29:69]
    assert len({str(row) for row in alone}) > 75  # three images of the first are read ten times, with other masks
    assert read(task_of(batch_size=1, weights=None), 80) != alone


def test_both_sources_are_looked_at_in_an_evaluation() -> None:
    names = [name for batch in task_of().evaluation_batches(6) for name in batch.sample_ids]
    assert names == ["image-0", "image-0", "image-0", "image-0", "coco-1", "sbu-1"]


# --- a run ---


def test_a_run_on_two_stores_says_so_and_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", sources((1, 3)), inspect_rows=3)
    assert (tmp_path / "whole" / "batch.html").read_text().count("sequence: text") == 3
    assert [(each.join.joined, len(each.rows)) for each in whole.sources] == [(6, 6), (10, 10)]
    config = json.loads((whole.run_dir / "config.json").read_text())
    assert config["task"]["sources"] == [{"captions": 6, "weight": 1}, {"captions": 10, "weight": 3}]
    recorded = config["recorded"]["sources"]
    assert [each["store"] for each in recorded] == ["coco", "sbu"] and recorded[1]["join"]["joined"] == 10
    assert [each["feature_space"] for each in recorded] == ["imported:fake"] * 2
    assert recorded[0]["numerics"] == {"torch": "any"}
    known = ["image-0", "coco-1", "coco-2", "sbu-1", "sbu-4", "sbu-5"]
    assert trained_among(whole.run_dir, known) == known[:-1]

    run(tmp_path / "parts", sources((1, 3)), stop_at_step=3)
    parts = run(tmp_path / "parts", sources((1, 3)), resume=True)
    assert_equal_checkpoints(whole.training.checkpoint, parts.training.checkpoint)
    assert parts.evaluation == whole.evaluation

    with pytest.raises(ValueError, match=r"task\.sources: .*'weight': 3.* -> .*'weight': 4"):
        run(tmp_path / "parts", sources((1, 4)), resume=True)
    with pytest.raises(ValueError, match=r"task\.captions: "):
        run(tmp_path / "parts", sources((3, 1))[::-1], resume=True)


def test_without_weights_every_caption_comes_once_an_epoch(tmp_path: Path) -> None:
    done = run(tmp_path / "run", train_config=TrainConfig(steps=4, learning_rate=1e-3, device="cpu"))
    assert done.training.last["epoch"] == 1.0
    samples = read(task_of(batch_size=1, weights=None), 16)
    assert sorted(row[0] for row in samples) == sorted(["image-0"] * 4 + [
        f"{name}-{number}" for name, count in (("coco", 3), ("sbu", 5)) for number in range(1, count) for _ in range(2)
    ])  # fmt: skip


def test_held_out_images_are_found_in_each_store(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("sbu-1\nsbu-2\ncoco-9\n")
    rules = HeldOut([f"list={tmp_path}/ids.txt"])
    with pytest.raises(ValueError, match=r"2 images of 5 must not be trained on.*sbu"):
        run(tmp_path / "run", guard=LeakGuard(rules))
    done = run(tmp_path / "run", guard=LeakGuard(rules, leave_out=True))
    assert [each.leaks.leaked for each in done.sources if each.leaks] == [(), ("sbu-1", "sbu-2")]
    assert [len(each.rows) for each in done.sources] == [6, 6]
    assert trained_among(done.run_dir, ["sbu-1", "sbu-3"]) == ["sbu-3"]


def test_notes_name_the_store(tmp_path: Path) -> None:
    stores = two_stores()
    given = [captioned(stores[0], rows_of(stores[0], "a"))]
    given.append(captioned(stores[1], [*rows_of(stores[1], "b"), ("x", " ")]))
    notes = run(tmp_path / "run", given).notes
    assert notes[0] == "sbu: 1 empty caption left out (the first is of x)"
    assert notes[1].startswith("in more than one store: 1 image id, such as image-0;") and len(notes) == 2


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"fingerprint": Fingerprint("imported:other")}, "spaces: imported:fake / imported:other; extract both "),
        ({"feature_dim": 40}, "features have width 48 / 40; extract both"),
        ({"vocabulary": {"classes": ["cat"]}}, "class names .20, first 'class 0' / 1, first 'cat'., so class 7"),
        ({"vocabulary": {"classes": None}}, "have different class names .20, first 'class 0' / none"),
    ],
)
def test_stores_that_do_not_fit_each_other(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    first, second = store_of("coco", 3), store_of("sbu", 5, width=other.get("feature_dim", WIDTH))
    for name, value in other.items():
        setattr(second, name, value if name != "vocabulary" else {"attributes": None, **value})
    with pytest.raises(ValueError, match=f"coco and sbu.*{words}"):
        run(tmp_path / "run", [captioned(first, rows_of(first, "a")), captioned(second, rows_of(second, "b"))])


def test_spaces_are_told_apart_by_what_they_are_made_of(tmp_path: Path) -> None:
    from roibeam.features.record.fingerprint import feature_space_of

    details = [{"selection": {"max_regions": count}, "dtype": "float16"} for count in (36, 100)]
    prints = [Fingerprint(feature_space_of(each), details=each) for each in details]
    first, second = store_of("coco", 3), store_of("sbu", 5)
    first.fingerprint, second.fingerprint = prints
    with pytest.raises(ValueError, match=r"feature spaces: selection \(max_regions 36 / 100\)"):
        run(tmp_path / "run", [captioned(first, rows_of(first, "a")), captioned(second, rows_of(second, "b"))])


def test_weights_and_sources_that_do_not_fit(tmp_path: Path) -> None:
    for given, words in (
        (sources((1, None)), "some stores have a weight and some have none"),
        (sources((1, 1))[:1], "one store needs none"),
        ([], "needs a store with captions"),
    ):
        with pytest.raises(ValueError, match=words):
            run(tmp_path / "run", given)
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_store_that_a_systems_rules_cannot_use_is_named(tmp_path: Path) -> None:
    stores = two_stores()
    given = [captioned(stores[0], rows_of(stores[0], "a")), captioned(stores[1], rows_of(stores[1], "b", each=1))]
    with pytest.raises(ValueError, match=r"^sbu: VisualBERT: no image has two captions"):
        run(tmp_path / "run", given, system=SYSTEMS["visualbert"])
