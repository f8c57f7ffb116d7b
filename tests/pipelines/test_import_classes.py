"""`roibeam store import --num-classes | --vocab`: what the class ids of a file are of, and what a store keeps of it."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from small_files import write_text
from tiny_commands import Cli, ok, one_line, tiny_sizes

sys.path.append(str(Path(__file__).parents[1] / "features"))
from exchange_examples import measured

from roibeam.features.exchange.formats import FORMATS, format_named
from roibeam.features.record.fingerprint import has_classes, num_classes_of
from roibeam.features.store import FeatureStore
from roibeam.pipelines.extract.stores.store_import import import_features
from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedData, RequestedModel, RequestedTraining
from roibeam.pipelines.pretraining.requested_run import run_pretraining
from roibeam.pipelines.pretraining.systems import SYSTEMS

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("cat", "dog", "hat", "tree", "house", "ball")
RECORDS = [measured("first", 4), measured("second", 3, seed=5)]  # of six classes and four hundred attributes


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """With ids alone, without any, and with probabilities; and a vocabulary."""
    for layout in ("lxmert", "caffe", "caffe-cls-prob"):
        format_named("butd-tsv").write(RECORDS, tmp_path / f"{layout}.tsv", layout=layout)
    (tmp_path / "objects_vocab.txt").write_text("\n".join(NAMES))
    (tmp_path / "attributes_vocab.txt").write_text("".join(f"kind{number}\n" for number in range(400)))
    found = {layout: tmp_path / f"{layout}.tsv" for layout in ("lxmert", "caffe", "caffe-cls-prob")}
    return {**found, "vocab": tmp_path, "names": tmp_path / "objects_vocab.txt"}


def facts(roibeam: Cli, store: Path) -> dict[str, str]:
    """The rows of `store info`."""
    rows = roibeam("store", "info", store).out.splitlines()[1:]
    return {name.strip(): value.strip() for name, _, value in (row[2:].partition("  ") for row in rows)}


def test_a_number_stays_with_the_store_and_its_copies(roibeam: Cli, files: dict[str, Path], tmp_path: Path) -> None:
    plain = roibeam("store", "import", files["lxmert"], tmp_path / "plain")
    assert "note: the file does not record the number of classes of its detector" in plain.out
    assert facts(roibeam, tmp_path / "plain")["classes"].endswith("from objects_id; how many there are is not known")
    largest = largest_id()
    short = roibeam("store", "import", files["lxmert"], tmp_path / "store", "--num-classes", largest)
    assert f"has class {largest}, but by --num-classes {largest} ids are 0..{largest - 1};" in one_line(short)
    done = ok(roibeam("store", "import", files["lxmert"], tmp_path / "store", "--num-classes", 6))
    assert "note:" not in done.out
    ok(roibeam("store", "copy", tmp_path / "store", tmp_path / "copy"))
    for name in ("store", "copy"):
        assert facts(roibeam, tmp_path / name)["classes"] == "6, ids only, from objects_id"
    # The records are the same: only what is said of them differs.
    digests = {FeatureStore(tmp_path / name).manifest.content_digest for name in ("plain", "store", "copy")}
    assert len(digests) == 1
    other = roibeam("store", "import", files["lxmert"], tmp_path / "store", "--num-classes", 7)
    assert "is another store already" in one_line(other)


def test_names_stay_with_the_store_and_its_copies(roibeam: Cli, files: dict[str, Path], tmp_path: Path) -> None:
    assert roibeam("store", "import", files["lxmert"], tmp_path / "store", "--vocab", files["vocab"]).code == 0
    assert roibeam("store", "copy", tmp_path / "store", tmp_path / "copy").code == 0
    for name in ("store", "copy"):
        with FeatureStore(tmp_path / name) as store:
            assert store.manifest.classes == NAMES and num_classes_of(store.fingerprint) == 6
        told = facts(roibeam, tmp_path / name)
        assert told["classes"] == "6: cat, dog, hat, tree, ... ids from objects_id"
        assert told["attributes"] == "400: kind0, kind1, kind2, kind3, ... ids from attrs_id"
    shown = json.loads(roibeam("store", "show", tmp_path / "store", "first", "--json").out)["regions"]
    assert {region["class"] for region in shown} <= set(NAMES)
    # A list of class names alone, for a file that has its number: attributes stay numbers.
    ok(roibeam("store", "import", files["caffe-cls-prob"], tmp_path / "named", "--vocab", files["names"]))
    assert FeatureStore(tmp_path / "named").manifest.attributes is None


@pytest.mark.parametrize(
    ("layout", "options", "words"),
    [
        ("lxmert", ("--num-classes", 6, "--vocab", "{vocab}"), "gives the number of classes; leave one out"),
        ("lxmert", ("--num-classes", 70000), "must be in 1..65535, background not counted"),
        ("lxmert", ("--num-classes", 2), "but by --num-classes 2 ids are 0..1; give the number or the list"),
        ("lxmert", ("--vocab", "{short}"), "ids are 0..1; give the number or the list of the detector"),
        ("lxmert", ("--vocab", "{few}"), "has attribute"),
        ("caffe", ("--num-classes", 6), "(layout caffe) has no class ids; leave the option out"),
        ("caffe", ("--vocab", "{names}"), "(layout caffe) has no class ids; leave the option out"),
        ("caffe-cls-prob", ("--num-classes", 7), "has probabilities of 6 classes and background; leave"),
        ("caffe-cls-prob", ("--vocab", "{short}"), "2 classes, but the detector has 6"),
    ],
)
def test_what_does_not_fit_the_file_is_one_clear_line(
    roibeam: Cli, files: dict[str, Path], tmp_path: Path, layout: str, options: tuple[object, ...], words: str
) -> None:
    write_text(tmp_path / "short.txt", "cat\ndog\n")
    write_text(tmp_path / "few" / "objects_vocab.txt", "\n".join(NAMES))
    write_text(tmp_path / "few" / "attributes_vocab.txt", "red\n")
    places = {**files, "short": tmp_path / "short.txt", "few": tmp_path / "few"}
    given = [str(option).format(**places) for option in options]
    done = roibeam("store", "import", files[layout], tmp_path / "store", *given)
    assert words in one_line(done) and not (tmp_path / "store" / "manifest.json").exists()


@pytest.mark.parametrize("format_name", ["lxmert", "lxmert-h5"])
@pytest.mark.parametrize("names", ["__background__\nNAMES", "NAMES\nbackground\n", '["BG", "NAMES"]'])
def test_names_without_the_one_of_background(
    roibeam: Cli, files: dict[str, Path], tmp_path: Path, format_name: str, names: str
) -> None:
    """It has no id in a store; with it every region would have the name of the class before or behind."""
    text = names.replace("NAMES", ('", "' if names.startswith("[") else "\n").join(NAMES))
    (tmp_path / "list.txt").write_text(text)
    source = files["lxmert"]
    if format_name == "lxmert-h5":
        source = tmp_path / "a.h5"
        format_named("lxmert-h5").write(RECORDS, source)
    vocab = ("--vocab", tmp_path / "list.txt")
    done = ok(roibeam("store", "import", source, tmp_path / "store", *vocab))
    assert "is left out: background has no number; the first name is 'cat'" in done.err
    ok(roibeam("store", "import", source, tmp_path / "plain"))
    copied = ok(roibeam("store", "copy", tmp_path / "plain", tmp_path / "named", *vocab))
    assert "is left out: background has no number" in copied.err
    assert all(FeatureStore(tmp_path / name).manifest.classes == NAMES for name in ("store", "named"))


def test_where_background_is(roibeam: Cli, tmp_path: Path) -> None:
    """Numbers that speak against the layout stop the command; the option decides, and stays with the store."""
    rows = np.full((3, 7), 0.01)
    rows[np.arange(3), [0, 2, 5]] = 0.8
    rows[:, 6] = 0.15  # background, behind the others; the writer puts the last column in front
    in_file = np.roll(rows, -1, axis=1).astype(np.float16)
    kept = [dataclasses.replace(measured(name, 3), class_distribution=in_file) for name in ("a", "b", "c")]
    path = tmp_path / "a.tsv"
    format_named("butd-tsv").write(kept, path, layout="caffe-cls-prob")
    done = roibeam("store", "import", path, tmp_path / "store")
    assert done.code == 1 and not (tmp_path / "store" / "manifest.json").exists()
    words = "rows of 7 class probabilities are read with background in the first column, but the last is the largest or"
    assert words in one_line(done)
    assert one_line(done).endswith("--background first or --background last of `roibeam store import`")
    differs = roibeam("store", "diff", path, path)
    assert differs.code == 2 and "--background last of `roibeam store import`" in one_line(differs)
    assert roibeam("store", "import", path, tmp_path / "store", "--background", "last").code == 0
    store = FeatureStore(tmp_path / "store")
    assert [record.class_ids.tolist() for record in store] == [[0, 2, 5]] * 3
    assert store.manifest.config["options"]["background"] == store.fingerprint.details["background"] == "last"
    again = roibeam("store", "import", path, tmp_path / "store", "--background", "first")
    assert "is another store already" in again.err
    named = ("--vocab", names_file(tmp_path, 7), "--background")
    assert roibeam("store", "import", path, tmp_path / "none", *named, "none").code == 0
    assert FeatureStore(tmp_path / "none").manifest.classes is not None
    refused = one_line(roibeam("store", "import", path, tmp_path / "b", *named, "last"))
    assert "7 classes, but the detector has 6" in refused


def names_file(folder: Path, count: int) -> Path:
    (folder / "names.txt").write_text("".join(f"thing {number}\n" for number in range(count)))
    return folder / "names.txt"


def test_options_of_reading_that_do_not_fit(roibeam: Cli, files: dict[str, Path], tmp_path: Path) -> None:
    for layout, options, words in (
        ("caffe", ("--background", "last"), "--background last: "),
        ("lxmert", ("--background", "middle"), "--background 'middle': choose one of first, last, none"),
        ("lxmert", ("--feature-dtype", "half"), "--feature-dtype 'half': choose one of float16, bfloat16, float32"),
        ("caffe-cls-prob", ("--vocab", names_file(tmp_path, 7)), "have no background, give --background none"),
        ("lxmert", ("--num-classes", largest_id()), "counts background as 0, import it with --background first"),
    ):
        done = roibeam("store", "import", files[layout], tmp_path / "store", *options)
        assert done.code == 1 and words in one_line(done), options
        assert not (tmp_path / "store" / "manifest.json").exists()


def largest_id() -> int:
    return max(int(record.class_ids.max()) for record in RECORDS)


def test_number_types_of_bytes(roibeam: Cli, tmp_path: Path) -> None:
    """Float16 in base64 looks like half as many float32; stored so, every number would be nonsense."""
    values = np.random.default_rng(0).normal(size=(4, 6, 32)).astype(np.float32)
    halves = values.astype(np.float16).view(np.float32)
    kept = [dataclasses.replace(measured(f"image{number}", 6), features=each) for number, each in enumerate(halves)]
    format_named("butd-tsv").write(kept, tmp_path / "a.tsv", layout="caffe")
    for dtype in ("float16", "float32"):
        done = roibeam("store", "import", tmp_path / "a.tsv", tmp_path / "store", "--dtype", dtype)
        assert done.code == 1 and "read as float32, but their bytes look like float16" in one_line(done)
    assert roibeam("store", "import", tmp_path / "a.tsv", tmp_path / "store", "--feature-dtype", "float16").code == 0
    store = FeatureStore(tmp_path / "store")
    np.testing.assert_array_equal(next(iter(store)).features, values[0].astype(np.float16))
    assert store.manifest.config["options"]["file_feature_dtype"] == "float16"


def test_a_file_of_names_gets_the_ids_of_a_list_and_is_compared_by_name(
    roibeam: Cli, files: dict[str, Path], tmp_path: Path
) -> None:
    """Guards the joining by name: ids in the order of the file's own names would be other classes beside a store."""
    label_map = {"label_to_idx": {name: place for place, name in enumerate(NAMES, 1)}}
    label_map["attribute_to_idx"] = {f"kind{number}": number + 1 for number in range(400)}
    map_file, few = tmp_path / "VG-SGG-dicts.json", tmp_path / "few.txt"
    write_text(map_file, json.dumps(label_map))
    write_text(few, "cat\n")
    ok(roibeam("store", "import", files["lxmert"], tmp_path / "store", "--vocab", map_file, "--dtype", "float32"))
    exported = ok(roibeam("store", "export", tmp_path / "store", tmp_path / "file", "--format", "oscar-tsv", "--json"))
    assert json.loads(exported.out)["read_back"]["same_classes"] == len(RECORDS)
    for side in (("store", "file"), ("file", "store")):
        done = roibeam("store", "diff", *(tmp_path / name for name in side), "--json")
        found = json.loads(done.out)
        assert done.code == 0 and found["num_same_class"] == found["num_class_pairs"] == 7, found["differences"]
        assert found["num_same_attribute"] == 7
    ok(roibeam("store", "import", tmp_path / "file", tmp_path / "named", "--vocab", map_file, "--dtype", "float32"))
    plain = ok(roibeam("store", "import", tmp_path / "file", tmp_path / "plain"))
    with FeatureStore(tmp_path / "store") as kept, FeatureStore(tmp_path / "named") as named:
        assert (named.vocabulary, [*named.ids()]) == (kept.vocabulary, [*kept.ids()])
        assert all(record.equals(kept[record.image_id]) for record in named)
    with FeatureStore(tmp_path / "plain") as store:
        used = {name for record in RECORDS for name in np.array(NAMES)[record.class_ids]}
        assert store.vocabulary["classes"] == sorted(used) and "in the order of the alphabet" in plain.err
    fewer = roibeam("store", "import", tmp_path / "file", tmp_path / "other", "--vocab", few)
    assert "of its" in one_line(fewer) and "names of class are not among the 1 that were given" in one_line(fewer)
    counted = roibeam("store", "import", tmp_path / "file", tmp_path / "other", "--num-classes", 6)
    assert "names of classes; give --vocab, which counts them" in one_line(counted)
    assert not (tmp_path / "other").exists() or not list((tmp_path / "other").glob("part*"))


