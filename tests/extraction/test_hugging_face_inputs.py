"""Inputs of transformers' models: what they hold; tiny models with random weights run on them, unmoved by padding."""

import dataclasses
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from small_networks import NARROW
from torch import Tensor
from transformers import (
    BertConfig,
    BertTokenizer,
    LxmertConfig,
    LxmertForQuestionAnswering,
    LxmertModel,
    VisualBertConfig,
    VisualBertForQuestionAnswering,
    VisualBertModel,
)

from roibeam.extraction import hugging_face_inputs
from roibeam.extraction.detector import Detector
from roibeam.extraction.engine.extract_options import ExtractOptions
from roibeam.extraction.engine.region_iterator import extract_regions
from roibeam.extraction.hugging_face_inputs import RegionProcessor
from roibeam.extraction.photos.image_ref import ImageRef
from roibeam.extraction.weights.loading import build_detector
from roibeam.features.record.region_record import RegionRecord

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "on", "the", "beach", "where", "is", "?"]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "initializer_range": 0.5,  # so that an input that should not matter would be seen
}
DIM = 128  # of the tiny detector


def visual_bert_config(width: int = DIM, **more: Any) -> VisualBertConfig:
    return VisualBertConfig(**SIZES, visual_embedding_dim=width, num_hidden_layers=2, **more)


def lxmert_config(width: int = DIM, **more: Any) -> LxmertConfig:
    return LxmertConfig(**SIZES, visual_feat_dim=width, l_layers=1, r_layers=1, x_layers=2, **more)


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    return BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})


