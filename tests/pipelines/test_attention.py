"""What heads look at: questions by hand, heads that are planted, every system, what sure means, and the command."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from captioned_records import make_record
from evaluated_models import MODELS, SIZES
from matplotlib.text import Text
from tiny_commands import Cli, ok, one_line

from roibeam.features.store import FeatureStore
from roibeam.model.inputs import VLBatch, VLOutput
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.pipelines.analysis.attention_figures import Group, draw_looks, grouped_looks
from roibeam.pipelines.analysis.attention_questions import (
    ENTITY,
    CaptionQuestions,
    LeftOut,
    Questioner,
    parses_by_caption,
)
from roibeam.pipelines.analysis.attention_run import QuestionData, read_questions
from roibeam.pipelines.analysis.evaluation.evaluation_samples import EvaluationSamples
from roibeam.pipelines.analysis.head_accuracy import (
    ABOVE,
    BELOW,
    TOO_FEW,
    UNDECIDED,
    Looks,
    beside_paper,
    head_figures,
    head_looks,
    relations_of,
)
from roibeam.pipelines.analysis.probe import pair_batch, words_to_regions
from roibeam.pipelines.analysis.requests import AttentionRequest
from roibeam.pipelines.data.datasets.entities import EntityBoxes, EntityImage, parse_marked_sentence, read_conll
from roibeam.pipelines.finetuning.metrics.grounding import GROUNDING_RULES, covering
from roibeam.pipelines.toyworld.entities import PARSES_NAME, ToyEntities
from roibeam.pipelines.toyworld.perfect_store import FEATURE_DIM, Perception, image_id, write_perfect_store
from roibeam.pipelines.toyworld.picture import SCENES_NAME, describe
from roibeam.pipelines.toyworld.scene import generate
from roibeam.pipelines.training.model_files.tokenizer import CaptionTokenizer, load_tokenizer

IMAGES, SEED = 40, 5
ANY = GROUNDING_RULES["any"]
WIDER = {"region_feature_size": FEATURE_DIM, "vocab_size": 300, "max_position_embeddings": 40}
SYSTEMS = ("VL-BERT", "ViLBERT", "single stream", "VisualBERT", "ImageBERT", "InterBERT")


class World(NamedTuple):
    """Nothing may be changed there."""

    entities: Path
    store: Path
    tokenizer: CaptionTokenizer

    def request(self, **changes: Any) -> AttentionRequest:
        own = {"store": str(self.store), "entities": str(self.entities), "parses": self.entities / PARSES_NAME}
        return AttentionRequest(checkpoint="run", **own | changes)

    def samples(self, model: Any) -> EvaluationSamples:
        return EvaluationSamples(model.config, self.tokenizer, num_classes=None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Entities and a perfect store that misses a quarter of the things; no picture is drawn."""
    folder = tmp_path_factory.mktemp("attention")
    (folder / "world").mkdir()
    pictures = [describe(generate(SEED, index)) for index in range(IMAGES)]
    (folder / "world" / SCENES_NAME).write_text("".join(each.to_line() for each in pictures), "ascii")
    ToyEntities(str(folder / "entities"), folder / "world", SEED, IMAGES).write()
    scenes = [(image_id(index), picture.scene) for index, picture in enumerate(pictures)]
    write_perfect_store(folder / "store", scenes, Perception(missed=0.25))
    texts = [f"{caption.text} ." for picture in pictures for caption in picture.captions]
    return World(folder / "entities", folder / "store", load_tokenizer("captions", texts))


def questions_of(world: World, store: FeatureStore, model: Any, **changes: Any) -> QuestionData:
    return read_questions(store, world.samples(model), world.request(**changes))


def looks_of(model: Any, world: World, asked: QuestionData, batch_size: int = 16) -> Looks:
    return head_looks(
        model.eval(), world.samples(model), asked.captions, asked.record_of, ANY, batch_size=batch_size,
        device=torch.device("cpu"),
    )  # fmt: skip


