"""Object detection of Hugging Face transformers, with fixed classes or with queries (zero-shot).

    photo -> the model's image processor -> network -> the model's own post-processing, at a threshold that keeps all

The vector of a detection is what the class head reads: the decoder's last state of the query that the detection came
from; of OWL-ViT and OWLv2 the class head's embedding of the patch, which is compared with those of the texts.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roibeam.extraction.adapters.any_detector import Detections
from roibeam.extraction.adapters.hugging_face import (
    digest_of,
    inside_transformers,
    json_digest,
    load_network,
    model_folder,
    read_config,
    read_json,
)
from roibeam.extraction.weights.named_model import NamedModel
from roibeam.messages import printable

# By model_type. A softmax has a last class of its own for no object; a sigmoid decides each class by itself.
_SOFTMAX = ("detr", "table-transformer", "yolos")
_SIGMOID = (
    *("conditional_detr", "dab-detr", "deformable_detr", "lw_detr", "rf_detr"),
    *("rt_detr", "rt_detr_v2", "d_fine", "deimv2"),
)
_OWL = ("owlvit", "owlv2")
_GROUNDED = ("grounding-dino", "mm-grounding-dino")  # queries are one text, a logit a token
_OMDET = ("omdet-turbo",)
_ZERO_SHOT = (*_OWL, *_GROUNDED, *_OMDET)

_WIDTHS = dict.fromkeys((*_OWL, "yolos", "dab-detr"), "hidden_size") | {"omdet-turbo": "decoder_hidden_dim"}
_KEEPS_ALL = -1.0  # below every score
_NMS, _NO_NMS = 0.5, 2.0  # of OmDet-Turbo's post-processing by default; above every overlap
_PLACEHOLDERS = ("n/a", "background", "__background__", "no-object", "no object", "no_object")
# A photo of three rows would else be taken for one with its channels in front.
_OPTIONS = {"return_tensors": "pt", "input_data_format": "channels_last"}
_MOST_PIXELS = 8192  # of a side of the network's input
_INPUT_RULES = (
    *("do_resize", "size", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
    *("do_pad", "pad_size", "size_divisor"),
)


def class_names(model: NamedModel) -> tuple[str, ...] | None:
    """See `NamedModel.names`: of a zero-shot detector the queries, which were found to fit.

    Raises:
        ValueError: for a model that detects nothing, queries where it takes none or needs some, or too many of them.
    """
    config = _detector_config(model)
    if config.model_type in _ZERO_SHOT:
        _check_queries(model, config, _processor(model, config))
        return model.queries
    return _classes(config)[1]


def load_detector(model: NamedModel, device: str, _mode: str) -> HuggingFaceDetector:
    """See `NamedModel.detector`."""
    from transformers import AutoModelForObjectDetection, AutoModelForZeroShotObjectDetection

    config = _detector_config(model)
    processor = _processor(model, config)
    zero_shot = config.model_type in _ZERO_SHOT
    if zero_shot:
        _check_queries(model, config, processor)
    auto_class = AutoModelForZeroShotObjectDetection if zero_shot else AutoModelForObjectDetection
    return HuggingFaceDetector(model, processor, load_network(model, auto_class, device), device)


class HuggingFaceDetector:
    """A `DetectionModel` of transformers.

    Args:
        processor: of images; of a zero-shot detector of images and texts.
        network: on the device, for evaluation.
    """

    describes_boxes = False

    def __init__(self, model: NamedModel, processor: Any, network: Any, device: str) -> None:
        self.model, self.processor, self.network, self.device = model, processor, network, torch.device(device)
        config = network.config
        self.family: str = config.model_type
        self.has_distribution = self.family in _SOFTMAX
        rows = torch.arange(len(model.queries)) if self.family in _ZERO_SHOT else _classes(config)[0]
        self.rows, self.num_classes = rows.to(device), int((rows >= 0).sum())
        if model.class_names is not None and len(model.class_names) != self.num_classes:
            names = len(model.class_names)
            raise ValueError(f"{model.name}: has {self.num_classes} classes; {names} names were given for them")
        if self.family in _OMDET:
            # Texts that fall out of the cache would be computed anew beside others, and then round otherwise.
            network.language_cache_class.capacity = max(network.language_cache_class.capacity, self.num_classes)
        sizes = config.text_config if self.family in _OWL else config
        self.feature_dim = int(getattr(sizes, _WIDTHS.get(self.family, "d_model")))
        self._settings = json_digest(read_json(model_folder(model) / "config.json", model.name))
        self._weights = digest_of(network.state_dict().values())

    def describe(self) -> dict[str, Any]:
        """See `DetectionModel.describe`."""
        rules = image_processor(self.processor).to_dict()
        queries = list(self.model.queries)
        tokens = {"tokens": json_digest(self.processor.tokenizer(queries)["input_ids"])} if queries else {}
        return {
            "name": f"hf:{self.family}",
            "weights": self._weights,
            "settings": self._settings,
            "processor": {
                "class": type(image_processor(self.processor)).__name__,
                **{name: rules[name] for name in _INPUT_RULES if rules.get(name) is not None},
            },
            "threshold": _KEEPS_ALL,
            "nms_threshold": _NMS if self.family in _OMDET else None,
            "vector": "class embedding of the patch" if self.family in _OWL else "last state of the query",
            "queries": queries,
            **tokens,
        }

    def __call__(self, photo: np.ndarray) -> Detections:
        """See `DetectionModel.__call__`."""
        # The processors of both kinds take one list of queries for each photo.
        texts = {"text": [list(self.model.queries)]} if self.family in _ZERO_SHOT else {}
        try:
            inputs = self.processor(images=[photo], **texts, **_OPTIONS)
        except ValueError:  # settings were tried: a side would have no pixel
            height, width = photo.shape[:2]
            raise ValueError(f"{self.model.name}: a photo of {width} x {height} pixels is too narrow for it") from None
        states = {"output_hidden_states": True} if self.family in _OMDET else {}
        outputs = self.network(**inputs.to(self.device), **states)
        boxes, scores, labels, queries = self._post_processed(outputs, photo.shape[:2])
        if self.family in _GROUNDED:
            labels = self._query_of_tokens(outputs.logits[0].float(), inputs["input_ids"][0])[queries]
        class_ids = self.rows[labels]
        kept = class_ids >= 0
        probabilities = self._probabilities(outputs.logits[0])[queries][kept] if self.has_distribution else None
        vectors = self._states(outputs)[queries][kept].float()
        return Detections(boxes[kept], scores[kept], class_ids[kept], vectors, probabilities)

    def _post_processed(self, outputs: Any, image_hw: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Boxes, scores, classes as the network counts them, and from which query of the network each came."""
        omdet = self.family in _OMDET
        logits = (outputs.decoder_class_logits if omdet else outputs.logits).float()
        boxes = (outputs.decoder_coord_logits if omdet else outputs.pred_boxes).float()
        # The post-processing sorts and chooses, and drops the number of the query: so it is run on boxes that are
        # these numbers too.
        count = boxes.shape[1]
        numbers = torch.zeros_like(boxes)
        numbers[..., :2] = (torch.arange(count, device=boxes.device) / count)[None, :, None]
        part = self.processor if omdet else image_processor(self.processor)
        whole = part.post_process_grounded_object_detection if omdet else part.post_process_object_detection
        names = ("decoder_class_logits", "decoder_coord_logits") if omdet else ("logits", "pred_boxes")

        def processed(boxes: Tensor, size: tuple[int, int], **options: float) -> dict[str, Tensor]:
            made = SimpleNamespace(**dict(zip(names, (logits, boxes), strict=True)))
            made.classes_structure = [self.num_classes]
            found: dict[str, Tensor] = whole(made, threshold=_KEEPS_ALL, target_sizes=[size], **options)[0]
            return found

        options, usual = ({"nms_threshold": _NO_NMS}, {"nms_threshold": _NMS}) if omdet else ({}, {})
        found = processed(boxes, image_hw, **usual)
        queries = processed(numbers, (count, count), **options)["boxes"][:, 0].round().long()
        if omdet:  # its suppression looks at boxes: rows that it left are found again among all, which have one order
            every = processed(boxes, image_hw, **options)
            same = (found["boxes"][:, None] == every["boxes"]).all(dim=2)
            for name in ("scores", "labels"):
                same &= found[name][:, None] == every[name]
            queries = queries[same.int().argmax(dim=1)]
        return found["boxes"], found["scores"], found["labels"], queries

    def _states(self, outputs: Any) -> Tensor:
        """(queries, D): what the class head read."""
        if self.family in _OWL:
            states = outputs.class_embeds
        elif self.family in _GROUNDED:
            states = outputs.intermediate_hidden_states[:, -1]
        else:
            states = outputs.decoder_hidden_states[-1] if self.family in _OMDET else outputs.last_hidden_state
        # The states of YOLOS are of all patches too; its queries are the last.
        queries = len(outputs.logits[0]) if self.family == "yolos" else states.shape[1]
        found: Tensor = states[0, -queries:]
        return found

    def _probabilities(self, logits: Tensor) -> Tensor:
        """(queries, C + 1): softmax; placeholders are no object too."""
        odds = logits.float().softmax(dim=1)
        places = torch.cat([self.rows, self.rows.new_tensor([-1])])
        places = torch.where(places < 0, self.num_classes, places)
        return odds.new_zeros(len(odds), self.num_classes + 1).index_add_(1, places, odds)

    def _query_of_tokens(self, logits: Tensor, token_ids: Tensor) -> Tensor:
        """(queries of the network,): the query of the user with the likeliest token; separators are of none.

        The score stays that of the likeliest token of all, as the post-processing gives it.
        """
        owners = _owners(token_ids, self.processor.tokenizer)
        tokens = logits[:, : len(owners)].masked_fill(owners < 0, -torch.inf)
        return owners[tokens.argmax(dim=1)]


