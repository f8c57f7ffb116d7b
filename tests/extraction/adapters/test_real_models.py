"""Two real networks on real photos, by the plug-ins of examples/real_photos: things are found, and alike is near."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torchvision.ops import box_convert, box_iou

from roibeam.extraction.adapters.any_detector import BackboneDetector, build_any_detector, cut_out
from roibeam.extraction.network.conventions import DETECTIONS, SELECTIONS
from roibeam.extraction.regions import Regions
from roibeam.extraction.weights.named_model import NamedModel

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[3]
PLUG_INS = REPOSITORY / "examples" / "real_photos"
GOOD = replace(SELECTIONS[DETECTIONS], min_score=0.45, min_regions=0)


@pytest.fixture(scope="module")
def names() -> tuple[str, ...]:
    if not any((REPOSITORY / "build" / "real-models").glob("*.pth")):
        pytest.skip("needs the weights that `make real-models` fetches")
    found = NamedModel(f"python:{PLUG_INS}/centernet.py:detect").opened().names()
    assert found is not None and found[80:] == ("photo", "cell")
    return found


@pytest.fixture(scope="module")
def detector(names: tuple[str, ...]) -> BackboneDetector:
    torch.set_num_threads(1)
    boxes = NamedModel(f"python:{PLUG_INS}/centernet.py:detect").opened()
    vectors = NamedModel(f"python:{PLUG_INS}/efficientnet_lite0.py:describe").opened()
    found = build_any_detector(boxes, vectors, GOOD)
    assert isinstance(found, BackboneDetector)
    return found


@pytest.fixture(scope="module")
def photos(shared_data: Path) -> dict[str, np.ndarray]:
    """The last six digits of a photo -> B, G, R."""
    paths = sorted((shared_data / "images").glob("COCO_train2014_*.jpg"))
    return {path.stem[-6:]: np.asarray(cv2.imread(str(path))) for path in paths}


@pytest.fixture(scope="module")
def regions(photos: dict[str, np.ndarray], detector: BackboneDetector) -> dict[str, Regions]:
    return {name: detector([photo])[0] for name, photo in photos.items()}


def test_things_are_found_where_people_drew_them(
    names: tuple[str, ...], regions: dict[str, Regions], shared_data: Path
) -> None:
    """Beside the annotations of COCO."""
    truth = json.loads((shared_data / "coco" / "instances_train2014.json").read_text())
    assert [each["name"] for each in truth["categories"]] == list(names[:80])
    row = {each["id"]: at for at, each in enumerate(truth["categories"])}
    best = {}
    for each in truth["annotations"]:
        found = regions[f"{each['image_id']:06}"]
        boxes = torch.from_numpy(found.boxes[found.class_ids == row[each["category_id"]]])
        drawn = box_convert(torch.tensor([each["bbox"]]), "xywh", "xyxy")
        name = f"{names[row[each['category_id']]]} of {each['image_id']}"
        best.setdefault(name, []).append(float(box_iou(drawn, boxes).max()) if len(boxes) else 0.0)
    for name in ("bus of 466547", "giraffe of 163497", "tv of 215657", "keyboard of 215657"):
        assert max(best[name]) > 0.8, name
    assert sum(overlap > 0.7 for overlap in best["person of 790"]) == 3
    people = [photo for photo, found in regions.items() if names.index("person") in found.class_ids]
    assert {"000790", "131486", "207647", "306661", "494628", "578174"} <= set(people)


def test_the_nearest_vector_of_another_photo_is_of_a_like_thing(
    names: tuple[str, ...], regions: dict[str, Regions]
) -> None:
    photo = np.concatenate([[name] * len(found.boxes) for name, found in regions.items()])
    thing = np.concatenate([[names[row] for row in found.class_ids] for found in regions.values()])
    vectors = np.concatenate([found.features for found in regions.values()])
    assert vectors.shape[1] == 1280
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def nearest(at: int) -> tuple[str, str, float]:
        cosines = np.where(photo == photo[at], -1, vectors @ vectors[at])
        best = int(cosines.argmax())
        return photo[best], thing[best], float(cosines[best])

    (bus,) = np.flatnonzero((photo == "466547") & (thing == "bus"))
    assert nearest(bus)[:2] == ("387267", "truck") and nearest(bus)[2] > 0.25
    people = np.flatnonzero((photo == "000790") & (thing == "person"))
    assert len(people) == 3 and all(nearest(at)[:2] == ("306661", "person") for at in people)
    assert max(nearest(at)[2] for at in people) > 0.33


def test_a_photo_twice_as_large_has_the_same_boxes_within_a_hundredth(
    photos: dict[str, np.ndarray], detector: BackboneDetector, regions: dict[str, Regions]
) -> None:
    for name in ("466547", "215657"):
        (found,) = detector([cv2.resize(photos[name], None, fx=2, fy=2, interpolation=cv2.INTER_LINEAR)])
        first = regions[name]
        assert found.class_ids.tolist() == first.class_ids.tolist()
        sides = np.tile(photos[name].shape[1::-1], 2)
        assert (np.abs(found.boxes / 2 - first.boxes) < 0.01 * sides).all()


def test_a_vector_of_a_crop_is_that_of_the_photo_cut_to_it(
    photos: dict[str, np.ndarray], detector: BackboneDetector, regions: dict[str, Regions]
) -> None:
    """Bit for bit, whatever lies beside it."""
    model = NamedModel(f"python:{PLUG_INS}/efficientnet_lite0.py:describe", pool="crop").opened()
    backbone = build_any_detector(None, model, GOOD)
    photo, boxes = photos["466547"], regions["466547"].boxes
    together, alone = backbone([photo, photo], boxes=[boxes, boxes[:1]])
    (cut,) = backbone([cut_out(photo, boxes[0])], boxes=[np.float32([[0, 0, 1e6, 1e6]])])
    assert (together.features[0] == alone.features[0]).all() and (cut.features[0] == alone.features[0]).all()


def test_a_record_names_files_by_their_text_alone(detector: BackboneDetector) -> None:
    assert str(REPOSITORY) not in str(detector.describe()) and "centernet.py" not in str(detector.describe())
