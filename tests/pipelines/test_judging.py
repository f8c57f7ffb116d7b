"""The judges of pictures and pairs: what they look at, how their thresholds are set, and that their files are data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from roibeam.features.record.region_record import RegionRecord
from roibeam.pipelines.collection.judging import boosted_model
from roibeam.pipelines.collection.judging.boosted_model import (
    BoostedModel,
    BoostingSettings,
    LabelledRows,
    Tree,
    best_of_groups,
    is_held_out,
    read_boosted_model,
    threshold_for_precision,
    train_boosted,
)
from roibeam.pipelines.collection.judging.pair_features import NAMES, NameReader, pair_features, words_of
from roibeam.pipelines.collection.judging.pair_judge import TrainedPairJudge
from roibeam.pipelines.collection.judging.picture_judge import NAMES as STATISTICS
from roibeam.pipelines.collection.judging.picture_judge import (
    TrainImagesRequest,
    open_picture_judge,
    picture_statistics,
    train_images,
)
from roibeam.pipelines.collection.judging.training_rows import (
    KINDS,
    SWAPPED,
    TrainedPair,
    negatives,
    read_labelled_images,
    read_labelled_texts,
    swapped_noun,
)
from roibeam.pipelines.collection.pairs import CandidateText, FetchedPicture, Pair, TextSource
from roibeam.pipelines.data.vocabulary import Vocabulary
from roibeam.pipelines.toyworld.randomness import IntegerStream
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.toyworld.web_pages import SORTS, encoded, natural_picture, unnatural_picture

CLASSES, ATTRIBUTES = ("ball", "box", "tree,trees", "tennis racket"), ("red", "blue")
READER = NameReader(CLASSES, ATTRIBUTES)


def record(*seen: tuple[int, float, int]) -> RegionRecord:
    """Regions of (class, score, attribute)."""
    count = len(seen)
    boxes = np.tile(np.array([[10, 10, 50, 50]], np.float32), (count, 1))
    return RegionRecord(
        "x", 100, 100, boxes, np.ones((count, 3), np.float16), np.array([each[0] for each in seen], np.uint16),
        np.array([each[1] for each in seen], np.float32), np.array([each[2] for each in seen], np.uint16),
        np.full(count, 0.9, np.float32),
    )  # fmt: skip


def features(text: str, *others: str, seen: RegionRecord | None = None) -> dict[str, float]:
    seen = record((0, 0.9, 0), (1, 0.4, 1)) if seen is None else seen
    return dict(zip(NAMES, pair_features(text, others, seen, READER, None).tolist(), strict=True))


def test_things_are_read_with_their_attributes_plurals_and_numbers() -> None:
    things = READER.things(words_of("Two red balls, a blue tennis racket and trees near a boxer"))
    found = [(thing.class_id, thing.attribute_ids, thing.count) for thing in things]
    assert found == [(0, (0,), 2), (3, (1,), 1), (2, (), 1)]


def test_pair_features_follow_what_the_detector_saw() -> None:
    true, false = features("a red ball and a box"), features("a blue ball and a tree")
    assert true["found share"] == 1.0 and false["found share"] == 0.5
    assert true["sure share"] == 0.5 and false["things not found"] == 1
    assert true["least attribute match"] == pytest.approx(0.81) and false["least attribute match"] == 0.0
    assert features("no thing at all")["mean class score"] == -1.0
    assert features("two balls")["counts off"] == 1 and features("a ball")["counts off"] == 0


def test_agreement_is_measured_with_the_texts_beside_it() -> None:
    agreeing, other = features("a red ball", "the ball is red"), features("a red ball", "a tree in the rain")
    assert agreeing["agreement"] > other["agreement"] and agreeing["agreement of things"] == 1.0
    assert features("a red ball")["other texts"] == 0 and features("a red ball")["agreement"] == -1.0


def test_features_are_finite_for_any_text_and_without_regions() -> None:
    empty = record()
    for text in ("", "!!!", "\u0000\ud83d\ude00", "a" * 5000, "zwei rote Bälle"):
        for seen in (None, empty):
            assert np.isfinite(pair_features(text, ("", "x"), seen, READER, 1e9)).all()


def test_four_kinds_of_wrong_pairs_are_made_of_right_ones() -> None:
    right = [
        TrainedPair(f"i{number}", f"a red {name} on the grass", (), True, "labelled", f"http://s{number % 2}/{number}")
        for number, name in enumerate(("ball", "ball", "box", "box", "ball", "box"))
    ]
    records = {pair.image: record((0 if "ball" in pair.text else 1, 0.9, 0)) for pair in right}
    top = {name: int(each.class_ids[0]) for name, each in records.items()}
    made = list(negatives(right, top, records, READER, np.random.default_rng(0)))
    assert {pair.kind for pair in made} == set(KINDS) and not any(pair.label for pair in made)
    of_image = {pair.image: pair for pair in right}
    for pair in made:
        own = of_image[pair.image]
        if pair.kind == "same page":
            assert pair.page.rpartition("/")[0] == own.page.rpartition("/")[0]
        if pair.kind == SWAPPED:
            assert pair.text != own.text and pair.text.endswith("on the grass")


def test_a_swapped_noun_leaves_capitals_and_full_stops_where_they_were() -> None:
    seen = record((0, 0.9, 0), (1, 0.9, 0), (3, 0.9, 0))
    assert swapped_noun("A Red BALL, here.", seen, READER, np.random.default_rng(0)) == "A Red tree, here."


@pytest.mark.parametrize("wanted, threshold", [(1.0, 0.85), (0.75, 0.55), (0.6, 0.45)])
def test_the_threshold_is_the_lowest_that_is_precise_enough(wanted: float, threshold: float) -> None:
    """Midway to the next lower score."""
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    labels = np.array([True, False, True, True, False, False])
    assert threshold_for_precision(scores, labels, wanted) == pytest.approx(threshold)
    with pytest.raises(ValueError, match="precision 1 is not reached"):
        threshold_for_precision(scores, ~labels & (scores < 0.9), 1.0)


def test_of_each_image_only_its_best_row_counts_where_a_run_keeps_one() -> None:
    scores, groups = np.array([0.2, 0.9, 0.5, 0.5, 0.99]), ["a", "a", "b", "b", "c"]
    among = np.array([True, True, True, True, False])
    assert best_of_groups(scores, groups, among).tolist() == [False, True, True, False, False]


def trained() -> tuple[BoostedModel, LabelledRows]:
    generator = np.random.default_rng(1)
    values = generator.normal(size=(400, 3))
    labels = values[:, 0] + 0.3 * generator.normal(size=400) > 0
    rows = LabelledRows(values, labels, [f"g{n // 2}" for n in range(400)], ["labelled"] * 400, np.ones(400, bool))
    return train_boosted("pairs", ("a", "b", "c"), rows, precision=0.9, settings=BoostingSettings(trees=20)), rows


def test_a_model_says_the_same_as_scikit_learn_after_it_was_written_and_read(tmp_path: Path) -> None:
    from sklearn.ensemble import GradientBoostingClassifier

    model, rows = trained()
    model.write(tmp_path / "m.json")
    read = read_boosted_model(tmp_path / "m.json", kind="pairs", features=(("a", "b", "c"),))
    assert read.fingerprint == model.fingerprint and read.threshold == model.threshold
    held = np.array([is_held_out(group) for group in rows.groups])
    settings = BoostingSettings(trees=20)
    theirs = GradientBoostingClassifier(
        n_estimators=20, max_depth=settings.depth, learning_rate=0.1, subsample=settings.subsample, random_state=0
    ).fit(rows.features[~held], rows.labels[~held])
    np.testing.assert_allclose(read.score(rows.features), theirs.predict_proba(rows.features)[:, 1], atol=1e-9)
    # One row's score does not hang on the rows beside it.
    assert read.score(rows.features[7:8])[0] == read.score(rows.features)[7]
    facts = model.facts["held_out"]
    assert facts["precision"] >= 0.9 and facts["recall"] > 0.5 and model.facts["rows"]["held_out"] == held.sum()


def test_rows_of_one_image_are_never_on_both_sides() -> None:
    _, rows = trained()
    sides = {group: is_held_out(group) for group in rows.groups}
    assert 0.15 < np.mean(list(sides.values())) < 0.35


LEAF: dict[str, Any] = {"feature": [-1], "at_most": [0.0], "left": [0], "right": [0], "value": [0.5]}
GOOD: dict[str, Any] = {
    "format": "roibeam-judge", "version": 1, "kind": "pairs", "features": ["a"], "start": 0.0, "threshold": 0.5,
    "facts": {}, "needs": {}, "trees": [LEAF],
}  # fmt: skip
NODE = {"feature": [0, -1, -1], "at_most": [0.0, 0.0, 0.0], "left": [1, 0, 0], "right": [2, 0, 0], "value": [0.0] * 3}


@pytest.mark.parametrize(
    "content, says",
    [
        (b"\x80\x04cos\nsystem\n(S'touch x'\ntR.", "no model of `roibeam collect train-pairs`"),
        (b"[" * 100_000, "no model of"),
        (GOOD | {"threshold": float("nan")}, "NaN is no number"),
        (GOOD | {"threshold": 2}, "expected 0 to 1"),
        (GOOD | {"kind": "pictures"}, "it judges 'pictures'"),
        (GOOD | {"features": ["b"]}, "not those of this version"),
        (GOOD | {"trees": []}, "0 trees"),
        (GOOD | {"trees": [NODE | {"left": [0, 0, 0]}]}, "before its parent"),  # would go round for ever
        (GOOD | {"trees": [NODE | {"right": [9, 0, 0]}]}, "before its parent, or nowhere"),
        (GOOD | {"trees": [NODE | {"feature": [5, -1, -1]}]}, "a feature that does not exist"),
        (GOOD | {"trees": [NODE | {"value": [0.0]}]}, "differ in length"),
        (GOOD | {"trees": [NODE | {"left": [1.5, 0, 0]}]}, "no whole numbers"),
        (GOOD | {"trees": [NODE | {"left": [10**400, 0, 0]}]}, "no model of"),
        (GOOD | {"trees": "x"}, "no model of"),
        ([1], "no model of"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line(tmp_path: Path, content: object, says: str) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ValueError, match=r"m\.json") as caught:
        read_boosted_model(path, kind="pairs", features=(("a",),))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    path.write_text(json.dumps(GOOD | {"trees": [NODE, LEAF]}))
    assert len(read_boosted_model(path, kind="pairs", features=(("a",),)).trees) == 2


def write_pictures(folder: Path, each: int) -> Path:
    lines = ["image,label\n"]
    for number in range(each):
        natural = natural_picture(generate(1, number), (160, 200))
        (folder / f"n{number}.jpg").write_bytes(encoded(natural, ".jpg", 85))
        other = unnatural_picture(SORTS[number % len(SORTS)], IntegerStream(1, number), 160, 200)
        (folder / f"u{number}.png").write_bytes(encoded(other, ".png", 0))
        lines += [f"n{number}.jpg,natural\n", f"u{number}.png,not\n"]
    (folder / "labels.csv").write_text("".join(lines))
    return folder / "labels.csv"


def picture(path: Path) -> FetchedPicture:
    return FetchedPicture("http://a/b", str(path), "0" * 64, "0" * 16, 200, 160, 1)


def test_a_judge_of_pictures_learns_from_labels_and_drops_what_it_cannot_decode(tmp_path: Path) -> None:
    labels = write_pictures(tmp_path, 40)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8nothing")
    with open(labels, "a") as file:
        file.write("broken.jpg,not\ngone.jpg,natural\n")
    done = train_images(TrainImagesRequest(labels, tmp_path / "images.json", precision=0.9))
    assert done.left_out == {"no such file": 1, "cannot be decoded": 1, "not in the store": 0}
    assert done.model.facts["held_out"]["precision"] >= 0.9
    judge = open_picture_judge(tmp_path / "images.json")
    pictures = [picture(tmp_path / name) for name in ("n0.jpg", "u1.png", "broken.jpg")]
    scores = judge.score(pictures)
    assert scores[0] >= judge.threshold > scores[1] and scores[2] == 0.0
    assert judge.score(pictures[:1]) == scores[:1]
    with pytest.raises(ValueError, match="nothing is replaced"):
        train_images(TrainImagesRequest(labels, tmp_path / "images.json"))


def test_picture_statistics_tell_flat_drawings_from_photos(tmp_path: Path) -> None:
    flat = cv2.imencode(".png", np.full((400, 500, 3), 255, np.uint8))[1].tobytes()
    photo = encoded(natural_picture(generate(1, 1), (400, 500)), ".jpg", 85)
    first, second = (dict(zip(STATISTICS, picture_statistics(data), strict=True)) for data in (flat, photo))
    assert first["flat area"] == 1.0 and first["entropy"] == 0.0 and first["is png"] == 1 and first["aspect"] == 1.25
    assert second["flat area"] < 0.5 and second["jpeg table"] > 0
    with pytest.raises(ValueError, match="cannot be decoded"):
        picture_statistics(b"GIF89a")


class Given:
    """The regions of pictures, by their path."""

    def __init__(self, records: dict[str, RegionRecord | None]) -> None:
        self.names, self._records = Vocabulary(CLASSES, ATTRIBUTES), records

    def records(self, paths: list[str]) -> list[RegionRecord | None]:
        return [self._records[path] for path in paths]


def pair(path: str, text: str, page: str = "http://a/") -> Pair:
    return Pair("0", CandidateText(TextSource.ALT, text), picture(Path(path)), page, "en", 1.0)


def pair_model(**needs: object) -> BoostedModel:
    """Looks at "found share" and "agreement": so the score shows what the judge handed on."""
    trees = tuple(
        Tree(np.array([NAMES.index(name), -1, -1]), np.array([at, 0, 0]), np.array([1, 0, 0]), np.array([2, 0, 0]),
             np.array([0.0, -step, step]))
        for name, at, step in (("found share", 0.5, 2.0), ("agreement", 0.0, 0.5))
    )  # fmt: skip
    known = {"names": Vocabulary(CLASSES, ATTRIBUTES).digest, "match": None}
    return BoostedModel("pairs", NAMES, 0.0, trees, 0.5, {}, known | needs)


def test_a_judge_of_pairs_gives_each_text_those_of_its_own_page_and_picture_as_context() -> None:
    judge = TrainedPairJudge(pair_model(), Given({"a": record((0, 0.9, 0)), "b": None}))
    pairs = [pair("a", "a red ball"), pair("a", "a ball there"), pair("a", "a ball", "http://b/"), pair("b", "a ball")]
    scores = judge.score(pairs)
    assert [score >= judge.threshold for score in scores] == [True, True, True, False]
    assert scores[0] > scores[2]  # the third stands alone on its page
    assert judge.score(pairs[2:3]) == scores[2:3] and judge.score([]) == []


def test_a_judge_of_pairs_refuses_another_detector_and_another_match_model() -> None:
    given = Given({})
    with pytest.raises(ValueError, match="regions of another detector"):
        TrainedPairJudge(replace(pair_model(), needs={"names": "other"}), given)
    with pytest.raises(ValueError, match="with another match model than here"):
        TrainedPairJudge(pair_model(match="f" * 64), given)


@pytest.mark.parametrize(
    "text, says",
    [
        ("image,text\n", "no column 'label'"),
        ("image,text,label\n", "no rows in it"),
        ("image,text,label\na.jpg,x,2\n", "line 2: label '2', expected 1 or 0"),
        ("image,text,label\na.jpg,x\n", "line 2: expected 3 fields"),
        ('image,text,label\na.jpg,"x,1\n', "line 2: quote that is opened there and not closed"),
        ("image,text,label\n,x,1\n", "line 2: no image"),
    ],
)
def test_labelled_texts_are_read_strictly(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(ValueError, match=r"rows\.csv") as caught:
        read_labelled_texts(tmp_path / "rows.csv")
    assert says in str(caught.value)


def test_labelled_images_stand_beside_their_list(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("\ufefflabel,image\nnot,b/a.png\n", encoding="utf-8")
    rows = read_labelled_images(tmp_path / "rows.csv")
    assert rows == [(tmp_path / "b" / "a.png", False)]


def test_without_scikit_learn_training_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.ensemble", None)
    with pytest.raises(ValueError, match=r"pip install 'roibeam\[collect\]'"):
        boosted_model.check_extra()


def test_match_scores_are_the_model_s_log_odds_and_a_long_text_is_cut_not_refused(tmp_path: Path) -> None:
    import torch
    from evaluated_models import WIDTH, build

    from roibeam.pipelines.analysis.probe import pair_batch
    from roibeam.pipelines.collection.judging.match_scores import MatchScores
    from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "ball"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    model = build("ImageBERT")
    model.save_pretrained(tmp_path / "model")
    seen = replace(record((0, 0.9, 0)), features=np.ones((1, WIDTH), np.float32))
    scores = MatchScores(str(tmp_path / "model"), tokenizer=str(tmp_path / "vocab.txt"))
    ids = torch.from_numpy(load_tokenizer(str(tmp_path / "vocab.txt")).encode("a red ball").ids)
    with torch.no_grad():
        expected = float(model.match_log_odds(model.encode(pair_batch(seen, ids)))[0])
    assert scores.log_odds(seen, "a red ball") == pytest.approx(expected, abs=1e-5)
    assert scores.log_odds(seen, "a blue ball") != scores.log_odds(seen, "a red ball")
    cut = scores.log_odds(seen, "red " * 200)
    assert cut == scores.log_odds(seen, "red " * 200 + "ball") and np.isfinite(cut)
    assert len(scores.fingerprint()) == 64
    build("VL-BERT").save_pretrained(tmp_path / "other")
    without = MatchScores(str(tmp_path / "other"), tokenizer=str(tmp_path / "vocab.txt"))
    with pytest.raises(ValueError, match="has no match head"):
        without.log_odds(seen, "a red ball")