def build(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return MODELS[name](**WIDER).eval()


# Questions


PARSE = (
    "1\tA\t2\tdet\n2\tman\t0\troot\n3\twearing\t2\tpartmod\n4\ta\t5\tdet\n5\tboy\t7\tposs\n"
    "6\t's\t5\tpossessive\n7\that\t3\tdobj\n8\tnear\t7\tprep\n9\ta\t10\tdet\n10\tdog\t8\tpobj\n11\t.\t2\tpunct\n"
)


def questions_by_hand(
    tmp_path: Path, word: str, parse: str = PARSE, most: int = 24
) -> tuple[list[tuple[str, str, tuple[int, ...]]], list[str]]:
    (tmp_path / "p.conll").write_text(parse)
    line = "[/EN#1/people A man] wearing [/EN#2/clothing a boy 's hat] near [/EN#3/animals a dog] ."
    boxes = EntityBoxes({"1": ((1, 1, 9, 9),), "2": ((2, 2, 5, 5),)}, (), (), None, None, None)
    image = EntityImage("7", {0: parse_marked_sentence(line)}, boxes)
    left_out = LeftOut()
    parses = parses_by_caption(read_conll(str(tmp_path / "p.conll")), [("7", 0)], "p.conll")

    def pieces(text: str) -> list[list[int]]:
        """Two for each word, of which `most` are read."""
        whole = [[2 * place + 1, 2 * place + 2] for place in range(len(text.split()))]
        return [[piece for piece in each if piece <= most] for each in whole]

    def cut(text: str) -> frozenset[int]:
        return frozenset(place for place in range(len(text.split())) if 2 * place + 2 > most)

    record = type("Record", (), {"record_id": "7", "image_id": "7", "num_regions": 1})()
    found = Questioner(pieces, word, parses, left_out, cut).captions(image, record)
    return [(q.population, q.phrase, q.pieces) for each in found for q in each.questions], left_out.lines()


def test_who_must_look_at_what(tmp_path: Path) -> None:
    """The noun of a phrase is no source of det: the other end of each of its arcs is, whichever end that is. Arcs of
    the boy say nothing of the hat."""
    asked, left_out = questions_by_hand(tmp_path, "last")
    man, hat = "A man", "a boy 's hat"
    assert asked == [
        (ENTITY, man, (4,)), ("det", man, (2,)), ("partmod", man, (6,)), ("punct", man, (22,)),
        (ENTITY, hat, (14,)), ("poss", hat, (10,)), ("dobj", hat, (6,)), ("prep", hat, (16,)),
    ]  # fmt: skip
    assert left_out == []


@pytest.mark.parametrize(("word", "pieces"), [("first", (7,)), ("mean", tuple(range(7, 15))), ("head", (14,))])
def test_which_piece_looks(tmp_path: Path, word: str, pieces: tuple[int, ...]) -> None:
    asked, _ = questions_by_hand(tmp_path, word)
    assert [each[2] for each in asked if each[:2] == (ENTITY, "a boy 's hat")] == [pieces]


@pytest.mark.parametrize(("word", "questions_of"), [("last", ["A man"]), ("first", ["A man", "a boy 's hat"])])
def test_what_is_cut_is_left_out_and_counted(tmp_path: Path, word: str, questions_of: list[str]) -> None:
    """Of "a boy 's hat" the hat is cut: its last piece is not that of the boy's."""
    asked, left_out = questions_by_hand(tmp_path, word, most=13)
    assert [phrase for population, phrase, _ in asked if population == ENTITY] == questions_of
    assert re.fullmatch(r"\d phrases and words that are cut: .*'a boy 's hat'.*", " ".join(left_out).replace('"', "'"))


def test_a_caption_whose_parse_has_other_words_is_asked_about_phrases_alone(tmp_path: Path) -> None:
    asked, left_out = questions_by_hand(tmp_path, "last", PARSE.replace("\tman\t", "\tMan\t"))
    assert {each[0] for each in asked} == {ENTITY}
    assert left_out[0].startswith('1 captions that do not fit their parse: 7 caption 0: "A Man wearing')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\tA\t7\tdet\n", "head '7' is no word of its sentence, which has 1"),
        ("1\tA\t0\n", "expected word 1 of its sentence in four columns"),
        ("2\tA\t0\tdet\n", "expected word 1 of its sentence"),
        ("# sent_id = 7\n1\tA\t0\troot\n", 'expected "# sent_id = <image>#<number>"'),
        ("# sent_id = 7#0\n1\tA\t0\troot\n\n# sent_id = 7#0\n1\tA\t0\troot\n", "a second parse of 7#0"),
        ("1\tA\t0\troot\n\n1\tA\t0\troot\n", "has 2 sentences without a sent_id, where there are 1 caption"),
    ],
)
def test_parses_that_cannot_be_used_are_one_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("<", ".").replace("#", ".")):
        questions_by_hand(tmp_path, "last", text)