def image_processor(processor: Any) -> Any:
    """The part of a processor that is of images."""
    return getattr(processor, "image_processor", processor)


def _owners(token_ids: Tensor, tokenizer: Any) -> Tensor:
    """The query of each token of "[CLS] a query . another . [SEP]"; -1 of a dot and of the two ends."""
    dots = token_ids == tokenizer.convert_tokens_to_ids(".")
    owners = (dots.cumsum(dim=0) - dots.long()).masked_fill(dots, -1)
    owners[[0, -1]] = -1
    return owners


def _detector_config(model: NamedModel) -> Any:
    config = read_config(model)
    family = config.model_type
    if family not in (*_SOFTMAX, *_SIGMOID, *_ZERO_SHOT):
        known = ", ".join(sorted((*_SOFTMAX, *_SIGMOID, *_ZERO_SHOT)))
        raise ValueError(f"{model.name}: {printable(family)} is no detector that is known here; known are {known}")
    if model.queries and family not in _ZERO_SHOT:
        raise ValueError(f"{model.name}: {family} has its own classes and takes no --queries; leave them out")
    if not model.queries and family in _ZERO_SHOT:
        raise ValueError(f"{model.name}: {family} looks for what --queries names; give a file, a query a line")
    return config


def _classes(config: Any) -> tuple[Tensor, tuple[str, ...] | None]:
    """The row of each of a config's labels among the classes, -1 for a placeholder; and the names of the classes."""
    labels = [str(config.id2label.get(label, f"LABEL_{label}")).strip() for label in range(config.num_labels)]
    if all(label == f"LABEL_{at}" for at, label in enumerate(labels)):
        return torch.arange(len(labels)), None
    real = torch.tensor([label.lower() not in _PLACEHOLDERS for label in labels])
    rows = torch.where(real, real.cumsum(0) - 1, -1)
    return rows, tuple(label for label, is_real in zip(labels, real.tolist(), strict=True) if is_real)


