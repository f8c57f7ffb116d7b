"""Images that results are reported on: what each rule holds out, which photos are the same, and who refuses them."""

import json
import pickle
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dataset_examples import write
from small_files import write_json_lines
from tiny_commands import Cli, command, ok, one_line, tiny_run

from roibeam.features.record.fingerprint import Fingerprint
from roibeam.features.shard.manifest import EMPTY_CONTENT_DIGEST, StoreManifest
from roibeam.features.store import FeatureStore
from roibeam.pipelines.data.captions.caption_files import read_annotations
from roibeam.pipelines.data.held_out import HeldOut, LeakReport, held_out_hint
from roibeam.pipelines.data.image_identity import data_set_of_source, data_set_of_store, image_keys, reported_by_name
from roibeam.pipelines.data.source_kinds import Source
from roibeam.pipelines.toyworld.rendering import draw_samples


def coco(number: int) -> str:
    return f"COCO_train2014_{number:012}"


def scan(specs: Sequence[str], ids: Sequence[str], data_set: str | None = None) -> LeakReport:
    return HeldOut(specs).scan(ids, data_set)


def refcoco(path: Path, *references: tuple[int, str]) -> str:
    """The rule over a file of references, each of an image and a split."""
    path.write_bytes(pickle.dumps([{"image_id": number, "split": split} for number, split in references], 2))
    return f"refcoco={path}"


# ---- rules


def test_refcoco_holds_out_validation_and_tests(tmp_path: Path) -> None:
    references = [(1, "train"), (2, "val"), (2, "train"), (3, "testA"), (4, "testB"), (5, "train"), (5, "test")]
    rule = refcoco(tmp_path / "refs.p", *references, (8, "val"))
    found = scan([rule], [str(number) for number in range(1, 7)], "coco")
    assert found.leaked == ("2", "3", "4", "5")
    assert (found.rules[0].held_out, found.rules[0].found) == (5, 4)
    line = "refcoco: 4 of 5 held-out images inside: 2 (COCO 2), 3 (COCO 3), 4 (COCO 4), ..."
    assert found.rules[0].line() == line


def test_visual_genomes_images_are_held_out_under_their_other_names(tmp_path: Path) -> None:
    images = [
        {"image_id": 1, "coco_id": 11, "flickr_id": None},
        {"image_id": 2, "coco_id": None, "flickr_id": 12},
        {"image_id": 3, "coco_id": 13, "flickr_id": 14},
    ]
    (tmp_path / "image_data.json").write_text(json.dumps(images))
    (tmp_path / "test.txt").write_text("12\n14\n")
    rules = [refcoco(tmp_path / "refs.p", (11, "val")), f"flickr30k={tmp_path / 'test.txt'}"]
    aliases = f"visual-genome={tmp_path / 'image_data.json'}"
    assert scan(rules, ["1", "2", "3"], "visual-genome").leaked == ()
    found = scan([*rules, aliases], ["1", "2", "3", "4"], "visual-genome")
    assert found.leaked == ("1", "2", "3") and [rule.found for rule in found.rules] == [1, 2]


