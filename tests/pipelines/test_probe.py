"""`roibeam probe` for every model, on a photo and on stored records, and what it refuses."""

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
import torch
from evaluated_models import MODELS, SIZES, VILBERT, WIDTH, WITHOUT_MATCH, WITHOUT_REGIONS, build
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.text import Text
from tiny_commands import Cli, Pictures, command, ok, tiny_run

from roibeam.features.record.region_record import RegionRecord
from roibeam.model.common.bert import BertSizes
from roibeam.model.imagebert.model import ImageBertConfig, ImageBertForPreTraining
from roibeam.model.vilbert.encoder import ViLbertConfig
from roibeam.model.vilbert.model import ViLbertForPreTraining
from roibeam.pipelines.analysis.probe import pair_batch, probe, words_to_regions
from roibeam.pipelines.analysis.probe_picture import MAX_REGIONS, Sheet, draw_probe, regions_to_draw
from roibeam.pipelines.analysis.probe_request import write_probe
from roibeam.pipelines.analysis.requests import ProbeRequest
from roibeam.pipelines.common.page_layout import Banner
from roibeam.pipelines.common.plot import picture_svg
from roibeam.pipelines.data.vocabulary import Names
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

CLASSES = ("cat", "dog", "hat")
CAPTIONS = ["a cat in a hat", "a dog and a cat in a hat", "the dog on a hat"]


