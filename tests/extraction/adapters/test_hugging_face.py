"""Files and backbones of Hugging Face transformers, beside the bare library on small random networks."""

import inspect
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import transformers as t
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from roibeam.extraction.adapters.any_detector import RegionBackbone, arithmetic
from roibeam.extraction.adapters.hugging_face import load_network
from roibeam.extraction.weights.named_model import NamedModel

SIDES = {"image_size": 32, "patch_size": 8}
NARROW = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
PLAIN = {**NARROW, **SIDES}
PATCH_14 = {**NARROW, "image_size": 42, "patch_size": 14}
TEXT = {**NARROW, "vocab_size": 64, "max_position_embeddings": 16}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
WINDOWS = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "image_size": 32, "patch_size": 4}
NARROW_ALIGN = {"width_coefficient": 0.2, "depth_coefficient": 0.2, "hidden_dim": 32}


def towers(config: Any, **more: Any) -> Any:
    return config(text_config=TEXT, vision_config=PLAIN, **more)


# A network, its processor, and the tokens that stand before those of patches; None for maps.
CLIP = t.CLIPImageProcessor
FAMILIES: dict[str, tuple[Any, Any, int | None]] = {
    "clip": (lambda: towers(t.CLIPConfig, projection_dim=8), CLIP, 1),
    "clip_vision_model": (lambda: t.CLIPVisionConfig(**PLAIN), CLIP, 1),
    "siglip": (lambda: towers(t.SiglipConfig), t.SiglipImageProcessor, 0),
    "blip": (
        lambda: t.BlipConfig(
            text_config={**TEXT, "encoder_hidden_size": 16},
            vision_config=PLAIN,
            projection_dim=8,
            image_text_hidden_size=8,
        ),
        t.BlipImageProcessor,
        1,
    ),
    "align": (
        lambda: t.AlignConfig(text_config=TEXT, vision_config=NARROW_ALIGN, projection_dim=8),
        t.EfficientNetImageProcessor,
        None,
    ),
    "dinov2": (lambda: t.Dinov2Config(**PATCH_14), t.BitImageProcessor, 1),
    "dinov2_with_registers": (
        lambda: t.Dinov2WithRegistersConfig(**PATCH_14, num_register_tokens=4),
        t.BitImageProcessor,
        5,
    ),
    "dinov3_vit": (lambda: t.DINOv3ViTConfig(**PLAIN, num_register_tokens=3), t.DINOv3ViTImageProcessor, 4),
    "dinov3_convnext": (lambda: t.DINOv3ConvNextConfig(**STAGES), t.DINOv3ViTImageProcessor, 1),
    "vit": (lambda: t.ViTConfig(**PLAIN), t.ViTImageProcessor, 1),
    "deit": (lambda: t.DeiTConfig(**PLAIN), t.DeiTImageProcessor, 2),
    "beit": (lambda: t.BeitConfig(**PLAIN, use_relative_position_bias=True), t.BeitImageProcessor, 1),
    "swin": (lambda: t.SwinConfig(**WINDOWS), t.ViTImageProcessor, 0),
    "convnextv2": (lambda: t.ConvNextV2Config(**STAGES), t.ConvNextImageProcessor, None),
    "resnet": (lambda: t.ResNetConfig(**STAGES, embedding_size=8), t.ConvNextImageProcessor, None),
    "ijepa": (lambda: t.IJepaConfig(**PLAIN), t.ViTImageProcessor, 0),
    "aimv2_vision_model": (lambda: t.Aimv2VisionConfig(**PLAIN), CLIP, 0),
}
PATCHES = [name for name, (config, _, special) in FAMILIES.items() if special is not None and "conv" not in name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Name of a family -> a folder with a small random network of it; read only."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            config, processor, _ = FAMILIES[name]
            torch.manual_seed(len(name))
            network = t.AutoModel.from_config(config()).eval()
            with torch.no_grad():
                for value in network.parameters():
                    value.add_(torch.randn_like(value) * 0.05)  # positions and layer scales begin as zeros
            made[name] = tmp_path_factory.mktemp(name)
            network.save_pretrained(made[name])
            processor().save_pretrained(made[name])
        return made[name]

    return make


@pytest.fixture
def own(folder: Any, tmp_path: Path) -> Path:
    """A folder of a ViT that a test may change."""
    return Path(shutil.copytree(folder("vit"), tmp_path / "vit"))


def opened(where: Path, part: str = "tokens", **more: Any) -> NamedModel:
    return NamedModel(f"hf:{where}#{part}", **more).opened()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def bare(where: Path, pictures: Any, height: int, width: int, *, projection: bool = False, **more: Any) -> Any:
    """Outputs of the library alone, for whole pictures that are resized to these sides."""
    network, processor = t.AutoModel.from_pretrained(where), t.AutoImageProcessor.from_pretrained(where)
    size = {"height": height, "width": width}
    if isinstance(processor, t.ConvNextImageProcessor):  # its own resizing cuts the middle out
        processor.resize = lambda image, size, *_, **__: super(t.ConvNextImageProcessor, processor).resize(
            image, t.image_utils.SizeDict(height=height, width=width), processor.resample
        )
    run = network.get_image_features if projection else getattr(network, "vision_model", network).forward
    if "interpolate_pos_encoding" in inspect.signature(run).parameters:
        more["interpolate_pos_encoding"] = True
    options = {"do_center_crop": False, "size": size, "input_data_format": "channels_last", "return_tensors": "pt"}
    with torch.no_grad():
        return run(**processor(images=pictures, **options), **more)


def map_of(tokens: torch.Tensor, special: int | None, rows: int, columns: int) -> torch.Tensor:
    """(n, C, rows, columns)."""
    if tokens.dim() == 4:
        return tokens
    assert tokens.shape[1] == special + rows * columns
    return tokens[:, special:].reshape(len(tokens), rows, columns, -1).permute(0, 3, 1, 2)


def strides(name: str) -> tuple[int, int]:
    """Pixels of a cell, and the longest side of a photo by default."""
    return {"vit": (8, 32), "dinov2": (14, 42), "swin": (8, 800)}.get(
        "dinov2" if "dinov2" in name else "vit" if name in PATCHES and name != "swin" else name, (32, 800)
    )


@pytest.mark.parametrize("container", ["safetensors", "shards", "bin", "bin shards"])
@pytest.mark.parametrize("name", ["clip", "resnet", "swin"])
def test_networks_equal_those_of_the_library_tensor_by_tensor(folder, tmp_path, name, container):
    expected = t.AutoModel.from_pretrained(folder(name))
    state = expected.state_dict()
    if "bin" in container:
        expected.config.save_pretrained(tmp_path)
        halves = [dict(list(state.items())[i::2]) for i in range(2)] if "shards" in container else [state]
        files = ["a-1.bin", "b-2.bin"] if "shards" in container else ["pytorch_model.bin"]
        for file, part in zip(files, halves, strict=True):
            torch.save(part, tmp_path / file)
        index = {name: file for file, part in zip(files, halves, strict=True) for name in part}
        if "shards" in container:
            (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    else:
        expected.save_pretrained(tmp_path, max_shard_size="15KB" if container == "shards" else "1GB")
        assert (tmp_path / "model.safetensors.index.json").exists() == (container == "shards")
    network = load_network(opened(tmp_path), t.AutoModel, "cpu")
    found = network.state_dict()
    assert type(network) is type(expected) and not network.training and list(found) == list(state)
    assert all(torch.equal(found[name], value) for name, value in state.items())


@pytest.mark.parametrize("longest", [0, 64])
@pytest.mark.parametrize("name", FAMILIES)
def test_maps_equal_the_tokens_of_the_library(folder, name, longest):
    """A photo that is no square: rows and columns, special tokens and positions would show."""
    stride, usual = strides(name)
    if name == "aimv2_vision_model" and longest:
        with pytest.raises(ValueError, match="takes photos of 32 x 32 pixels alone; leave longest_side out"):
            opened(folder(name), longest_side=longest).backbone("cpu", "exact")
        return
    photo, side = noise(45, 90), longest or usual
    height, width = (max(1, round(part * side / 90 / stride)) * stride for part in (45, 90))
    if name == "aimv2_vision_model":
        height, width = 32, 32  # it cannot place other shapes
    backbone = opened(folder(name), longest_side=longest).backbone("cpu", "exact")
    with arithmetic(torch.device("cpu"), "exact"):
        found = backbone.feature_map(photo)
    rows, columns = height // stride, width // stride
    tokens = bare(folder(name), [photo], height, width).last_hidden_state
    torch.testing.assert_close(found.values, map_of(tokens, FAMILIES[name][2], rows, columns), rtol=1e-4, atol=1e-5)
    assert found.scale == (columns / 90, rows / 45) and found.offset == (0, 0)
    assert backbone.pools == ("roi", "crop") and backbone.feature_dim == found.values.shape[1]


@pytest.mark.parametrize("layer", [1, -2, 0])
@pytest.mark.parametrize("name", ["deit", "dinov3_vit", "clip", "swin", "convnextv2", "dinov3_convnext"])
def test_layers_are_hidden_states(folder, name, layer):
    backbone = opened(folder(name), f"tokens:{layer}", longest_side=64).backbone("cpu", "exact")
    found = backbone.feature_map(noise(64, 64))
    outputs = bare(folder(name), [noise(64, 64)], 64, 64, output_hidden_states=True)
    state = outputs.hidden_states[layer]
    rows = found.values.shape[2]
    expected = map_of(state, FAMILIES[name][2], rows, rows)
    torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-5)
    assert found.scale == (rows / 64, rows / 64)
    assert backbone.describe("roi")["layer"] == layer % len(outputs.hidden_states)


@pytest.mark.parametrize("name", PATCHES)
def test_a_cell_of_the_map_is_where_its_patch_is(folder, name):
    """Before the first layer a token knows one patch."""
    side = SIDES["image_size"] if "dinov2" not in name else 42
    backbone = opened(folder(name), "tokens:0", longest_side=side).backbone("cpu", "exact")
    cell, photo = backbone.feature_map(np.zeros((side, side, 3), np.uint8)), np.zeros((side, side, 3), np.uint8)
    rows = cell.values.shape[2]
    patch = side // rows
    photo[patch : 2 * patch, 2 * patch : 3 * patch] = 255
    moved = (backbone.feature_map(photo).values - cell.values).abs().sum(dim=1)[0]
    assert moved.nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("part", ["pooled", "projection", "tokens"])
@pytest.mark.parametrize("name", FAMILIES)
def test_crops_equal_the_bare_network_on_the_cut_photo(folder, name, part):
    """Whole and in their order; of three rows too, which could be taken for three channels."""
    where, (_, _, special) = folder(name), FAMILIES[name]
    if part == "projection" and name not in ("clip", "siglip", "blip", "align"):
        with pytest.raises(ValueError, match="has no projection; take #pooled"):
            opened(where, part).backbone("cpu", "exact")
        return
    fixed = name == "aimv2_vision_model"
    backbone = opened(where, part, longest_side=0 if fixed else 64).backbone("cpu", "exact")
    assert ("roi" in backbone.pools) == (part == "tokens")
    crops = [noise(3, 41), noise(30, 17), noise(1, 1), noise(90, 60, seed=1)]
    stride = strides(name)[0]
    side = 32 if fixed else 70 if stride == 14 else 64
    outputs = bare(where, crops, side, side, projection=part == "projection")
    pooled = outputs.get("pooler_output")
    if part == "tokens" or pooled is None:  # of I-JEPA, without a class token, the mean
        pooled = map_of(outputs.last_hidden_state, special, side // stride, side // stride).mean(dim=(2, 3))
    torch.testing.assert_close(backbone.crop_vectors(crops), pooled.flatten(1), rtol=1e-4, atol=1e-5)
    assert backbone.feature_dim == pooled.shape[1]


def test_crops_have_the_sides_of_the_processor_and_photos_those_of_the_positions(folder):
    """DINOv2's processor gives 224 pixels, its positions are of 518: here of 42."""
    backbone = opened(folder("dinov2")).backbone("cpu", "exact")
    inputs = {pool: backbone.describe(pool)["input"] for pool in backbone.pools}
    assert inputs == {"roi": {"longest_side": 42, "multiple_of": 14}, "crop": {"sides": [224, 224]}}


def test_siglip_2_takes_patches_of_any_shape(tmp_path):
    """Beside its own processor, whose rows of patches are the photo's at a size that it does not change."""
    vision = {**NARROW, "patch_size": 8, "num_patches": 16}
    network = t.AutoModel.from_config(t.Siglip2Config(text_config=TEXT, vision_config=vision)).eval()
    network.save_pretrained(tmp_path)
    processor = t.Siglip2ImageProcessor(patch_size=8, max_num_patches=8)
    processor.save_pretrained(tmp_path)
    photo = noise(16, 32)
    with torch.no_grad():
        expected = network.vision_model(**processor(images=photo, return_tensors="pt")).last_hidden_state
    found = opened(tmp_path, longest_side=32).backbone("cpu", "exact").feature_map(photo).values
    torch.testing.assert_close(found, map_of(expected, 0, 2, 4), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", ["roi", "crop"])
def test_a_vector_depends_on_its_box_alone(folder, pool):
    """Moved with its content (by whole cells of a layer that sees no further), beside others, after other photos."""
    model = opened(folder("convnextv2"), "tokens:0", longest_side=128)
    region = RegionBackbone(model.backbone("cpu", "exact"), pool, model.name)
    photo = np.full((128, 128, 3), 90, np.uint8)
    photo[16:48, 32:80] = cv2.resize(noise(4, 6), (48, 32), interpolation=cv2.INTER_CUBIC)
    box = torch.tensor([[32.0, 16.0, 80.0, 48.0]])
    moved = np.roll(photo, (32, 16), axis=(0, 1))
    found = region(photo, box)
    torch.testing.assert_close(region(moved, box + torch.tensor([16, 32, 16, 32])), found, rtol=1e-5, atol=1e-6)
    others = torch.cat([torch.rand(10, 4).sort(dim=1).values * 128, box])
    assert torch.equal(region(photo, others)[-1:], found) and torch.equal(region(photo, box), found)
    bigger = cv2.resize(photo, (256, 256), interpolation=cv2.INTER_CUBIC)
    doubled, elsewhere = (torch.cosine_similarity(region(bigger, boxes), found) for boxes in (box * 2, box))
    assert doubled > 0.995 > elsewhere


def test_descriptions_are_of_the_computation(folder, own, tmp_path):
    def described(where: Path, part: str = "tokens", **more: Any) -> dict[str, Any]:
        return opened(where, part, **more).backbone("cpu", "exact").describe("crop")

    here = described(own)
    assert here == described(folder("vit")) == json.loads(json.dumps(here)) and str(own) not in json.dumps(here)
    state = {name: value for name, value in load_file(own / "model.safetensors").items() if "pooler" not in name}
    save_file(state, own / "model.safetensors")
    assert described(own) == here  # nothing reads the pooler
    different = [described(own, "tokens:1"), described(own, longest_side=64), described(own, "pooled")]
    settings = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(settings | {"num_attention_heads": 4}))
    different.append(described(own))
    assert len({json.dumps(each) for each in [here, *different]}) == 5
    assert different[2]["vector"] == "class token" and described(folder("vit"), "pooled")["vector"] == "pooler"


def test_without_weights_of_its_pooler_a_network_gives_the_class_token(own):
    network = t.ViTForImageClassification.from_pretrained(own)
    network.save_pretrained(own)
    backbone = opened(own, "pooled", longest_side=32).backbone("cpu", "exact")
    expected = bare(own, [noise(32, 32)], 32, 32).last_hidden_state[:, 0]
    torch.testing.assert_close(backbone.crop_vectors([noise(32, 32)]), expected)


class Runs:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def changed(file: str, **settings: Any) -> Any:
    def change(where: Path) -> None:
        content = json.loads((where / file).read_text())
        (where / file).write_text(json.dumps(content | settings))

    return change


def weights(change: Any) -> Any:
    def write(where: Path) -> None:
        state = load_file(where / "model.safetensors")
        change(state)
        save_file(state, where / "model.safetensors")

    return write


def sharded(where: Path, **names: str) -> None:
    (where / "model.safetensors").rename(where.parent / "model.safetensors")
    (where / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def pickled(where: Path) -> None:
    (where / "model.safetensors").unlink()
    with (where / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"layernorm.weight": Runs()}, file)


HOSTILE: dict[str, tuple[Any, str]] = {
    "code": (changed("config.json", auto_map={"AutoModel": "a--b.C"}), r"config.json: auto_map .*refused"),
    "code of the processor": (
        changed("preprocessor_config.json", auto_map={"x": "y"}),
        "preprocessor_config.json: auto",
    ),
    "code of a part": (changed("config.json", a=[{"b": {"auto_map": {"x": "y"}}}]), "auto_map"),
    "kernels of a hub": (changed("config.json", _attn_implementation="a/b"), "_attn_implementation .*a/b.* is refused"),
    "packages": (changed("config.json", quantization_config={"quant_method": "x"}), "quantization_config"),
    "another repository": (changed("config.json", backbone="a/b"), "backbone .*a/b.* is refused"),
    "a repository by timm": (
        changed("config.json", backbone_config={"model_type": "timm_backbone", "backbone": "hf-hub:a/b"}),
        "backbone .*hf-hub:a/b.* is refused",
    ),
    "a folder by timm": (changed("config.json", model_type="detr", backbone="local-dir:b"), "local-dir:b.* is refused"),
    "settings for timm": (
        changed("config.json", vision_config={"model_type": "timm_wrapper"}),
        "timm_wrapper.*refused",
    ),
    "unknown": (changed("config.json", model_type="newest"), "model_type 'newest' is none that transformers knows"),
    "no type": (changed("config.json", model_type=None), "model_type None"),
    "a text model": (changed("config.json", model_type="bert", vocab_size=9), "missing|no network"),
    "no settings": (lambda where: (where / "config.json").unlink(), "config.json: expected a JSON file"),
    "no JSON": (lambda where: (where / "config.json").write_text("[" * 100_000), "config.json: is no JSON"),
    "a list": (lambda where: (where / "config.json").write_text("[]"), "expected a JSON object, got list"),
    "no weights": (lambda where: (where / "model.safetensors").unlink(), "has no weights; expected model.safetensors"),
    "cut off": (lambda where: (where / "model.safetensors").write_bytes(b"\0" * 9), "not a complete safetensors"),
    "a pickle that runs": (pickled, "pytorch_model.bin.*wants to run .*refused"),
    "shards outside": (lambda where: sharded(where, a="../model.safetensors"), "names '../model.safetensors'; it is"),
    "a missing shard": (lambda where: sharded(where, a="model-2.safetensors"), "names 'model-2.safetensors'; it is"),
    "missing": (weights(lambda state: state.pop("layernorm.bias")), "1 weights are missing, such as layernorm.bias"),
    "misshapen": (
        weights(lambda state: state.update({"layernorm.bias": torch.zeros(17)})),
        r"layernorm.bias has the shape \(17,\), the network \(16,\)",
    ),
    "not finite": (weights(lambda state: state["layernorm.bias"].fill_(np.nan)), "layernorm.bias has values that are"),
    "terabytes": (changed("config.json", intermediate_size=10**10), "its settings are of [0-9,]{15,} numbers, its"),
    "layers": (changed("config.json", num_hidden_layers=10**9), "num_hidden_layers 1000000000 is refused"),
    "many layers": (changed("config.json", num_hidden_layers=60_000), "more than [0-9,]+ modules for [0-9]+ weights"),
    "names": (changed("config.json", num_labels=10**9), "num_labels 1000000000 is refused"),
    "no heads": (changed("config.json", num_attention_heads=0), "its settings make no network that runs"),
    "huge photos": (changed("preprocessor_config.json", size={"height": 10**6, "width": 10**6}), "at most 8192 a side"),
    "strange numbers": (changed("preprocessor_config.json", image_mean=[1, 2]), "make no network that runs"),
    "no processor": (lambda where: (where / "preprocessor_config.json").unlink(), "has no preprocessor_config.json"),
}


@pytest.mark.parametrize("change, words", HOSTILE.values(), ids=HOSTILE)
def test_what_does_not_fit_is_refused_in_a_line(own, monkeypatch, change, words):
    monkeypatch.chdir(own.parent)
    change(own)
    with pytest.raises(ValueError, match=words) as error:
        opened(own).backbone("cpu", "exact")
    assert "\n" not in str(error.value) and not Path("ran").exists()


@pytest.mark.parametrize(
    "part, words", [("tokens:9", "hidden states 0 to 3"), ("tokens:x", "'x' is no layer"), ("pooled:1", "'1' is no")]
)
def test_layers_that_are_not_there(folder, part, words):
    with pytest.raises(ValueError, match=words):
        opened(folder("vit"), part).backbone("cpu", "exact")


def test_tokens_that_are_no_map_are_refused(folder, tmp_path, monkeypatch):
    """Patches left out by chance; or in the right number, after which special tokens come."""
    t.ViTMAEModel(t.ViTMAEConfig(**PLAIN)).save_pretrained(tmp_path)
    t.ViTImageProcessor().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tokens are no map of"):
        opened(tmp_path).backbone("cpu", "exact")
    embed = t.models.vit.modeling_vit.ViTEmbeddings.forward
    last = lambda *inputs, **options: embed(*inputs, **options).roll(-1, dims=1)  # noqa: E731
    monkeypatch.setattr(t.models.vit.modeling_vit.ViTEmbeddings, "forward", last)
    with pytest.raises(ValueError, match="tokens are no map of"):
        opened(folder("vit")).backbone("cpu", "exact")


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """A hub with the repository a/vit, without network: a list of what was asked, and its cache."""
    asked: list[Any] = []

    def download(repo: str, *, revision: str | None, allow_patterns: Any, ignore_patterns: Any) -> str:
        asked.append((repo, revision))
        if repo != "a/vit":
            raise errors.LocalEntryNotFoundError("offline")
        snapshot = tmp_path / "snapshots" / "c0ffee"
        names = ["model.py", "README.md", "onnx/config.json", *(path.name for path in folder("vit").iterdir())]
        for name in filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            snapshot.mkdir(parents=True, exist_ok=True)
            if name == "README.md":
                (snapshot / name).write_text("---\ntags: [x]\nlicense: apache-2.0\n---\nlicense: mit\n")
            else:
                shutil.copy(folder("vit") / name, snapshot / name)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked, tmp_path / "snapshots" / "c0ffee"


def test_a_repository_is_fetched_once_and_again_by_its_commit_where_it_is_not(hub, folder):
    asked, snapshot = hub
    model = NamedModel("hf:a/vit@main#tokens").opened()
    assert (model.revision, model.license, model.folder) == ("c0ffee", "apache-2.0", str(snapshot))
    assert sorted(path.name for path in snapshot.iterdir()) == [
        "README.md", "config.json", "model.safetensors", "preprocessor_config.json",
    ]  # fmt: skip
    first = model.backbone("cpu", "exact").describe("roi")
    assert asked == [("a/vit", "main")] and first["name"] == "hf:vit#tokens"
    assert first == opened(folder("vit")).backbone("cpu", "exact").describe("roi")  # a folder of the same files
    shutil.rmtree(snapshot)  # as on a worker
    assert model.backbone("cpu", "exact").describe("roi") == first
    assert set(asked[1:]) == {("a/vit", "c0ffee")}
    with pytest.raises(ValueError, match="there is no folder no; name one, or a repository"):
        NamedModel("hf:./no").opened()
    with pytest.raises(OSError, match="a/other: the hub cannot be reached and its cache does not hold it"):
        NamedModel("hf:a/other").opened()


@pytest.mark.parametrize(
    "card, expected",
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\nlicense:\n- cc-by-4.0\n---\n", "cc-by-4.0"),
        ('---\nlicense: "other"\nlicense_name: dinov3-license\n---\n', "dinov3-license"),
        ("---\nlicense: other\n---\n", "other"),
        ("license: mit\n", ""),
        ("", ""),
    ],
)
def test_licenses_are_those_of_the_card(own, card, expected):
    (own / "README.md").write_text(card)
    assert opened(own).license == expected