def _processor(model: NamedModel, config: Any) -> Any:
    """The processor of the folder, with the user's longest side."""
    from transformers import PROCESSOR_MAPPING, AutoImageProcessor, AutoTokenizer
    from transformers.image_utils import SizeDict

    folder = {"pretrained_model_name_or_path": model_folder(model), "local_files_only": True}
    with inside_transformers(model):
        processor = images = AutoImageProcessor.from_pretrained(
            **folder, trust_remote_code=False, backend="torchvision"
        )
        if config.model_type in _ZERO_SHOT:  # `AutoProcessor` fetches audio tokenizers that settings name
            tokenizer = AutoTokenizer.from_pretrained(**folder, trust_remote_code=False)
            kinds: Any = PROCESSOR_MAPPING
            processor = kinds[type(config)](images, tokenizer)
    if not hasattr(images, "post_process_object_detection"):
        what = f"no processor of a {config.model_type}; expected its own preprocessor_config.json"
        raise ValueError(f"{model.name}: {type(images).__name__} is {what}")
    rules = images.to_dict()
    if rules.get("do_center_crop"):
        raise ValueError(f"{model.name}: its processor cuts out the middle of a photo, and boxes are of the whole")
    size = rules.get("size") or {}
    if model.longest_side and not size.get("longest_edge"):
        raise ValueError(f"{model.name}: its input is of one size, {size}; leave the longest side out")
    # Some have a longest edge alone, which the resizing of transformers does not take.
    if longest := model.longest_side or (0 if size.get("shortest_edge") else size.get("longest_edge", 0)):
        images.size = SizeDict(shortest_edge=longest, longest_edge=longest)
        size = {"longest_edge": longest}
    for name, sides in (("size", size), ("pad_size", rules.get("pad_size") or {})):
        for side, pixels in sides.items():
            if not isinstance(pixels, int) or not 0 < pixels <= _MOST_PIXELS:
                got = printable(str(pixels))
                raise ValueError(f"{model.name}: {name} has {side} {got}; expected 1 to {_MOST_PIXELS} pixels")
    with inside_transformers(model):
        images(images=[np.zeros((2, 3, 3), np.uint8)], **_OPTIONS)
    return processor


