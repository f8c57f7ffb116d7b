"""The runs of `make evidence`: what each trains on what, as arguments of `roibeam pretrain`.

All models are of width 64 and two layers: whatever is shown, is shown of small models in a small world. InterBERT masks
as it does; the others hide more words than published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SEEDS = (0, 1, 2)
STEPS, BATCH, RATE = 6000, 32, 3e-3
HIDDEN_WORDS = 0.4  # instead of 0.15: small models with few captions learn sooner
END_TO_END_STEPS, END_TO_END_BATCH = 40, 16
PROBE_STEPS = 200
QUICK_STEPS = 150

_WIDTH = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
_TINY: Mapping[str, Mapping[str, object]] = {
    "vlbert": {**_WIDTH, "coordinate_embedding_size": 64, "region_dropout": 0},
    "visualbert": _WIDTH,
    "imagebert": _WIDTH,
    "vilbert": {
        **_WIDTH,
        "num_hidden_layers": 4,  # the last two of which look at the image
        "image_hidden_size": 64,
        "image_num_hidden_layers": 2,
        "image_intermediate_size": 256,
        "co_attention_size": 64,
        "image_hidden_dropout": 0,
        "image_attention_dropout": 0,
        "region_embedding_dropout": 0,
        "pair_dropout": 0,
    },
    "interbert": {
        **_WIDTH,
        "num_hidden_layers": 2,
        "text_num_hidden_layers": 1,
        "image_num_hidden_layers": 1,
        "image_intermediate_size": 256,
        "pooled_size": 64,
        "image_hidden_dropout": 0,
        "image_attention_dropout": 0,
        "region_embedding_dropout": 0,
        "pair_dropout": 0,
    },
}
OVERLAP_NAMES = ("alone", "touching", "covered")  # of a hidden region, by what others show of it
WORDS, WORDS_ALONE, REGIONS, MATCHING, RETRIEVAL = "words", "words alone", "regions", "matching", "retrieval"


@dataclass(frozen=True)
class Arm:
    """One kind of run; it is made once for each seed.

    Attributes:
        what: for people.
        system: as `--system`.
        captions: name of a file of `evidence.worlds`.
        model: as `--model`.
        settings: of `--set`, beside those of the tiny models.
        options: further arguments.
        after: the arm whose run it goes on from.
        steps, batch, rate: as in `roibeam pretrain`.
        measures: what is asked of it afterwards.
    """

    what: str
    system: str
    measures: Sequence[str]
    captions: str = "train"
    model: str = "small"
    settings: Mapping[str, object] = field(default_factory=dict)
    options: Sequence[str] = ()
    after: str = ""
    steps: int = STEPS
    batch: int = BATCH
    rate: float = RATE

    def arguments(self, *, steps: int) -> list[str]:
        """Of `roibeam pretrain`, without run folder, store, captions, seed, and the run that it goes on from."""
        tiny = {} if self.after else {f"model.{name}": value for name, value in _TINY[self.system].items()}
        fields = {**tiny, **self._hidden, "train.clip_norm": 1, **self.settings}
        return [
            *("--system", self.system, *([] if self.after else ["--model", self.model])),
            *("--steps", str(steps), "--warmup-steps", str(steps // 10)),
            *("--batch-size", str(self.batch), "--learning-rate", str(self.rate)),
            *(word for name, value in fields.items() for word in ("--set", f"{name}={value}")),
            *self.options,
        ]

    @property
    def sampling(self) -> list[str]:
        """Of its settings those of the system's rules, as `--set` takes them."""
        fields = {**self._hidden, **self.settings}
        return [f"{name}={value}" for name, value in fields.items() if name.startswith("sampling.")]

    @property
    def _hidden(self) -> dict[str, object]:
        return {} if self.system == "interbert" else {"sampling.word_probability": HIDDEN_WORDS}