@pytest.fixture(scope="module", params=["visual_bert", "lxmert"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    if request.param == "visual_bert":
        return VisualBertModel(visual_bert_config()).eval()
    return LxmertModel(lxmert_config()).eval()


@pytest.fixture(scope="module")
def tiny_detector() -> Detector:
    """The small network at the size of milliseconds."""
    torch.set_num_threads(1)  # threads waiting for each other cost more than they give
    sizes = {"short_edge": 48, "long_edge": 80, "proposals_after_nms": 16}
    return build_detector(dataclasses.replace(NARROW, **sizes), weights="random:1")


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Three colour PNGs of different sizes."""
    paths = []
    for number, (height, width) in enumerate([(120, 160), (90, 70), (64, 200)]):
        coarse = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        paths.append(tmp_path / f"{number}.png")
        cv2.imwrite(str(paths[-1]), cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))
    return paths


def make_record(image_id: str, num_regions: int, width: int = DIM, dtype: type = np.float32) -> RegionRecord:
    random = np.random.default_rng(num_regions)
    corners = random.uniform(0, 50, (num_regions, 2))
    return RegionRecord(
        image_id=image_id,
        height=100,
        width=200,
        boxes=np.concatenate([corners, corners + 50], axis=1).astype(np.float32),
        features=random.uniform(0, 2, (num_regions, width)).astype(dtype),
        class_ids=np.zeros(num_regions, np.uint16),
        class_scores=np.zeros(num_regions, np.float32),
    )


def outputs(model: torch.nn.Module, inputs: Any) -> dict[str, Tensor]:
    """Name -> (B, positions, hidden) of every position."""
    with torch.inference_mode():
        got = model(**inputs)
    if isinstance(model, LxmertModel):
        return {"text": got.language_output, "regions": got.vision_output}
    num_tokens = inputs["input_ids"].shape[1]
    return {"text": got.last_hidden_state[:, :num_tokens], "regions": got.last_hidden_state[:, num_tokens:]}


def test_visual_bert_takes_exactly_these_tensors(tokenizer: BertTokenizer) -> None:
    records = [make_record("a", 2), make_record("b", 3)]
    inputs = RegionProcessor(None, tokenizer, visual_bert_config())(records, ["a dog", "a cat on the beach"])
    assert inputs["input_ids"].tolist() == [[2, 5, 6, 3, 0, 0, 0], [2, 5, 7, 8, 9, 10, 3]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0, 0], [1] * 7]
    assert inputs["token_type_ids"].tolist() == [[0] * 7] * 2
    assert inputs["visual_attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert inputs["visual_token_type_ids"].tolist() == [[1, 1, 1]] * 2
    assert inputs["visual_embeds"].dtype == torch.float32
    np.testing.assert_array_equal(inputs["visual_embeds"][0, :2], records[0].features)
    assert not inputs["visual_embeds"][0, 2].any()
    np.testing.assert_array_equal(inputs["visual_embeds"][1], records[1].features)
    assert len(inputs) == 6


def test_a_visual_bert_that_is_six_wider_gets_six_numbers_of_each_box(tokenizer: BertTokenizer) -> None:
    """As its release feeds Flickr30k's regions; the records are 200 x 100 pixels."""
    record = make_record("a", 2, dtype=np.float16)
    found = RegionProcessor(None, tokenizer, visual_bert_config(DIM + 6))(record, "a dog")["visual_embeds"][0].numpy()
    x1, y1, x2, y2 = record.boxes.T
    numbers = [x1 / 200, y1 / 100, x2 / 200, y2 / 100, (x2 - x1) / 200, (y2 - y1) / 100]
    np.testing.assert_array_equal(found[:, :DIM], record.features.astype(np.float32))
    np.testing.assert_allclose(found[:, DIM:], np.stack(numbers, axis=1), rtol=1e-6)
    with pytest.raises(ValueError, match=f"record 'a' holds features of width {DIM}, the model's visual_feat_dim"):
        config = lxmert_config()
        config.visual_feat_dim = DIM + 6
        RegionProcessor(None, tokenizer, config)(record, "a dog")


def test_what_a_notebook_prints_of_it_is_one_line(tokenizer: BertTokenizer) -> None:
    """And not the list of all layers that torch prints of a module."""
    detector = build_detector("toy")
    line = "Detector(ResNet-26, 24 classes, 19 attributes, features of width 512, on cpu)"
    assert repr(detector) == line and "\n" in repr(detector.roi_heads)
    processor = RegionProcessor(detector, tokenizer, visual_bert_config(detector.feature_dim))
    assert repr(processor) == f"RegionProcessor({line}, {type(tokenizer).__name__}, for visual_bert)"


def test_lxmert_takes_exactly_these_tensors(tokenizer: BertTokenizer) -> None:
    record = dataclasses.replace(make_record("a", 2), boxes=np.array([[0, 25, 50, 75], [100, 0, 200, 100]], np.float32))
    inputs = RegionProcessor(None, tokenizer, lxmert_config())([record, make_record("b", 3)], ["a dog", "a cat"])
    # 200 wide, 100 high: x1 / 200, y1 / 100, x2 / 200, y2 / 100.
    assert inputs["visual_pos"][0].tolist() == [[0, 0.25, 0.25, 0.75], [0.5, 0, 1, 1], [0, 0, 0, 0]]
    assert inputs["visual_attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    np.testing.assert_array_equal(inputs["visual_feats"][0, :2], record.features)
    assert sorted(inputs) == [
        "attention_mask", "input_ids", "token_type_ids", "visual_attention_mask", "visual_feats", "visual_pos"
    ]  # fmt: skip


def test_padding_does_not_matter(model: torch.nn.Module, tokenizer: BertTokenizer) -> None:
    processor = RegionProcessor(None, tokenizer, model.config)
    records = [make_record(f"{k}", k) for k in (2, 7, 4)]
    texts = ["a dog", "where is the cat on the beach ?", "cat"]
    together = outputs(model, processor(records, texts))
    for row, (record, text) in enumerate(zip(records, texts, strict=True)):
        alone = outputs(model, processor(record, text))
        for name, states in alone.items():
            in_batch = together[name][row, : states.shape[1]]
            # Other matrix sizes add in another order: some float32 roundings in states of about 1.
            torch.testing.assert_close(in_batch, states[0], rtol=1e-5, atol=2e-5)
    moved = processor(records, texts)
    moved[next(name for name in moved if name in ("visual_embeds", "visual_feats"))][0, 0] += 1
    assert (outputs(model, moved)["text"][0] - together["text"][0]).abs().max() > 0.01  # real regions do matter


def test_a_photo_and_its_record_give_the_same(
    model: torch.nn.Module, tokenizer: BertTokenizer, tiny_detector: Detector, photos: list[Path]
) -> None:
    processor = RegionProcessor(tiny_detector, tokenizer, model.config)
    from_photos = processor(photos, ["a dog", "a cat", "the beach"])
    assert len(set(from_photos["visual_attention_mask"].sum(dim=1).tolist())) > 1, "no padding to test"
    refs = [ImageRef(path.name, str(path)) for path in photos]
    for dtype, tolerance in (("float32", 0.0), ("float16", 1e-3)):
        records = list(extract_regions(refs, tiny_detector, options=ExtractOptions(feature_dtype=dtype)))
        from_records = RegionProcessor(None, tokenizer, model.config)(records, ["a dog", "a cat", "the beach"])
        assert list(from_photos) == list(from_records)
        for name, values in from_photos.items():
            torch.testing.assert_close(from_records[name], values, rtol=tolerance, atol=tolerance)
    hidden = outputs(model, from_photos)
    assert all(bool(states.isfinite().all()) for states in hidden.values())


def test_a_path_an_array_and_a_pillow_image_give_the_same(
    tokenizer: BertTokenizer, tiny_detector: Detector, photos: list[Path], tmp_path: Path
) -> None:
    """Channel order: cv2 and arrays are B, G, R, Pillow is R, G, B; a turned photo stands upright either way."""
    processor = RegionProcessor(tiny_detector, tokenizer, lxmert_config())
    bgr = cv2.imread(str(photos[0]))
    turned = Image.fromarray(np.rot90(bgr[:, :, ::-1]).copy())
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned to the left: show it turned to the right
    turned.save(tmp_path / "turned.png", exif=exif)
    want = processor(str(photos[0]), "a dog")
    see_through = Image.open(photos[0]).convert("RGBA")
    see_through.putalpha(7)
    turned_path = tmp_path / "turned.png"
    for photo in (photos[0], bgr, Image.open(photos[0]), see_through, turned_path, Image.open(turned_path)):
        got = processor(photo, "a dog")
        assert torch.equal(got["visual_feats"], want["visual_feats"])
        assert torch.equal(got["visual_pos"], want["visual_pos"])
    swapped = processor(np.ascontiguousarray(bgr[:, :, ::-1]), "a dog")
    assert not torch.equal(swapped["visual_feats"], want["visual_feats"])


def test_one_photo_is_looked_at_once_for_several_texts(tokenizer: BertTokenizer, tiny_detector: Detector) -> None:
    class Counting:
        feature_dim, calls = DIM, 0

        def __call__(self, images: Sequence[np.ndarray]) -> Any:
            self.calls += 1
            return tiny_detector(images)

    detector = Counting()
    image = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    inputs = RegionProcessor(detector, tokenizer, lxmert_config())(image, ["a dog", "where is the cat ?", "cat"])
    assert detector.calls == 1
    assert inputs["visual_feats"].shape[0] == inputs["input_ids"].shape[0] == 3
    assert torch.equal(inputs["visual_feats"][0], inputs["visual_feats"][2])
    inputs = RegionProcessor(None, tokenizer, lxmert_config())([make_record("a", 1), make_record("b", 2)], "a dog")
    assert inputs["input_ids"].tolist() == [[2, 5, 6, 3]] * 2


def test_models_with_heads_take_them_too(tokenizer: BertTokenizer) -> None:
    record = make_record("a", 3)
    visual_bert = VisualBertForQuestionAnswering(visual_bert_config(num_labels=5)).eval()
    lxmert = LxmertForQuestionAnswering(lxmert_config(num_qa_labels=5)).eval()
    with torch.inference_mode():
        inputs = RegionProcessor(None, tokenizer, visual_bert.config)(record, ["a dog [MASK]", "where is [MASK]"])
        assert visual_bert(**inputs).logits.shape == (2, 5)
        inputs = RegionProcessor(None, tokenizer, lxmert.config)(record, ["a dog ?", "where is the cat ?"])
        assert lxmert(**inputs.to("cpu")).question_answering_score.shape == (2, 5)


def test_no_regions_are_fine_for_visual_bert_and_an_error_for_lxmert(tokenizer: BertTokenizer) -> None:
    torch.manual_seed(0)
    model = VisualBertModel(visual_bert_config()).eval()
    processor = RegionProcessor(None, tokenizer, model.config)
    alone = outputs(model, processor(make_record("empty", 0), "a dog"))["text"][0]
    beside = outputs(model, processor([make_record("empty", 0), make_record("b", 4)], "a dog"))["text"][0]
    torch.testing.assert_close(alone, beside, rtol=1e-5, atol=2e-5)
    processor = RegionProcessor(None, tokenizer, lxmert_config())
    with pytest.raises(ValueError, match="record 'empty' has no regions, and LXMERT needs at least one"):
        processor([make_record("b", 4), make_record("empty", 0)], "a dog")


@pytest.mark.parametrize(
    ("photo", "text", "words"),
    [
        (make_record("r", 2, width=8), "a dog", "record 'r' holds features of width 8, the model's visual_feat_dim is"),
        (make_record("r", 2), "dog " * 30, "a text of 32 tokens; this model takes at most 24"),
        ([make_record("r", 2)] * 2, ["a"] * 3, "2 photos and 3 texts"),
        ([], [], "0 photos and 0 texts"),
        (make_record("r", 2), [], "1 photos and 0 texts"),
        ("photo.jpg", "a dog", "has no detector, so it takes records"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(tokenizer: BertTokenizer, photo: Any, text: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        RegionProcessor(None, tokenizer, lxmert_config())(photo, text)


def test_another_model_or_tokenizer_is_one_clear_error(tokenizer: BertTokenizer, tiny_detector: Detector) -> None:
    with pytest.raises(ValueError, match="model type 'bert'; regions become inputs of visual_bert, lxmert"):
        RegionProcessor(None, tokenizer, BertConfig())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gives features of width 128, the model's visual_embedding_dim is 2048"):
        RegionProcessor(tiny_detector, tokenizer, visual_bert_config(2048))
    config = lxmert_config()
    config.vocab_size = 6
    with pytest.raises(ValueError, match="the tokenizer gives id 6, the model has 6 words"):
        RegionProcessor(None, tokenizer, config)(make_record("r", 1), "a dog")


def test_a_photo_that_cannot_be_used_is_named(tokenizer: Any, tiny_detector: Detector, tmp_path: Path) -> None:
    processor = RegionProcessor(tiny_detector, tokenizer, lxmert_config())
    with pytest.raises(OSError, match=re.escape(f"photo {tmp_path / 'none.jpg'}: not found")):
        processor(tmp_path / "none.jpg", "a dog")
    (tmp_path / "text.jpg").write_text("no photo")
    with pytest.raises(ValueError, match=re.escape(f"photo {tmp_path / 'text.jpg'}: not an image")):
        processor(tmp_path / "text.jpg", "a dog")
    with pytest.raises(ValueError, match="mode I;16 has more than 8 bits"):
        processor(Image.new("I;16", (8, 8)), "a dog")


def snippets() -> dict[str, str]:
    """The five lines, wherever a reader may copy them from."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    on_page = [("docs/python.md", block) for block in blocks if "RegionProcessor(" in block]
    assert on_page
    docstring = re.search(r"\n\n(    from roibeam .*?)\n\n(?=\S)", hugging_face_inputs.__doc__ or "", re.DOTALL)
    assert docstring is not None
    return dict([("docstring", textwrap.dedent(docstring[1])), *on_page])


@pytest.mark.parametrize("where", snippets())
def test_the_lines_to_copy_run(
    where: str, tokenizer: BertTokenizer, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written, but for the published model and detector, which are small ones of the same kind here."""
    LxmertModel(lxmert_config(512)).save_pretrained(tmp_path / "lxmert")
    tokenizer.save_pretrained(tmp_path / "lxmert")
    photos[0].rename(tmp_path / "photo.jpg")  # the name does not matter to the decoder
    monkeypatch.chdir(tmp_path)
    code = snippets()[where]
    for published, count, small in [
        ('"unc-nlp/lxmert-base-uncased"', 2, '"./lxmert"'),
        ('preset="lxmert", weights="hf:unc-nlp/frcnn-vg-finetuned"', 1, '"small", weights="random:1"'),
    ]:
        assert code.count(published) == count
        code = code.replace(published, small)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["outputs"].language_output.shape[0] == 1