def test_an_image_of_two_rules_is_found_by_both_and_leaks_once(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(f"{coco(7)}\n")
    rules = [f"list={tmp_path / 'mine.txt'}", refcoco(tmp_path / "refs.p", (7, "val")).replace("refcoco", "refcoco+")]
    found = scan(rules, [coco(7)])
    assert found.leaked == (coco(7),) and [rule.found for rule in found.rules] == [1, 1]


def test_karpathys_val_and_test(made_data: Path) -> None:
    folder = made_data / "formats" / "karpathy"
    ids = ["train2017/000000215657.jpg", coco(330993), coco(790), "215657", "COCO_val2014_000000163497"]
    report = scan([f"karpathy={folder}/dataset_coco.json"], ids)
    assert report.leaked == (ids[0], ids[1])  # 163497 is restval; a bare 215657 may be anybody's
    assert report.bare_numbers == 1 and "bare numbers of no known data set: 1 id" in report.lines()[-1]
    assert scan([f"karpathy={folder}/dataset_coco.json"], ["215657"], "coco").leaked == ("215657",)
    flickr = scan([f"karpathy={folder}/dataset_flickr30k.json"], ["flickr30k-images/205842.jpg", "36979"], "flickr30k")
    assert flickr.leaked == ("flickr30k-images/205842.jpg",) and flickr.bare_numbers == 0


def test_flickr30ks_lists(made_data: Path) -> None:
    path = made_data / "formats" / "flickr30k_entities" / "test.txt"
    ids = ["205842", "256063_b0f291553e", "36979", coco(205842), "VG_100K/205842", "VG_100K_2/256063"]
    assert scan([f"flickr30k={path}"], ids).leaked == ids_of(ids, 0, 1)  # as a whole id, and by Flickr's number
    assert scan([f"flickr30k={path}"], ids, "visual-genome").leaked == ids_of(ids, 1)
    assert scan([f"flickr30k={path}"], ids, "coco").leaked == ids_of(ids, 1)


def ids_of(ids: list[str], *places: int) -> tuple[str, ...]:
    return tuple(ids[place] for place in places)


def test_visual_genomes_copies_of_cocos_and_flickrs_images(made_data: Path, tmp_path: Path) -> None:
    images = [
        {"image_id": 1, "coco_id": 330993, "flickr_id": None, "width": 800},
        {"image_id": 2, "coco_id": None, "flickr_id": 205842},
        {"image_id": 3, "coco_id": None, "flickr_id": None},
        {"image_id": 4, "coco_id": 790, "flickr_id": 5},
        {"image_id": 330993, "coco_id": None, "flickr_id": None},
    ]
    (tmp_path / "image_data.json").write_text(json.dumps(images))
    genome = f"visual-genome={tmp_path}/image_data.json"
    karpathy = f"karpathy={made_data}/formats/karpathy/dataset_coco.json"
    flickr = f"flickr30k={made_data}/formats/flickr30k_entities/test.txt"
    ids = ["VG_100K/1", "VG_100K_2/2", "VG_100K/3", "VG_100K/4", "VG_100K/330993"]
    report = scan([karpathy, genome, flickr], ids)
    assert report.leaked == ids_of(ids, 0, 1)
    assert [rule.examples for rule in report.rules] == [(("VG_100K/1", coco(330993)),), (("VG_100K_2/2", "205842"),)]
    plain = [image_id.partition("/")[2] for image_id in ids]
    assert scan([karpathy, genome, flickr], plain, "visual-genome").leaked == ("1", "2")
    assert scan([karpathy, genome, flickr], plain).leaked == ()  # the data set of these numbers is unknown
    assert scan([karpathy], ids).leaked == ()  # nor that these are COCO's
    (tmp_path / "mine.txt").write_text("VG_100K/4\n")
    assert scan([f"list={tmp_path}/mine.txt", genome], [coco(790), "x"]).leaked == (coco(790),)


def test_vqa_and_lists_of_ones_own(made_data: Path, tmp_path: Path) -> None:
    path = made_data / "formats" / "vqa_v2" / "v2_OpenEnded_mscoco_val2014_questions.json"
    numbers = {each["image_id"] for each in json.loads(path.read_text())["questions"]}
    report = scan([f"vqa={path}"], [coco(number) for number in (*numbers, 999999)])
    assert len(report.leaked) == len(numbers) == report.rules[0].held_out
    (tmp_path / "ids.txt").write_text("a/x.jpg\nCOCO_val2014_000000000042.jpg\n7\n\n")
    ids = ["a/x", "x", "b/x", "000000000042", "42", "7", coco(7)]
    assert scan([f"list={tmp_path}/ids.txt"], ids).leaked == ("a/x", "000000000042", "7")
    (tmp_path / "ids.txt").write_text("a dog, asleep.jpg\nimage\n")  # no table, though it has a comma
    assert scan([f"list={tmp_path}/ids.txt"], ["a dog, asleep", "x"]).leaked == ("a dog, asleep",)


@pytest.mark.parametrize(
    "content, words",
    [
        ('\n {"images": [{"id": 42, "file_name": "x.jpg"}]}', "is JSON without a list of ids"),
        ("[7, 42]", "is JSON without a list of ids"),
        ('{"image_id": 42}\n{"image_id": 7}\n', "begins like JSON"),
        ("image,label\nx,red\n", "begins with the header of a table, image,label"),
        ('"image_id"\t"caption"\nx\ta dog\n', "begins with the header of a table"),
    ],
)
def test_a_file_of_another_kind_is_no_list(tmp_path: Path, content: str, words: str) -> None:
    """Its lines were ids of no image, so all of its images were trained on."""
    (tmp_path / "ids.txt").write_text(content)
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        scan([f"list={tmp_path}/ids.txt"], ["x", coco(42)])
    assert "one image id a line was expected; --held-out coco=FILE reads a file of COCO" in str(caught.value)


def test_photos_of_vcr_and_nlvr2_are_known_below_any_folders(tmp_path: Path) -> None:
    names = ("lsmdc_1/a@1.jpg", "val2014/COCO_val2014_000000000017.jpg")
    write_json_lines(tmp_path / "val.jsonl", [{"img_fn": name, "objects": ["person"]} for name in names])
    statements = [
        {"identifier": name, "sentence": "Both are red.", "label": "True"} for name in ("dev-7-0-1", "test1-9-0-1")
    ]
    write_json_lines(tmp_path / "dev.json", statements)
    inside = [
        "lsmdc_1/a@1", "vcr1images/lsmdc_1/a@1", "coco/val2014/COCO_val2014_000000000017", "dev-7-0-img0",
        "dev-7-0-img1", "images/dev/dev-7-0-img1", "test1-9-0-img0",
    ]  # fmt: skip
    others = [
        "a@1", "lsmdc_2/a@1", "lsmdc_1/b@1", "x/day1/a@1", "dev-7-1-img0", "images/test1/test1-7-0-img1",
        "images/dev/ddev-7-0-img1",
    ]  # fmt: skip
    report = scan([f"vcr={tmp_path}/val.jsonl", f"nlvr2={tmp_path}/dev.json"], [*inside, *others])
    assert report.leaked == tuple(inside) and [rule.held_out for rule in report.rules] == [2, 4]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/roibeam-was-here"),))


@pytest.mark.parametrize(
    ("rule", "content", "words"),
    [
        ("refcoco+", pickle.dumps({"a": 1}), "expected a list of references"),
        ("refcoco+", pickle.dumps([{"image_id": 1, "split": "tset"}]), "reference 0: expected .*; got 1 and 'tset'"),
        ("refcoco+", pickle.dumps([{"image_id": "1", "split": "val"}]), "reference 0: expected"),
        ("refcoco+", pickle.dumps([{"image_id": 1, "split": ["val"]}]), "reference 0: expected"),
        ("refcoco+", pickle.dumps([Bomb()]), "nothing was run"),
        ("refcoco+", pickle.dumps([{"image_id": 1, "split": "train"}]), "holds out no image"),
        ("karpathy", b"[]", "expected a Karpathy split"),
        ("vqa", b'{"questions": [{"image_id": "1"}]}', r"questions\[0\]: image_id must be a whole number"),
        ("vqa", b'{"annotations": []}', "holds out no image"),
        ("vcr", b'{"objects": []}', "expected a VCR row with img_fn"),
        ("nlvr2", b'{"identifier": "dev-1"}', "expected NLVR2's identifier"),
        ("visual-genome", b"{}", "expected Visual Genome's image_data.json"),
        ("visual-genome", b"[3]", "entry 0: expected"),
        ("visual-genome", b'[{"image_id": 1, "coco_id": "2"}]', "entry 0: expected"),
        ("visual-genome", b"[] []", "something follows the list"),
        ("visual-genome", b'[{"image_id": 1', "not a json file"),
        ("visual-genome", b'[{"image_id": 1, "coco_id": 2}]', "name a rule that holds out images too"),
        ("flickr30k", b"\n\n", "holds no image id"),
        ("list", b"\xff\n", "line 1: not UTF-8"),
    ],
)
def test_files_of_another_kind_are_one_line(tmp_path: Path, rule: str, content: bytes, words: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=words) as error:
        HeldOut([f"{rule}={tmp_path / 'file'}"])
    assert "\n" not in str(error.value) and not Path("/tmp/roibeam-was-here").exists()


@pytest.mark.parametrize("spec", ["karpathy", "karpaty=x.json", "=x", "karpathy=", "karpathy=none.json"])
def test_rules_are_named_with_a_file(spec: str) -> None:
    with pytest.raises(ValueError, match=r"expected RULE=FILE with one of the rules refcoco, |no such file"):
        HeldOut([spec])


# ---- whose numbers


@pytest.mark.parametrize(
    ("kind", "location", "data_set"),
    [
        ("karpathy", "/d/dataset_flickr30k.json", "flickr30k"),
        ("visual-genome", "/d/train.txt", "visual-genome"),
        ("folder", "/data/VG_100K", "visual-genome"),
        ("pattern", "/data/VG_100K_2/*.jpg", "visual-genome"),
        ("folder", "/data/flickr30k-images", "flickr30k"),
        ("tar", "/data/flickr30k-images.tar.gz", "flickr30k"),
        ("folder", "/data/photos", None),
        ("coco", "/data/instances.json", None),  # anybody's boxes are written in COCO's format
    ],
)
def test_kind_and_folder_tell_whose_numbers_ids_are(kind: str, location: str, data_set: str | None) -> None:
    assert data_set_of_source(Source(kind, location, "/data", "no-extension", [], [])) == data_set
    facts = {"source": {"kind": kind, "location": location, "image_root": "/data"}}
    assert data_set_of_store(manifest(facts)) == data_set
    copied = {"copy": {"sources": [{"config": facts}, {"config": {**facts, "x": 1}}]}}
    assert data_set_of_store(manifest(copied)) == data_set
    copied["copy"]["sources"].append({"config": {}})
    assert data_set_of_store(manifest(copied)) is None
    assert data_set_of_store(manifest({"source": "?", "copy": []})) is None


def manifest(config: dict[str, Any]) -> StoreManifest:
    return StoreManifest(
        fingerprint=Fingerprint("imported:x"), config=config, classes=None, attributes=None, feature_dim=0,
        feature_dtype=None, shards=(), num_records=0, num_regions=0, num_dead_letters=0,
        content_digest=EMPTY_CONTENT_DIGEST,
    )  # fmt: skip


def test_numbers_of_different_data_sets_are_different_images() -> None:
    same = [set(image_keys("42", data_set)) for data_set in ("coco", "flickr30k", "visual-genome", None)]
    assert all(not (left & right) for k, left in enumerate(same) for right in same[k + 1 :])


def test_whole_splits_are_known_by_the_names_of_their_images() -> None:
    """And numbers, train2014 and a photo that is called alike are not."""
    named = ["COCO_val2014_000000000001", "coco/val2014/COCO_val2014_000000000002.jpg", "val2017/000000000003"]
    others = [coco(1), "000000000003", "latest1-850-0-img1", "dev-850-0-img10", "val2014_12"]
    line = reported_by_name([*others, *named, "test2-850-0-img1"])
    assert line is not None and line.startswith(
        "4 images of validation and test splits, as their names say: 2 of COCO's val2014 (VQA v2's val; Karpathy's val "
        "and test are a part); 1 of COCO's val2017; 1 of NLVR2's test2. Results on these"
    )
    assert reported_by_name(others) is None


def test_the_hint_names_the_rules_that_would_apply() -> None:
    assert held_out_hint(["images/00000/00000007", "dog", "42"], None) is None
    hint = held_out_hint([coco(1), coco(2), "VG_100K/3"], None)
    assert hint is not None and "2 images of COCO: --held-out 'refcoco+=" in hint
    assert "1 image of Visual Genome" in hint and "flickr30k=test.txt" not in hint


# ---- on the command line


@pytest.fixture
def coco_like(tmp_path: Path) -> tuple[Path, Path, str]:
    """Four pictures with COCO's names, their captions, and a rule that holds two of them out."""
    captions = draw_samples(tmp_path / "samples", count=4)
    content = json.loads(captions.read_text())
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, image in enumerate(content["images"], start=1):
        (tmp_path / "samples" / "images" / image["file_name"]).rename(photos / f"{coco(number)}.png")
        image["file_name"] = f"{coco(number)}.png"
    captions.write_text(json.dumps(content))
    sentences = [{"raw": "x", "tokens": ["x"], "sentid": 1}]
    images = [
        {"filename": f"{coco(number)}.jpg", "cocoid": number, "imgid": number, "split": split, "sentences": sentences}
        for number, split in ((1, "train"), (2, "test"), (4, "val"), (5, "test"))
    ]
    return photos, captions, f"karpathy={write(tmp_path / 'dataset_coco.json', {'images': images})}"


def test_leaks_of_a_source(roibeam: Cli, coco_like: tuple[Path, Path, str]) -> None:
    photos, captions, rule = coco_like
    for images in ([photos], [captions, "--photos", photos]):
        done = roibeam("leaks", *images, "--held-out", rule)
        assert done.code == 1
        line = f"karpathy: 2 of 3 held-out images inside: {coco(2)}, {coco(4)}"
        assert done.out.splitlines() == [line, f"{images[0]}: 2 of 4 images held out"]
    told = json.loads(roibeam("leaks", photos, "--held-out", rule, "--json").out)
    assert (told["images"], told["leaked"], told["rules"][0]["found"], told["rules"][0]["held_out"]) == (4, 2, 2, 3)
    assert roibeam("leaks", photos, "--held-out", rule.replace("karpathy", "krapathy")).code == 1
    (photos / f"{coco(2)}.png").unlink()
    (photos / f"{coco(4)}.png").unlink()
    assert roibeam("leaks", photos, "--held-out", rule).code == 0
    wrong = roibeam("leaks", photos, "--held-out", rule, "--numbers-of", "imagenet")
    assert wrong.code == 1 and "choose one of coco, flickr30k, visual-genome" in wrong.err


def test_extract_refuses_held_out_images_or_leaves_them_out(
    roibeam: Cli, extract: Cli, coco_like: tuple[Path, Path, str], tmp_path: Path
) -> None:
    photos, _, rule = coco_like
    store, held_out = tmp_path / "store", ("--held-out", rule)
    assert "2 images of 4 must not be trained on: karpathy: 2 of 3" in one_line(extract(photos, store, *held_out))
    assert not store.exists()
    done = ok(extract(photos, store, *held_out, "--drop-held-out"))
    assert "note: 2 images left out as held out" in done.out and "2 records" in done.out
    ok(roibeam("leaks", store, *held_out))
    # The same store without the rule would take them in as new images.
    grown = one_line(extract(photos, store))
    assert "held_out was karpathy=" in grown and "is now None" in grown
    assert StoreManifest.read(store / "manifest.json").config["held_out"]["leaked"] == 2
    (tmp_path / "all.txt").write_text("\n".join(map(coco, range(1, 5))))
    none = extract(photos, tmp_path / "none", "--held-out", f"list={tmp_path}/all.txt", "--drop-held-out")
    assert "all of its 4 images are held out" in one_line(none)


def test_a_grown_list_of_held_out_images_finds_those_that_are_in_the_store(
    roibeam: Cli, extract: Cli, coco_like: tuple[Path, Path, str], tmp_path: Path
) -> None:
    photos, _, _ = coco_like
    store, listed = tmp_path / "store", tmp_path / "out.txt"

    def extract_without(*numbers: int) -> Any:
        listed.write_text("\n".join(map(coco, numbers)))
        return extract(photos, store, "--shard-size", 2, "--held-out", f"list={listed}", "--drop-held-out")

    ok(extract_without(1))
    before = (store / "manifest.json").read_bytes()
    for gone in (False, True):  # photos that are taken down are also removed
        if gone:
            (photos / f"{coco(3)}.png").unlink()
        refused = one_line(extract_without(1, 3))
        assert (store / "manifest.json").read_bytes() == before
        assert f"1 image that must not be trained on: --held-out names {coco(3)} now" in refused
        assert f"roibeam store copy {store} NEW --without-ids FILE" in refused

    # Nothing was extracted of these yet; a whole shard of them.
    (store / "part-00000.json").unlink()
    done = ok(extract_without(1, 2, 3))
    assert f"taken out of the plan, since --held-out names them now: {coco(2)}, {coco(3)}\n" in done.out
    assert "not in the source" not in done.out
    ok(roibeam("store", "verify", store, "--deep"))
    assert roibeam("store", "ids", store).out.split() == [coco(4)]
    assert "nothing to do" in extract_without(1, 2, 3).out


def test_a_prefix_of_ids_parts_two_sources_and_files_find_their_images_without_it(
    roibeam: Cli, coco_like: tuple[Path, Path, str], tmp_path: Path, tiny_network: tuple[str, ...]
) -> None:
    photos, captions, rule = coco_like
    boxes, listed = tmp_path / "boxes.jsonl", tmp_path / "out.txt"
    rows = [{"image_id": coco(number), "boxes": [[1, 1, 20 + number, 30]]} for number in (1, 3)]
    boxes.write_text("\n".join(map(json.dumps, rows)))
    names = ("--captions", captions, "--boxes", boxes, "--held-out", rule, "--held-out", f"list={listed}")

    def extract(prefix: str, store: str) -> Any:
        options = (*tiny_network, *names, "--drop-held-out", *(("--id-prefix", prefix) if prefix else ()))
        return roibeam("extract", photos, tmp_path / store, *options)

    listed.write_text(f"a/{coco(1)}\n")  # as the store that is being made calls it
    ok(extract("a/", "one"))
    assert roibeam("store", "ids", tmp_path / "one").out.split() == [f"a/{coco(3)}"]
    listed.write_text("nothing\n")
    assert "2 images left out as held out" in ok(extract("b/", "two")).out
    command("store", "copy", tmp_path / "one", tmp_path / "two", tmp_path / "both")
    with FeatureStore(tmp_path / "both") as both:
        assert list(both.ids()) == [f"a/{coco(3)}", f"b/{coco(1)}", f"b/{coco(3)}"]
        assert both[f"b/{coco(3)}"].boxes.tolist() == [[1, 1, 23, 30]]
        assert both[f"a/{coco(3)}"].features.tolist() == both[f"b/{coco(3)}"].features.tolist()
        assert {row.image_id: len(row.captions) for row in read_annotations(both)} == dict.fromkeys(both.ids(), 1)
    ok(roibeam("leaks", tmp_path / "both", "--held-out", rule))
    listed.write_text(coco(3))
    assert f"--held-out names b/{coco(3)} now" in extract("b/", "two").err
    assert "id_prefix was b/, is now None" in extract("", "two").err
    assert "expected the path of a folder with a slash at its end, such as cc3m/" in extract("b", "three").err


def test_pretrain_refuses_held_out_images_or_leaves_them_out(
    roibeam: Cli, extract: Cli, coco_like: tuple[Path, Path, str], tmp_path: Path
) -> None:
    photos, captions, rule = coco_like
    store, tiny = tmp_path / "store", tiny_run(steps=1, batch_size=2)
    ok(extract(photos, store))

    def pretrain(run: str, *more: object) -> Any:
        return roibeam("pretrain", tmp_path / run, "--store", store, "--captions", captions, *tiny, *more)

    hinted = ok(pretrain("a"))
    assert "4 images of COCO" in hinted.err
    # A run that is stopped says so, too: before its first step, and in its folder.
    assert hinted.err.index("roibeam: to report results") < hinted.err.index("1 step of 2 samples")
    (note,) = json.loads((tmp_path / "a" / "config.json").read_text())["recorded"]["notes"]
    assert (
        note.startswith("to report results on test images")
        and note[:60] in (tmp_path / "a" / "report.html").read_text()
    )
    assert "2 images of 4 must not be trained on" in one_line(pretrain("b", "--held-out", rule))
    assert not (tmp_path / "b" / "log.jsonl").exists()
    done = ok(pretrain("b", "--held-out", rule, "--drop-held-out"))
    assert "2 captioned images left out as held out" in done.err
    facts = json.loads(pretrain("c", "--held-out", rule, "--drop-held-out", "--json").out)
    assert facts["sources"][0]["held_out"]["leaked"] == 2 and facts["sources"][0]["join"]["joined"] == 4
    assert facts["sources"][0]["images"] == 2 and "of 2 images in" in (tmp_path / "c" / "report.html").read_text()
    assert facts["notes"][-1] == "2 captioned images left out as held out" and len(facts["notes"]) == 2

    # A Karpathy file's own captions of other splits are left out without a word; those of another store are not.
    other = Path(shutil.copytree(store, tmp_path / "other"))
    karpathy = Path(rule.removeprefix("karpathy="))
    content = json.loads(karpathy.read_text())
    content["images"].append(content["images"][0] | {"filename": f"{coco(3)}.jpg", "cocoid": 3, "imgid": 3})
    karpathy.write_text(json.dumps(content))
    sources = ("--store", store, "--captions", karpathy, "--store", other, "--captions", captions)
    told = ok(roibeam("pretrain", tmp_path / "run", *sources, *tiny, "--min-match", 0.1)).err
    assert f"roibeam: {other}: 2 images that are trained on are in other splits of a caption file, such as " in told