# Heads


class Planted(VisualBertForPreTraining):
    """Its head 3-2 looks at one region of each phrase that some region covers; all else is as it was computed."""

    right: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]]

    def encode(self, batch: VLBatch, *, with_attention: bool = False, with_states: bool = False) -> VLOutput:
        output = super().encode(batch, with_attention=with_attention, with_states=with_states)
        if with_attention:
            assert output.attention is not None and batch.sample_ids is not None
            joint, first = output.attention.joint[2], output.attention.joint_regions
            for row, name in enumerate(batch.sample_ids):
                ids = tuple(batch.text_ids[row][batch.text_mask[row]].tolist())
                for piece, region in self.right[name, ids]:
                    joint[row, 1, piece] = 0
                    joint[row, 1, piece, first + region] = 1
        return output


def test_a_head_that_looks_at_the_right_region_finds_all_that_any_region_covers(world: World) -> None:
    torch.manual_seed(0)
    model = Planted(VisualBertConfig(**(SIZES | WIDER | {"num_hidden_layers": 3})))
    with FeatureStore(world.store) as store:
        asked = questions_of(world, store, model)
        model.right = {}
        for caption in asked.captions:
            ids = tuple(world.tokenizer.encode(caption.sentence.text).ids.tolist())
            planted = model.right.setdefault((caption.record_id, ids), [])
            for question in caption.questions:
                covers = np.flatnonzero(covering(asked.record_of(caption.record_id).boxes, question.boxes, ANY))
                if question.population == ENTITY and len(covers):
                    planted.append((question.pieces[0], int(covers[0])))
        looks = looks_of(model, world, asked)
        plain = looks_of(build("VisualBERT"), world, asked)
    entity = head_figures(looks, ENTITY, seed=0)
    assert 0.5 < entity.ceiling < 0.9 and entity.best.value == entity.ceiling == entity.crossed
    assert entity.recalls["R@1"] == entity.recalls["R@10"] == entity.recalls["upper bound"] == entity.ceiling
    entities = [each for caption in asked.captions for each in caption.questions if each.population == ENTITY]
    kinds = {f"R@5 {kind}" for each in entities for kind in each.types}
    assert kinds == {name for name in entity.recalls if "R@5 " in name}
    assert (entity.layer, entity.head) == (3, 2) and entity.verdict == ABOVE
    assert [(half.layer, half.head) for half in entity.halves] == [(3, 2), (3, 2)]
    assert np.delete(entity.accuracy.ravel(), 2 * 4 + 1).max() < entity.baseline.value + 0.12
    # An untrained model beside it, on the same questions.
    untrained = head_figures(plain, ENTITY, seed=0)
    assert untrained.baseline == entity.baseline
    assert untrained.recalls["R@1"] < untrained.recalls["R@5"] <= untrained.recalls["R@10"] <= untrained.ceiling
    assert untrained.verdict != ABOVE and untrained.crossed < untrained.baseline.value + 0.1
    # It likes some regions, whatever the word.
    assert untrained.word_difference.low <= 0 < entity.word_difference.low
    assert {"det", "amod", "pobj", "prep", "nsubj", "punct"} <= set(relations_of(looks, ENTITY))


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_read_alike_alone_and_beside_others(name: str, world: World) -> None:
    """Padding and neighbours change nothing; weights are those that a probe of the pair shows."""
    model = build(name)
    with FeatureStore(world.store) as store:
        asked = questions_of(world, store, model, max_images=4)
        together, alone = (looks_of(model, world, asked, batch_size) for batch_size in (16, 1))
        assert torch.allclose(torch.from_numpy(together.mass), torch.from_numpy(alone.mass), atol=1e-5)
        assert (together.hit == alone.hit).mean() > 0.98  # ties of float32 aside
        caption = asked.captions[-1]
        record, encoded = asked.record_of(caption.record_id), world.tokenizer.encode(caption.sentence.text)
        with torch.no_grad():
            output = model.encode(pair_batch(record, torch.from_numpy(encoded.ids)), with_attention=True)
    question, count = caption.questions[-1], len(encoded.ids)
    covers = covering(record.boxes, question.boxes, ANY)
    for layer in range(alone.mass.shape[1]):
        for head in range(alone.mass.shape[2]):
            shown = words_to_regions(output, count, record.num_regions, layer=layer + 1, head=head + 1)
            assert shown is not None
            weights = shown.weights[list(question.pieces)].mean(axis=0)
            assert alone.mass[-1, layer, head] == pytest.approx(float(weights.sum()), abs=1e-5)
            assert alone.hit[-1, layer, head] == covers[int(weights.argmax())]