_ALL = (WORDS, REGIONS, MATCHING, RETRIEVAL)
_SYSTEMS = {
    "vlbert": ("VL-BERT with its paper's relationship task", "paper-small", _ALL),
    "vilbert": ("ViLBERT", "small", _ALL),
    "visualbert": ("VisualBERT", "small", (WORDS, MATCHING, RETRIEVAL)),
    "imagebert": ("ImageBERT", "small", _ALL),
    "interbert": ("InterBERT, masked groups", "small", _ALL),
}


def _arms() -> Iterator[tuple[str, Arm]]:
    for name, (what, model, measures) in _SYSTEMS.items():
        yield name, Arm(what, name, measures, model=model)
    text = {"sampling.with_regions": "false", "sampling.text_form": "words_only", "model.with_match_head": "false"}
    yield "text-only", Arm("Words alone, without any image", "visualbert", (WORDS_ALONE,), settings=text)
    for name, (what, model, measures) in _SYSTEMS.items():
        asked = [measure for measure in measures if measure != RETRIEVAL]
        yield f"{name}-permuted", Arm(f"{what}; every picture has another's captions", name, asked, "permuted", model)
    two = (WORDS, MATCHING)
    yield (
        "interbert-plain",
        Arm(
            "InterBERT, words and regions masked one by one", "interbert", two, settings={"sampling.masking": "single"}
        ),
    )
    half = STEPS // 2
    yield "imagebert-noisy", Arm("ImageBERT, first stage: noisy captions", "imagebert", two, "noisy", steps=half)
    yield (
        "imagebert-two-stages",
        Arm("ImageBERT, second stage: clean captions", "imagebert", two, "clean", steps=half, after="imagebert-noisy"),
    )
    yield "imagebert-one-stage", Arm("ImageBERT, both at once", "imagebert", two, "clean-and-noisy")
    yield "vlbert-released", Arm("VL-BERT as released, stored features", "vlbert", (WORDS, REGIONS))
    yield from _four_arms()
    relation = {
        "model.with_pooler": "true",
        "model.with_relationship_head": "true",
        "sampling.mismatched_probability": 0.5,
    }
    probe = {"captions": "probe", "steps": PROBE_STEPS, "settings": relation}
    yield "probe-pretrained", Arm(
        "Words and matching learned from few pictures, from vlbert-released", "vlbert", two, after="vlbert-released",
        rate=RATE / 3, **probe,
    )  # fmt: skip
    yield (
        "probe-new",
        Arm("Words and matching learned from few pictures, from new weights", "vlbert", two, rate=RATE / 3, **probe),
    )


def _four_arms() -> Iterator[tuple[str, Arm]]:
    """VL-BERT on features from four places, all going on from the same run for as many captions."""
    common = {
        "after": "vlbert-released",
        "steps": END_TO_END_STEPS,
        "batch": END_TO_END_BATCH,
        "rate": RATE / 10,
    }
    asked = (WORDS, REGIONS)
    pixels = ("--end-to-end", "--detector", "toy")
    # As with stored features: no mirrored photos, none put together by shape, the whole image as the regions' mean.
    alike = {"photos.flip": "false", "photos.aspect_buckets": "false", "end_to_end.whole_image": "model"}
    frozen = {**alike, "encoder.frozen_stages": "[1,2,3,4,5]"}
    learned = {**frozen, "model.masked_appearance": "learned", "end_to_end.masked_pixels": "whole"}
    for name, what, options, settings in (
        ("vlbert-stored", "Stored features of the detector", (), {}),
        (
            "vlbert-encoder",
            "Features of the same region encoder, regions hidden by a learned vector",
            pixels,
            learned,
        ),
        ("vlbert-pixels-frozen", "Masked pixels, encoder frozen", pixels, frozen),
        ("vlbert-pixels-trained", "Masked pixels, encoder trained", pixels, alike),
    ):
        yield name, Arm(what, "vlbert", asked, options=options, settings=settings, **common)  # type: ignore[arg-type]


ARMS: Mapping[str, Arm] = dict(_arms())
QUICK_ARMS = ("visualbert", "text-only", "visualbert-permuted", "vilbert")