# --- imported files are trained on: no layout leaves a system without anything to do ---

NUM_CLASSES = 6  # of `measured`
LAYOUTS = [(name, layout) for name in FORMATS for layout in format_named(name).layouts]


class Imported(NamedTuple):
    stores: dict[tuple[str, str], Path]
    captions: Path


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """A store of every layout, and captions of its images."""
    folder = tmp_path_factory.mktemp("imported")
    records = [measured(f"image{number}", 4, seed=9 * number) for number in range(4)]
    stores = {}
    for name, layout in LAYOUTS:
        found = format_named(name)
        file = folder / f"{name}-{layout}{found.suffixes[0] if found.suffixes else ''}"
        found.write(records, file, layout=layout)
        stores[name, layout] = folder / f"{name}-{layout}-store"
        import_features(file, stores[name, layout])
    rows = [f"a {colour} dog\t{record.image_id}.jpg\n" for record in records for colour in ("red", "blue")]
    (folder / "captions.tsv").write_text("".join(rows))
    return Imported(stores, folder / "captions.tsv")


def check_two_steps(imported: Imported, layout: tuple[str, str], system: str, run: Path) -> None:
    """Masked regions are predicted by class exactly where the file has classes, and their number is known or given."""
    with FeatureStore(imported.stores[layout]) as store:
        with_ids = has_classes(store.fingerprint)
        distribution = next(iter(store)).class_distribution
    predicts = SYSTEMS[system].class_objective is not None
    given = NUM_CLASSES if predicts and with_ids and distribution is None else None
    read = RequestedData(store=[str(imported.stores[layout])], captions=[str(imported.captions)], num_classes=given)
    sizes = [word for word in tiny_sizes(system) if word != "--set"]
    training = RequestedTraining(steps=2, batch_size=4, device="cpu", set=["train.checkpoint_every=2", *sizes])
    result = run_pretraining(PretrainRequest(run, read, RequestedModel(system=system), training))
    assert result.training.step == 2 and "masked_words" in result.evaluation
    assert ("masked_regions" in result.evaluation) == (predicts and with_ids)
    assert ("masked_region_features" in result.evaluation) == (system == "imagebert")
    assert result.num_classes == (NUM_CLASSES if predicts and with_ids else 0)
    off = [note for note in result.notes if "predicts no classes of masked regions" in note]
    assert len(off) == (predicts and not with_ids)
    assert all(note in json.loads((run / "config.json").read_text())["recorded"]["notes"] for note in off)


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=["-".join(layout) for layout in LAYOUTS])
def test_every_layout_trains_with_one_of_the_systems(imported: Imported, tmp_path: Path, number: int) -> None:
    """Guards that what any reader gives can be trained on; all systems come, each with some layouts."""
    assert len(LAYOUTS) >= len(SYSTEMS)
    check_two_steps(imported, LAYOUTS[number], list(SYSTEMS)[number % len(SYSTEMS)], tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_every_layout_trains_with_every_system(
    imported: Imported, tmp_path: Path, layout: tuple[str, str], system: str
) -> None:
    check_two_steps(imported, layout, system, tmp_path / "run")