def test_attention_that_is_no_number_is_an_error(world: World) -> None:
    model = build("VisualBERT")
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with FeatureStore(world.store) as store, pytest.raises(ValueError, match=r"attention that is no number \(NaN\)"):
        looks_of(model, world, questions_of(world, store, model, max_images=1))


# Figures


def made_looks(hit: np.ndarray, strongest: np.ndarray, mass: float = 0.5) -> Looks:
    """One question an image."""
    count = len(hit)
    return Looks(
        images=tuple(map(str, range(count))), image=np.arange(count), population=np.array([ENTITY] * count),
        types=((),) * count, hits=np.stack([hit] * 3, axis=-1), blind_hit=np.zeros_like(hit),
        mass=np.full(hit.shape, mass, np.float32), strongest=strongest, anyone=strongest,
        covered=np.ones(count, bool), uniform=np.full(count, 0.5),
    )  # fmt: skip


def test_verdicts_need_images_enough_and_the_best_of_many_by_chance_is_none() -> None:
    random = np.random.default_rng(0)
    strongest = (random.random(300) < 0.3).astype(np.float64)
    by_chance = random.random((300, 12, 12)) < 0.3
    found = head_figures(made_looks(by_chance, strongest), ENTITY, seed=0)
    assert found.best.value > 0.36  # of 144 heads the luckiest
    assert found.verdict == UNDECIDED and found.crossed == pytest.approx(0.3, abs=0.05)
    good = by_chance.copy()
    good[:, 10, 3] = random.random(300) < 0.5
    found = head_figures(made_looks(good, strongest), ENTITY, seed=0)
    assert (found.layer, found.head, found.verdict) == (11, 4, ABOVE)
    assert found.difference.low > 0 and found.best_by_layer[10] == found.best.value
    assert head_figures(made_looks(by_chance & False, strongest), ENTITY, seed=0).verdict == BELOW


def test_a_few_images_have_no_verdict() -> None:
    """However sure their interval looks: a head that is right on all of six has one without any width."""
    for count, verdict in ((6, TOO_FEW), (29, TOO_FEW), (30, ABOVE)):
        found = head_figures(made_looks(np.ones((count, 1, 1), bool), np.zeros(count)), ENTITY, seed=0)
        assert (found.questions, found.difference.low, found.verdict) == (count, 1.0, verdict)
    looks = made_looks(np.ones((60, 1, 1), bool), np.zeros(60))
    assert head_figures(dataclasses.replace(looks, image=np.arange(60) % 6), ENTITY, seed=0).verdict == TOO_FEW


def test_the_best_head_is_an_active_one_where_there_is_any() -> None:
    hit = np.zeros((10, 1, 2), bool)
    hit[:, 0, 0], hit[:4, 0, 1] = True, True
    looks = made_looks(hit, np.zeros(10))
    looks.mass[:, 0, 0] = 0.1
    found = head_figures(looks, ENTITY, seed=0)
    assert (found.layer, found.head) == (1, 2) and found.active.tolist() == [[False, True]]
    assert found.best_of_all == (1, 1)  # which the paper names for phrases
    looks.mass[:] = 0.1
    assert head_figures(looks, ENTITY, seed=0).head == 1


def test_pictures_show_the_six_layers_that_ground_phrases_best() -> None:
    """Of each its best head, in the order of the layers; those in between are left out, whatever they look at."""
    random = np.random.default_rng(0)
    right = [0.9, 0.1, 0.8, 0.2, 0.7, 0.6, 0.5, 0.4]  # of each layer's second head
    hit = np.stack([np.zeros((200, 8), bool), random.random((200, 8)) < right], axis=2)
    figures = head_figures(made_looks(hit, np.zeros(200)), ENTITY, seed=0)
    record, sentence = make_record("a", 0, num_regions=4), parse_marked_sentence("A hat .")
    caption = CaptionQuestions("a", "a", 0, sentence, ())
    _, looks = grouped_looks(np.full((8, 2, 5, 4), 0.25), [[1], [2], [3]], caption, record, figures)
    assert [(each.layer, each.head) for each in looks] == [(layer, 2) for layer in (1, 3, 5, 6, 7, 8)]
    colours = dict.fromkeys(("text", "quiet", "line", "series-0"), "#123456")
    sheet = draw_looks(caption, record, [Group("hat", np.array([0]))], looks, None, colours, num_layers=8)
    told = [each.get_text() for each in sheet.figure.findobj(Text)]
    assert {"The best head of 6 of 8 layers (layer-head)", "These layers find phrases best."} <= set(told)