def _check_queries(model: NamedModel, config: Any, processor: Any) -> None:
    """Refuses queries of which a tokenizer or network would cut something off.

    Raises:
        ValueError: with the number that fits.
    """
    tokenizer, queries, family = processor.tokenizer, model.queries, config.model_type
    if len(tokenizer) > config.text_config.vocab_size:
        known = config.text_config.vocab_size
        raise ValueError(f"{model.name}: its tokenizer has {len(tokenizer)} tokens, its network {known}")

    def length(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    limit = min(config.text_config.max_position_embeddings, tokenizer.model_max_length)
    joined: Callable[[tuple[str, ...]], str] | None = None  # as the processor does it
    if family in _GROUNDED:
        limit = min(limit, config.max_text_len)
        if dotted := next((query for query in queries if "." in query), None):
            raise ValueError(f"{model.name}: query {printable(dotted)!r}: a dot ends a query of {family}; leave it out")
        joined = lambda some: ". ".join(query.strip().lower() for query in some) + "."  # noqa: E731
    elif family in _OMDET:
        limit = min(limit, processor.text_kwargs["max_length"])
        joined = lambda some: f"Detect {', '.join(some)}."  # noqa: E731
    for query in queries:
        if set(tokenizer(query)["input_ids"]) <= set(tokenizer.all_special_ids):  # all, if a tokenizer lacks its file
            raise ValueError(f"{model.name}: query {printable(query)!r} has no word that its tokenizer knows")
        if (tokens := length(joined((query,)) if joined else query)) > limit:
            raise ValueError(f"{model.name}: query {printable(query)!r} has {tokens} tokens; at most {limit} fit")
    if joined is not None and (tokens := length(joined(queries))) > limit:
        fitting = next(n for n in range(min(len(queries), limit), 0, -1) if length(joined(queries[:n])) <= limit)
        much = f"{len(queries)} queries have {tokens} tokens as one text, of which {limit} fit"
        raise ValueError(f"{model.name}: {much}; give the first {fitting}, or shorter ones")