def make_record(count: int = 6, width: int = WIDTH) -> RegionRecord:
    generator = np.random.default_rng(0)
    corner = generator.uniform(0, 80, (count, 2))
    return RegionRecord(
        image_id="a", height=200, width=160, boxes=np.concatenate([corner, corner + 40], axis=1).astype(np.float32),
        features=generator.standard_normal((count, width)).astype(np.float16),
        class_ids=(np.arange(count) % 3).astype(np.uint16),
        class_scores=np.linspace(0.5, 0.9, count).astype(np.float32),
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("captions", CAPTIONS)


@pytest.mark.parametrize("name", MODELS)
def test_what_each_model_says(name: str, tokenizer: Any) -> None:
    model, record = build(name), make_record()
    said = probe(model, record, "a [MASK] in a [mask]", tokenizer, Names(CLASSES), top=3)
    assert said.pieces == ("[CLS]", "a", "[MASK]", "in", "a", "[MASK]", "[SEP]")
    assert [word.position for word in said.words] == [2, 5]
    batch = pair_batch(record, torch.from_numpy(tokenizer.encode("a [MASK] in a [MASK]").ids))
    with torch.no_grad():
        output = model.encode(batch)
        logits = model.word_logits(output.text_states[0, 5]).softmax(-1)
    best = int(logits.argmax())
    assert said.words[1].guesses[0].name == tokenizer.piece(best)
    assert said.words[1].guesses[0].probability == pytest.approx(float(logits[best]), rel=1e-5)
    assert (said.match is None) == (name in WITHOUT_MATCH)
    if said.match is not None:
        assert said.match == pytest.approx(float(model.match_log_odds(output).sigmoid()), rel=1e-4)
    if name in WITHOUT_REGIONS:
        assert said.regions == () and said.regions_remark == "this model predicts no classes of regions"
    else:
        assert [region.number for region in said.regions] == [5, 4, 3, 2, 1]  # by score
        assert said.regions[0].seen_as == "hat" and len(said.regions[0].guesses) == 3
        assert {guess.name for guess in said.regions[0].guesses} <= {*CLASSES, "background"}
    assert said.attention is not None and said.attention.weights.shape == (7, 6)
    assert (said.attention.weights > 0).all() and (said.attention.weights.sum(axis=1) < 1 + 1e-5).all()


@pytest.mark.parametrize("name", MODELS)
def test_columns_of_the_attention_are_the_regions(name: str, tokenizer: Any) -> None:
    """A region that is not there is looked at by nothing, and its column is the only one that is empty."""
    model, record = build(name), make_record()
    ids = torch.from_numpy(tokenizer.encode("a cat").ids)
    batch = pair_batch(record, ids)
    for absent in (0, 3, 5):
        mask = batch.region_mask.clone()
        mask[0, absent] = False
        with torch.no_grad():
            output = model.encode(dataclasses.replace(batch, region_mask=mask), with_attention=True)
        looks = words_to_regions(output, len(ids), record.num_regions)
        assert looks is not None
        assert [int(column) for column in np.flatnonzero((looks.weights == 0).all(axis=0))] == [absent]


def test_a_hidden_region_is_hidden(tokenizer: Any) -> None:
    """Whatever its feature is, the guesses are the same; another region's feature changes them."""
    model, record = build("ImageBERT"), make_record()
    features = np.array(record.features)

    def guesses(changed: int) -> Any:
        other = features.copy()
        other[changed] = 5.0
        said = probe(model, dataclasses.replace(record, features=other), "a cat", tokenizer, Names(CLASSES), hide=[2])
        return said.regions[0].guesses

    assert guesses(2) == probe(model, record, "a cat", tokenizer, Names(CLASSES), hide=[2]).regions[0].guesses
    assert guesses(3) != guesses(2)


def test_names_of_labels() -> None:
    last, first = Names(CLASSES), Names(CLASSES, background="first")
    assert [last.of_model(label, 4) for label in range(4)] == [*CLASSES, "background"]
    assert [first.of_model(label, 4) for label in range(4)] == ["background", *CLASSES]
    assert [last.of_model(label, 3) for label in range(3)] == list(CLASSES)
    assert Names(()).of_model(7, 9) == "class 7" and Names((), background="last").of_model(8, 9) == "background"
    assert [Names(CLASSES, background="none").of_model(label, 4) for label in (2, 3)] == [CLASSES[2], "class 3"]


def test_a_model_with_task_tokens_is_told_the_task(tokenizer: Any) -> None:
    model = ViLbertForPreTraining(ViLbertConfig(**VILBERT, num_task_tokens=3)).eval()

    def match(task: int | None) -> float | None:
        return probe(model, make_record(), "a [MASK]", tokenizer, Names(CLASSES), task=task).match

    assert match(0) != match(2)
    for wrong in (None, 3):
        with pytest.raises(ValueError, match="name one with --task-token, 0 to 2"):
            match(wrong)
    with pytest.raises(ValueError, match="no task tokens; leave --task-token out"):
        probe(build("ViLBERT"), make_record(), "a cat", tokenizer, Names(CLASSES), task=0)


def test_a_stored_feature_of_the_whole_image_is_read(tokenizer: Any) -> None:
    model, record = ImageBertForPreTraining(ImageBertConfig(**SIZES, global_feature_size=5)).eval(), make_record()

    def match(feature: np.ndarray | None) -> float | None:
        shown = dataclasses.replace(record, image_feature=feature)
        return probe(model, shown, "a cat", tokenizer, Names(CLASSES)).match

    assert match(np.ones(5, record.features.dtype)) != match(np.full(5, 9, record.features.dtype))
    with pytest.raises(ValueError, match="reads global_features of width 5, the batch has none"):
        match(None)


def test_no_mask_no_regions_no_names(tokenizer: Any) -> None:
    said = probe(build("VL-BERT, paper"), make_record(0), "a cat", tokenizer, Names(()))
    assert said.words == () and said.regions == () and said.attention is None and said.match is not None


COLOURS = dict.fromkeys(("text", "quiet", "line", "series-0", "series-1"), "#123456")


def texts_of(sheet: Sheet) -> list[str]:
    return [each.get_text() for each in sheet.figure.findobj(Text) if each.get_visible()]


def test_the_matrix_is_pale_where_words_look_everywhere_alike(tokenizer: Any) -> None:
    """Scaled to its own largest weight, a model without any preference would be dark all over."""
    record = make_record()
    said = probe(build("ImageBERT"), record, "a cat", tokenizer, Names(CLASSES))
    assert said.attention is not None

    def darkest(weights: np.ndarray) -> float:
        told = dataclasses.replace(said, attention=dataclasses.replace(said.attention, weights=weights))
        sheet = draw_probe(told, record, Names(CLASSES), COLOURS, text="a cat", photo=None)
        matrix = sheet.figure.findobj(QuadMesh)[0]
        assert matrix.get_array().size == weights.size
        words = texts_of(sheet)
        assert {"0.0 %", "5.0 %", "15.0 %"} <= set(words) and "Mark: 5.0 %, the equal share" in " ".join(words)
        return float(matrix.to_rgba(matrix.get_array())[..., 3].max())

    alike = np.full((len(said.pieces), 6), 0.05)
    one = np.where(np.arange(6) == 2, 0.3, 0.0) * np.ones_like(alike)
    assert darkest(alike) < 0.25 and darkest(one) == 1.0


def test_every_region_that_is_named_is_drawn(tokenizer: Any) -> None:
    """Also those that were hidden and that nothing looks at, and more of them than the matrix has columns."""
    record = make_record(30)
    for hide in ([29], list(range(9, 29))):
        said = probe(build("ImageBERT"), record, "a [MASK]", tokenizer, Names(CLASSES), hide=hide)
        shown = regions_to_draw(said, record)
        assert set(hide) <= set(shown) and len(shown) == max(len(hide), MAX_REGIONS)
        sheet = draw_probe(said, record, Names(CLASSES), COLOURS, text="a [MASK]", photo=None)
        numbers = [each for each in texts_of(sheet) if each.isdigit()]
        assert sorted(numbers) == sorted(2 * [str(number) for number in shown])  # on the photo and over the matrix


def test_the_picture_fits_a_telephone_and_its_text_is_text(tokenizer: Any) -> None:
    """Drawn for 360 CSS pixels: nothing is outside of it or below 11, and it grows with its place."""
    record = make_record(30)
    names = Names(("a category of a rather long name", "<b>", "hat"))
    said = probe(build("ImageBERT"), record, "a [MASK] in a [MASK]", tokenizer, names)
    text = "a [MASK] in a [MASK], " + "and so on " * 30
    draw = partial(draw_probe, said, record, names, text=text, photo=None, banner=Banner("Careful.", "No meaning."))
    sheet = draw(COLOURS)
    top, renderer = sheet.figure.bbox.height, FigureCanvasAgg(sheet.figure).get_renderer()  # else one for each text
    for each in (*sheet.figure.findobj(Text), *sheet.figure.axes):
        if not each.get_visible() or (isinstance(each, Text) and not each.get_text()):
            continue
        box = each.get_window_extent(renderer)
        assert box.x0 >= -1 and box.x1 <= 361 and top - sheet.y - 1 <= box.y0 and box.y1 <= top, each
        assert not isinstance(each, Text) or each.get_fontsize() >= 11, each
    svg = picture_svg(draw, label="a probe")
    drawn = ElementTree.fromstring(svg)
    assert drawn.attrib["viewBox"].startswith("0 0 360 ") and drawn.attrib["width"] == "100%"
    assert "prefers-color-scheme: dark" in svg and ">No meaning.</text>" in svg


@pytest.mark.parametrize(
    "text", ["font-family: Arial; [MASK]", "font: bold big [MASK]", "data:image/png;base64,AA", "a \x1b[31m #d8d8d8"]
)
def test_a_text_stays_as_it_was_typed(text: str, tokenizer: Any) -> None:
    """What is changed in matplotlib's markup are its tags alone."""
    said = probe(build("ImageBERT"), make_record(3), "a [MASK]", tokenizer, Names(()))
    draw = partial(draw_probe, said, make_record(3), Names(()), text=text, photo=None, banner=None)
    drawn = ElementTree.fromstring(picture_svg(draw, label=text))
    texts = ["".join(each.itertext()) for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    shown = text.replace("\x1b", r"\x1b")
    assert shown in texts and drawn.attrib["aria-label"] == shown


@pytest.fixture(scope="module")
def run_folder(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer beside it."""
    folder = tmp_path_factory.mktemp("probed") / "run"
    data = ("--store", pictures.store, "--captions", pictures.captions)
    command("pretrain", folder, *data, "--system", "vlbert", *tiny_run(2, 2))
    return folder


def test_the_command(
    pictures: Pictures, run_folder: Path, tmp_path: Path, roibeam: Cli, tiny_network: tuple[str, ...]
) -> None:
    photo = sorted(pictures.photos.iterdir())[0]
    text = "a red [MASK] <&>"
    network = [option for option in tiny_network if option not in ("--device", "cpu")]  # which probe does not take
    shown = ok(roibeam("probe", run_folder, photo, text, "--out", tmp_path / "a.svg", *network))
    assert "note: detector small (conventions hf, " in shown.out
    assert (
        "[MASK] at piece" in shown.out
        and "match: this model has no match head; models of roibeam pretrain" in shown.out
    )
    assert f"{tmp_path / 'a.svg'}   the photo" in shown.out
    picture = ElementTree.parse(tmp_path / "a.svg").getroot()
    texts = ["".join(element.itertext()) for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == text and "[CLS]" in texts
    assert "Random weights." in " ".join(texts)  # of the detector
    assert any(element.tag.endswith("image") for element in picture.iter())
    stored = ok(roibeam(
        "probe", run_folder, photo.stem, text, "--store", pictures.store, "--photo", photo, "--json",
        "--out", tmp_path / "b.png",
    ))  # fmt: skip
    said = json.loads(stored.out)
    assert said["match"] is None and len(said["words"]) == 1 and said["picture"] == str(tmp_path / "b.png")
    png = cv2.imread(str(tmp_path / "b.png"))
    assert png.shape[1] == 3 * 360 and png.std() > 10
    looks = said["attention"]
    assert looks["scale"] == [0.0, pytest.approx(3 * looks["equal_share"], abs=1e-5)]
    assert np.mean(looks["weights"]) == pytest.approx(looks["equal_share"], abs=1e-5)
    assert len(said["seen"]) == len(looks["weights"][0]) and said["warning"].startswith("Random weights.")
    beside = json.loads((tmp_path / "b.json").read_text())
    assert {name: said[name] for name in beside} == beside
    assert said.keys() - beside.keys() == {"event", "picture", "device"}
    for name, blank in (("probe.svg", ()), ("probe-2.svg", ("--photo", "none"))):  # the word of `store show`
        alone = roibeam("probe", run_folder, photo.stem, text, "--store", pictures.store, *blank)
        assert alone.code == 0 and "<image" not in (run_folder / name).read_text()
        assert f"{run_folder / name}   the photo" in alone.out
    request = ProbeRequest(
        checkpoint=str(run_folder), image=photo.stem, text=text, out=tmp_path / "d.svg", store=str(pictures.store),
        photo=photo,
    )  # fmt: skip
    probed = write_probe(request)
    assert "\n" not in repr(probed) + repr(probed.result) and len(repr(probed)) < 900
    shown = probed._repr_html_()
    assert (tmp_path / "d.svg").read_text() in shown and "&lt;&amp;&gt;" in shown and len(shown) < 200_000
    (tmp_path / "d.svg").unlink()
    assert "is not there any more" in probed._repr_html_()


@pytest.mark.parametrize(
    "image, text, options, words",
    [
        ("ID", "a", ("--store", "STORE", "--out", "PHOTO"), "is a file; nothing is replaced"),
        ("ID", "a", ("--store", "STORE", "--out", "a.gif"), "the picture is an .svg or a .png file"),
        ("ID", "a", ("--store", "STORE", "--out", "no/a.svg"), "there is no folder"),
        ("nobody", "a", ("--store", "STORE"), "has no record 'nobody'"),
        ("ID", "a " * 600, ("--store", "STORE"), "pieces; this model takes 510, shorten it"),
        ("ID", "a", ("--store", "STORE", "--hide", "999"), "region 999: record"),
        ("ID", "a", ("--store", "STORE", "--layer", "2"), "layer 2: words attend to regions in layers 1 to 1"),
        ("ID", "a", ("--store", "STORE", "--head", "3"), "head 3: this layer has heads 1 to 2"),
        ("ID", "a", ("--store", "STORE", "--vocab", "x"), "with --store the regions and names are those of the store"),
        ("nowhere.jpg", "a", ("--detector", "toy"), "nowhere.jpg"),
        ("PHOTO", "a", (), "weights are missing"),
        ("PHOTO", "a", ("--photo", "PHOTO"), "--photo is for --store"),
        ("PHOTO", "a", ("--detector", "toy"), "features have width"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    image: str, text: str, options: tuple[str, ...], words: str, pictures: Pictures, run_folder: Path,
    tmp_path: Path, roibeam: Cli, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    photo = sorted(pictures.photos.iterdir())[0]
    names = {"ID": photo.stem, "PHOTO": str(photo), "STORE": str(pictures.store)}
    monkeypatch.chdir(tmp_path)
    result = roibeam("probe", run_folder, names.get(image, image), text, *(names.get(o, o) for o in options))
    lines = [line for line in result.err.strip().splitlines() if "nothing to convert" not in line]
    assert result.code == 1 and len(lines) == 1 and words in lines[0], result.err
    assert not list(tmp_path.glob("*.svg"))


def test_every_config_has_the_fields_that_are_checked() -> None:
    for name in MODELS:
        config = MODELS[name]().config
        assert isinstance(config, BertSizes) and config.region_feature_size == WIDTH