def test_a_relation_of_the_paper_stands_beside_the_commonest_of_ours_and_all_ten_are_named() -> None:
    """compound and nn are one to the paper; a relation without questions has no figure of ours."""
    looks = made_looks(np.ones((60, 1, 1), bool), np.zeros(60))
    looks = dataclasses.replace(looks, population=np.array([ENTITY] * 10 + ["nn"] * 10 + ["compound"] * 40))
    entity, *relations = (head_figures(looks, name, seed=0) for name in (ENTITY, *relations_of(looks, ENTITY)))
    found = {row.name: None if ours is None else ours.name for row, ours in beside_paper(entity, relations)}
    assert list(found) == [row[0] for row in TABLE_2]
    assert (found["entity"], found["nn"], found["dobj"]) == (ENTITY, "compound", None)
    assert [row.name for row, _ in beside_paper(entity, [])] == [ENTITY]


# The command


@pytest.fixture(scope="module")
def command(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """With a model, whose store is still to be named."""
    folder = tmp_path_factory.mktemp("asked")
    build("ViLBERT").save_pretrained(folder / "model")
    world.tokenizer.save(folder / "tokenizer")
    return ("attention", folder / "model", "--entities", world.entities, "--tokenizer", folder / "tokenizer")


def test_a_damaged_record_is_not_asked(world: World, tmp_path: Path) -> None:
    """Heads of all layers look at it: a wrong feature would be in every figure."""
    copied = world._replace(store=tmp_path / "store")
    shutil.copytree(world.store, copied.store)
    (path,) = copied.store.glob("*.lmdb")
    with FeatureStore(copied.store) as store:
        value = np.ascontiguousarray(next(iter(store)).features).tobytes()
    data = path.read_bytes()
    at = data.index(value)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with FeatureStore(copied.store) as store, pytest.raises(ValueError, match=r"has checksum .*verify --deep"):
        questions_of(copied, store, build("VisualBERT"))


def test_the_command_writes_numbers_and_pictures(
    world: World, command: tuple[object, ...], tmp_path: Path, roibeam: Cli
) -> None:
    words = (*command, "--store", world.store, "--max-images", 1, "--parses", world.entities / PARSES_NAME)
    done = ok(roibeam(*words, "--out", tmp_path / "out"))
    for expected in ("5 captions of 1 image", "entity", "best head of each layer: ", "active heads: 2 of 2"):
        assert expected in done.out
    rows = [line.split() for line in done.out.partition("section 3.1 and Table 2:\n")[2].splitlines()[1:12]]
    assert [(row[0], row[2], row[4], row[6]) for row in rows] == TABLE_2
    assert all(float(each) >= 0 for each in (rows[0][1], rows[0][5], rows[1][1], rows[1][5]))  # ours, between theirs
    unlike = "different here: ViLbertForPreTraining; 1 layer of 2 heads; 1 image of all splits; relations of parses"
    assert unlike in done.out and "trained on COCO and Flickr30k (--recipe visualbert-task-flickr)" in done.out
    found = json.loads((tmp_path / "out" / "attention.json").read_text("utf-8"))
    entity, *relations = found["populations"]
    assert entity["name"] == "entity"
    assert sum(each["questions"] for each in relations) > entity["questions"] > 5
    assert entity["best_head"]["layer_from_0"] == entity["best_head"]["layer"] - 1
    assert ("relcl", "rcmod") in {(each["name"], each["paper_name"]) for each in relations}
    paper = {each["paper_name"]: each["paper"] for each in found["populations"]}
    assert paper["entity"] == {"where": "section 3.1", "baseline": 0.1733, "accuracy": 0.5077, "head": None}
    assert paper["amod"] == {"where": "Table 2", "baseline": 0.1867, "accuracy": 0.4596, "head": "10-9"}
    assert paper["rcmod"] is None and "ViLbertForPreTraining" in found["paper"]["different_here"]
    assert "paper: best head 50.77" in (tmp_path / "out" / "heads.svg").read_text()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    for name in ("heads", "relations", "picture-1"):
        assert sizes[f"{name}.svg"] > 1000 and sizes[f"{name}.png"] > 1000


# The paper's section 3.1 and Table 2: name, baseline, best head, its figure.
TABLE_2 = [
    ("entity", "17.33", "-", "50.77"), ("det", "19.59", "10-1", "54.01"), ("pobj", "17.34", "11-11", "32.82"),
    ("amod", "18.67", "10-9", "45.96"), ("nsubj", "23.19", "5-1", "44.64"), ("prep", "20.61", "9-11", "49.27"),
    ("dobj", "9.82", "11-11", "30.24"), ("punct", "23.32", "3-6", "48.80"), ("partmod", "21.41", "4-9", "38.15"),
    ("nn", "16.33", "10-9", "34.06"), ("num", "23.15", "9-11", "67.44"),
]  # fmt: skip


@pytest.mark.slow
def test_the_command_tells_it_as_json_and_needs_no_parses(
    world: World, command: tuple[object, ...], tmp_path: Path, roibeam: Cli
) -> None:
    done = roibeam(*command, "--store", world.store, "--out", tmp_path / "alone", "--json", "--rules", "merged")
    told = json.loads(done.out.splitlines()[-1])
    (entity,) = told["populations"]
    assert entity["name"] == "entity" and entity["best_head_recalls"]["R@1"] == entity["best_head"]["value"]
    names = ("heads", "picture-1", "picture-2", "picture-3")
    assert {Path(name).name for name in told["pictures"]} == {
        f"{name}.{kind}" for name in names for kind in ("svg", "png")
    }


def test_images_without_a_record_stop_it_unless_fewer_are_allowed(
    world: World, command: tuple[object, ...], tmp_path: Path, roibeam: Cli
) -> None:
    scenes = [(image_id(n), generate(SEED, n).scene) for n in range(8)]
    write_perfect_store(tmp_path / "few", scenes, Perception(missed=0.25))
    refused = one_line(roibeam(*command, "--store", tmp_path / "few", "--out", tmp_path / "out"))
    assert "has 8 images of the 40 of --entities" in refused and "--min-match" in refused
    with FeatureStore(tmp_path / "few") as store:
        asked = questions_of(world, store, build("ViLBERT"), min_match=0.1)
    assert len({each.name for each in asked.captions}) == 8
    assert any(note.startswith("32 images without a record in the store: ") for note in asked.notes)


def test_fewer_regions_are_the_strongest_for_heads_baseline_and_ceiling_alike(world: World) -> None:
    model = build("VisualBERT")
    with FeatureStore(world.store) as store:
        whole, few = (questions_of(world, store, model, max_images=3, max_regions=most) for most in (0, 2))
        for caption in few.captions:
            every, kept = whole.record_of(caption.record_id), few.record_of(caption.record_id)
            best = np.sort(np.argsort(-every.class_scores, kind="stable")[:2])
            np.testing.assert_array_equal(kept.boxes, every.boxes[best])
        looks = looks_of(model, world, few)
        assert looks.covered.mean() < looks_of(model, world, whole).covered.mean()
    assert looks.hits[..., 1].sum() == (looks.covered[:, None, None] & np.ones_like(looks.hit)).sum()


@pytest.mark.slow
def test_parses_made_here_ask_about_the_papers_relations(world: World) -> None:
    """Its words are those of the captions, so that all fit; most arcs are those of the gold parses."""
    pytest.importorskip("spacy")
    own, model = ({}, {"parses": Path("spacy")}), build("VisualBERT")
    with FeatureStore(world.store) as store:
        gold, made = (questions_of(world, store, model, max_images=8, **each) for each in own)
    assert not [note for note in made.notes if "parse" in note]

    def arcs(asked: QuestionData) -> set[tuple[str, int, str, tuple[int, ...]]]:
        return {(each.name, each.number, q.population, q.pieces) for each in asked.captions for q in each.questions}

    assert {"det", "amod", "pobj", "prep"} <= {each[2] for each in arcs(made)}
    assert len(arcs(gold) & arcs(made)) > 0.7 * len(arcs(gold))
