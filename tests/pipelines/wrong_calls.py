"""Wrong calls of every command, and what the answer to each must say: what was wrong, what was expected, the cure."""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tiny_commands import Pictures

Words = tuple[object, ...]


class WrongCall(NamedTuple):
    words: Words  # of the command line
    says: str  # the answer must have it in it
    code: int = 1  # 2 for a command line that cannot be parsed, 1 for files and names


def make_wrong_files(pictures: Pictures, folder: Path) -> None:
    """Files and folders that are not what they seem."""
    (folder / "text.safetensors").write_text("these are words, and no weights at all\n")
    header = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    (folder / "cut.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (folder / "cut.pth").write_bytes(b"PK\x03\x04" + bytes(60))
    (folder / "odd.weights").write_bytes(bytes(10))
    (folder / "broken.json").write_text('{"images": [')
    (folder / "latin.tsv").write_bytes(b"caf\xe9\timages/a.jpg\n")
    (folder / "none.txt").write_text("\n\n")
    (folder / "lists.json").write_text('{"images": []}')
    (folder / "empty").mkdir()
    for name in ("zero.json", "zero.tsv", "zero.csv", "zero.txt"):
        (folder / name).write_text("")
    (folder / "other.csv").write_text("colour,size\nred,2\n")
    for name, table in (("strange", "colour,size\nred,2\n"), ("bare", "image,question,answer\n")):
        (folder / name).mkdir()
        for split in ("train", "val"):
            (folder / name / f"{split}.csv").write_text(table)
    (folder / "begun").mkdir()  # a run that was killed before its first shard, and one that was killed after it
    (folder / "killed").mkdir()
    shutil.copy(pictures.store / "plan.json", folder / "begun")
    shutil.copy(next(pictures.store.glob("part-*.json")), folder / "killed")
    (folder / "others.token").write_text("someone.jpg#0\tA man.\nelse.jpg#0\tA dog.\n")
    (folder / "trained" / "model").mkdir(parents=True)  # a run's checkpoint, whose weights are not read here
    config = {"model_type": "roibeam-imagebert", "architectures": ["ImageBertForPreTraining"], "hidden_size": 16}
    (folder / "trained" / "model" / "config.json").write_text(json.dumps(config | {"num_attention_heads": 2}))
    (folder / "trained" / "config.json").write_text(json.dumps({"task": {"feature_space": "f" * 64}}))
    (folder / "trained" / "state.json").write_text('{"step": 1}')
    photos = [path.name for path in sorted(pictures.photos.iterdir())]
    (folder / "entities" / "Sentences").mkdir(parents=True)
    (folder / "entities" / "Annotations").mkdir()
    (folder / "entities" / "val.txt").write_text("1\n")
    (folder / "two.conll").write_text("1\tA\t2\tdet\n")
    rows = [f"{name}#0\tA square." for name in (*photos, *(f"other{number}.jpg" for number in range(80)))]
    (folder / "whole.token").write_text("\n".join(rows) + "\n")


def calls_with_wrong_names(pictures: Pictures, folder: Path) -> list[WrongCall]:
    photos, captions, store = pictures
    out, gone = folder / "new", folder / "gone"
    extract: Words = ("extract", photos, out)
    small: Words = (*extract, "--detector", "small", "--weights", "random:1")
    pretrain: Words = ("pretrain", out, "--store", store, "--captions", captions)
    joint: Words = (*pretrain, "--end-to-end", "--photos", photos, "--detector", "toy")
    detector: Words = ("detector", "train", out, "--labels", captions)
    tune: Words = ("finetune", out, "--task", "labels", "--from", "none", "--system", "vlbert", "--store", store)
    tune = (*tune, "--data", photos)
    texts: Words = ("finetune", out, "--task", "rte", "--from", "none", "--system", "vlbert", "--data", photos)
    search = (*tune[:3], "retrieval", *tune[4:])
    looks: Words = ("attention", folder / "trained", "--store", store, "--entities", folder / "entities", "--out", out)
    photo = sorted(photos.iterdir())[0]
    return [
        WrongCall((*extract, "--preset", "vlbert", "--weights", "random:1"), "did you mean vl-bert?"),
        WrongCall((*texts, "--store", store), "--store: this task is of texts alone and shows no image; leave it out"),
        WrongCall((*texts, "--end-to-end"), "--end-to-end: this task is of texts alone"),
        WrongCall((*texts, "--set", "rte.validation=mismatched"), "MNLI alone has such a file; leave it at dev"),
        WrongCall((*tune[:6], *tune[6:8], "--data", photos), "--store is missing: it has the regions"),
        WrongCall((*extract, "--preset", "lxmrt", "--weights", gone), "'lxmrt' is unknown; did you mean lxmert?"),
        WrongCall((*extract, "--detector", "smal", "--weights", "random:1"), "did you mean small?"),
        WrongCall((*extract, "--detector", "pythia-x152-fpn"), "weights are missing: pythia-x152-fpn brings none"),
        WrongCall((*extract, "--detector", "x.yaml", "--weights", "random:1"), "'x.yaml': no such file; a detectron2"),
        WrongCall((*extract, "--detector", "pythia-x152-fpn", "--weights", "random:1", "--conventions", "caffe"),
                  "--conventions caffe does not go with --detector pythia-x152-fpn"),
        WrongCall((*extract, "--detector", "pythia-x152-fpn", "--weights", "random:1", "--set", "detector.layer=fc8"),
                  "layer 'fc8'; it must be one of '', 'fc6', 'fc7'"),
        WrongCall((*small, "--set", "detektor.depth=1"), "no section 'detektor'; did you mean detector?"),
        WrongCall((*small, "--set", "detector.depht=1"), "no field 'depht'; did you mean depth?"),
        WrongCall((*small, "--runner", "flnk", "--dry-run"), "--runner 'flnk' is unknown: did you mean flink?"),
        WrongCall((*small, "--shard-size", -3), "--shard-size '-3': expected a whole number, 1 or more", 2),
        WrongCall((*small, "--min-match", 7), "--min-match '7': expected a number from 0 to 1", 2),
        WrongCall((*small, "--device", "gpu"), "--device 'gpu': expected auto, cpu, cuda or cuda:<n>"),
        WrongCall((*small, "--set", "detector.depth"), "expected section.field=value, such as detector."),
        WrongCall((*pretrain, "--checksums", "none"), "--checksums 'none': expected all or sample (one record in 16)"),
        WrongCall((*pretrain, "--system", "vl-bert"), "--system 'vl-bert': did you mean vlbert?"),
        WrongCall((*pretrain, "--system", "vlbert", "--model", "bse"), "--model 'bse': did you mean base?"),
        WrongCall((*pretrain, "--recipe", "vlbert-papr"), "did you mean vlbert-paper"),
        WrongCall(("extract", photos, store, "--detector", "small", "--weights", "random:1", "--selection", "vilbert"),
                  "was made with other settings: selection was"),
        WrongCall(("look", folder / "none.txt"), "not an image (decode): no known image format"),
        WrongCall(("pretrain", out, "--text-corpus", folder / "none.txt", "--system", "vlbert"), "no text in it"),
        WrongCall(("pretrain", out, "--store", store, "--captions", folder / "lists.json"), 'and "annotations" lists'),
        WrongCall((*pretrain, "--recipe", "zzz"), "no recipe 'zzz': roibeam recipes lists all"),
        WrongCall((*pretrain, "--set", "nothing.x=1"), "choose one of train, sampling, data, model"),
        WrongCall((*pretrain, "--set", "train.stepz=1"), "train has no field 'stepz'; did you mean steps"),
        WrongCall((*pretrain, "--set", "sampling.nothing=1"), "sampling has no field 'nothing'; choose one of"),
        WrongCall((*pretrain, "--stage", "--steps 1", "--stage", "--system vl-bert"), "stage 2: --system 'vl-bert'"),
        WrongCall((*pretrain, "--stage", "--steps 1", "--stage", "--set train.stepz=1"), "stage 2: --set 'train.stepz"),
        WrongCall((*pretrain, "--steps", 0), "--steps '0': expected a whole number", 2),
        WrongCall((*pretrain, "--set", "model.hidden_sise=8"), "model has no field 'hidden_sise'; did you mean"),
        WrongCall((*pretrain, "--set", "model.hidden_size=abc"), "hidden_size must be of type int, got 'abc'"),
        WrongCall((*pretrain, "--set", "model.hidden_size=33"), "is not a multiple of num_attention_heads 4"),
        WrongCall((*pretrain, "--set", "model.masked_appearance=pixel"), "it must be one of 'zero', 'pixels'"),
        WrongCall((*pretrain, "--set", "data.sharee=1"), "data has no field 'sharee'; did you mean share"),
        WrongCall((*pretrain, "--learning-rate", -1), "learning_rate must be positive"),
        WrongCall((*pretrain, "--device", "cuda:7"), "--device cuda:7: torch sees no GPU here; --device cpu takes"),
        WrongCall((*pretrain, "--set", "train.device=cuda"), "--device cuda: torch sees no GPU here"),
        WrongCall((*joint, "--set", "photos.flp=false"), "photos has no field 'flp'; did you mean flip"),
        WrongCall((*joint, "--set", "encoder.recompute=yes"), "encoder.recompute=yes': expected true or false"),
        WrongCall((*joint, "--set", "end_to_end.masked_pixels=blak"), "it must be one of 'blank', 'whole', 'shown'"),
        WrongCall((*joint, "--set", "detector.depth=7"), "depth is 7; it must be one of"),
        WrongCall((*joint, "--set", "labelled.heads=new"), "no section 'labelled'; choose one of train,"),
        WrongCall((*joint, "--labels", captions, "--set", "detection.classes=-1"), "classes is -1.0; it must not"),
        WrongCall((*joint, "--stage", "--steps 1", "--stage", "--set sampling.x=1"), "stage 2: --set 'sampling.x=1'"),
        WrongCall((*pretrain, "--set", "data.validation_retrieval=9"), "name them with --validation-captions"),
        WrongCall((*joint, "--store", store), "end to end a run reads one store, got 2"),
        WrongCall((*search, "--set", 'retrieval.distractors=["photo"]'), "no kind 'photo'; there are caption, image,"),
        WrongCall((*search, "--set", 'retrieval.distractors=["image","|"]'), "a mix without a wrong pair"),
        WrongCall((*search, "--set", "retrieval.loss=softmax"), "loss must be one of multi_class, binary, triplet"),
        WrongCall((*tune, "--photos", photos), "--photos is for --end-to-end; stored features need no photos"),
        WrongCall((*tune, "--end-to-end", "--detector", "smal"), "did you mean small?"),
        WrongCall((*tune, "--end-to-end", "--detector", "toy", "--set", "photos.flp=1"), "'flp'; did you mean flip"),
        WrongCall((*tune, "--end-to-end", "--detector", "toy", "--set", "photos.read_ahead=0"), "must be at least 1"),
        WrongCall((*tune, "--end-to-end", "--images", photos), "no option --images; did you mean --photos?", 2),
        WrongCall(("recipes", "vlbert-lagre"), "did you mean vlbert-large"),
        WrongCall(("store", "export", store, out, "--format", "lxmert_h5"), "did you mean lxmert-h5?"),
        WrongCall(("store", "copy", store, out, "--dtype", "int8"), "choose one of float16"),
        WrongCall(("evaluate", folder, "--store", store, "--captions", captions, "--split", "tset"), "--split"),
        WrongCall(("toyworld", out, "--num-images", -3), "--num-images", 2),
        WrongCall(("toyworld", out, "--entities", out / "e"), "name a folder beside the world"),
        WrongCall((*looks, "--rules", "both"), "--rules 'both': choose one of any, merged, release"),
        WrongCall((*looks, "--word", "all"), "--word 'all': choose one of last, first, mean, head"),
        WrongCall((*looks, "--word", "head"), "--word head needs --parses"),
        WrongCall((*looks, "--split", "dev"), "has no dev.txt; it has lists of val"),
        WrongCall((*looks, "--parses", folder / "two.conll"), "head '2' is no word of its sentence, which has 1"),
        WrongCall((*looks, "--max-images", 0), "--max-images '0': expected a whole number, 1 or more", 2),
        WrongCall(("toyworld", out, "--pages", 9), "--pages: only with --web FOLDER"),
        WrongCall(("toyworld", out, "--web", out / "w"), "name a folder beside the world"),
        WrongCall(("toyworld", out, "--web", photos), "holds no pages of a toy world"),
        WrongCall(("collect", "run", gone, out), f"no such file or folder: PAGES '{gone}'"),
        WrongCall(("collect", "run", photos, out), "no page in it; expected .warc, .warc.gz or .html"),
        WrongCall(("collect", "run", folder / "none.txt", out), "no page in it; expected .warc"),
        WrongCall(("collect", "run", captions, out), "or a list of WARC files (.paths)"),
        WrongCall(("collect", "run", "https://a.org/pages.html", out), "a URL of pages ends in .warc or .warc.gz"),
        WrongCall(("collect", "run", photos, captions), "is a file; name a folder to write into"),
        WrongCall(("collect", "run", photos, out, "--base-url", "a.org"), "expected http:// or https:// and a path"),
        WrongCall(("collect", "run", photos, out, "--set", "text.words=3"), "text has no field 'words'"),
        WrongCall(("collect", "run", photos, out, "--set", "text.min_words=a"), "expected a whole number, got 'a'"),
        WrongCall(("collect", "run", photos, out, "--held-out-images", gone), "such file or folder: --held-out-images"),
        WrongCall(("collect", "run", photos, out, "--pair-judge", gone), "o such file"),
        WrongCall(("collect", "run", photos, out, "--picture-judge", gone), "a file of `roibeam collect train-images`"),
        WrongCall(("collect", "run", photos, out, "--detector", "toy"), "name --picture-judge or --pair-judge too"),
        WrongCall(("collect", "run", photos, out, "--allow-private", "home"), "--allow-private 'home': expected a net"),
        WrongCall(("collect", "run", photos, out, "--user-agent", "a\nb"), "--user-agent 'a\\nb': expected letters"),
        WrongCall(("collect", "run", photos, out, "--runner", "flnk"), "'flnk' is unknown: did you mean flink"),
        WrongCall(("download", captions.with_suffix(".tsv"), out, "--min-side", -1), "--min-side '-1': expected", 2),
        WrongCall(("download", folder / "urls.tsv", out, "--allow-private", "home"), "'home': expected a network"),
        WrongCall(("download", folder / "urls.tsv", out, "--timeout", 0), "total_seconds is 0.0, expected more than 0"),
        WrongCall(("collect", "train-images", folder / "none.txt", out / "m.json"), "no column 'image'"),
        WrongCall(("collect", "train-images", gone, out / "m.json"), "No such file or directory"),
        WrongCall(("collect", "train-images", gone, folder / "none.txt"), "nothing is replaced, name another one"),
        WrongCall(("collect", "train-pairs", out / "m.json"), "name --captions with --store, --pairs with"),
        WrongCall(("collect", "train-pairs", out / "m.json", "--captions", captions), "1 of --captions, 0 of --store"),
        WrongCall(("collect", "train-pairs", out / "m.json", "--pairs", gone), "--pairs and --pairs-store go together"),
        WrongCall(("toyworld", out, "--noise", 1, "--box-jitter", 0), "--noise, --box-jitter: only with --perfect-st"),
        WrongCall(("toyworld", out, "--perfect-store", folder, "--missed", 2), "--missed '2': expected a number", 2),
        WrongCall(("toyworld", out, "--perfect-store", folder / "p", "--noise", 0.12345678), "at most six digits"),
        WrongCall(("toyworld", out, "--perfect-store", "s3://bucket/store"), "is a URL; name a folder on a disk"),
        WrongCall(("toyworld", out, "--perfect-store", out / "store"), "name a folder beside the world"),
        WrongCall(("leaks", photos, "--held-out", f"rule={captions}"), "expected RULE=FILE with one of the rules"),
        WrongCall(("leaks", photos, "--held-out", f"vcr={photos}"), "the folder holds no val.jsonl or test.jsonl"),
        WrongCall(("score", "own.py", captions, "--data", photos), "TASK 'own.py': no such file"),
        WrongCall(("score", "vqaa", captions, "--data", photos), "no task 'vqaa'; choose one of vqa, vcr"),
        WrongCall(("detector", "train", out, "--labels", captions, "--conventions", "hff"), "did you mean hf?"),
        WrongCall((*detector, "--set", "photos.flp=1"), "photos has no field 'flp'; did you mean flip"),
        WrongCall((*detector, "--set", "sampling.region_iou=3"), "it must be above 0 and at most 1"),
        WrongCall((*detector, "--set", "losses.region_beta=-1"), "it must not be negative"),
        WrongCall((*detector, "--device", "cuda:7"), "torch sees no GPU here"),
        WrongCall((*detector, "--frozen-stages", "one"), "expected whole numbers with commas between"),
        WrongCall((*detector, "--weights", "random:1", "--resnet", "random:1"), "detector or of a ResNet, not both"),
        WrongCall(("detector", "evaluate", "toy", "--labels", captions, "--device", "tpu"), "expected auto, cpu, cuda"),
        WrongCall((*small, "--device", "cuda"), "--device cuda: torch sees no GPU here"),
        WrongCall(("look", photo, "--detector", "toy", "--device", "cuda:7"), "torch sees no GPU here"),
        WrongCall(("probe", folder, photo, "a", "--detector", "toy", "--device", "cuda:7"), "torch sees no GPU here"),
        WrongCall(("evaluate", folder, "--store", store, "--captions", captions, "--device", "cuda:7"), "sees no GPU"),
    ]  # fmt: skip


def calls_with_unfit_files(pictures: Pictures, folder: Path) -> list[WrongCall]:
    """Empty files and folders, and tables of other columns: known before torch is loaded, in every command."""
    photos, captions, store = pictures
    out, empty, zero = folder / "new", folder / "empty", "is an empty file (0 bytes); name another"
    toy: Words = ("extract", photos, out, "--detector", "toy", "--captions")
    tune: Words = ("finetune", out, "--from", "none", "--system", "vlbert", "--store", store, "--task")
    joint: Words = ("--end-to-end", "--detector", "toy", "--photos", empty)
    no_photos = f"--photos '{empty}' is an empty folder; name that of the photos"
    missing = {
        "vcr": "holds no train.jsonl", "nlvr2": "holds no train.json", "refcoco": "holds no refs(unc).p",
        "retrieval": "holds none of dataset_flickr30k.json", "flickr30k-entities": "has no train.txt",
    }  # fmt: skip
    reads_captions: list[tuple[Words, str]] = [
        (toy, "--captions"),
        (("pretrain", out, "--store", store, "--captions"), "--captions"),
        (("evaluate", folder / "trained", "--store", store, "--out", out, "--captions"), "--captions"),
        (("detector", "train", out, "--photos", photos, "--labels"), "--labels"),
    ]
    return [
        *(WrongCall((*words, folder / f"zero.{kind}"), f"{option} '{folder / f'zero.{kind}'}' {zero}")
          for words, option in reads_captions for kind in ("json", "tsv", "csv", "txt")),
        *(WrongCall((*words, folder / "other.csv"), "no column for the image; expected one called image_path")
          for words, option in reads_captions if option == "--captions"),
        *(WrongCall(("extract", folder / f"zero.{kind}", out, "--detector", "toy"), zero) for kind in ("txt", "csv")),
        WrongCall(("extract", store, out, "--detector", "toy"), "is a store of features; name the photos"),
        WrongCall(("extract", photos), "missing argument: expected SOURCE... OUT", 2),
        WrongCall(("extract", empty, out, "--detector", "toy"), "the folder is empty; expected photos (.jpg, .png"),
        WrongCall((*toy, captions, "--photos", empty), no_photos),
        WrongCall(("pretrain", out, "--store", store, "--captions", captions, *joint), no_photos),
        WrongCall((*tune, "vqa", "--data", folder / "strange", *joint), no_photos),
        WrongCall(("detector", "train", out, "--labels", captions, "--photos", empty), no_photos),
        WrongCall(("evaluate", folder / "trained", "--store", store, "--captions", captions, "--photos", empty),
                  no_photos),
        WrongCall((*tune, "vqa", "--data", empty), "or tables of your own, train.csv (.jsonl, .parquet) with the"),
        WrongCall((*tune, "vqa", "--data", photos), "holds no v2_OpenEnded_mscoco_train2014_questions.json"),
        WrongCall((*tune, "vqa", "--data", folder / "strange"),
                  "a table has the columns image, text and answers (or question, answer), this one colour, size"),
        WrongCall((*tune, "vqa", "--data", folder / "bare"), "train.csv': no row below the names of its columns"),
        WrongCall((*tune, "labels", "--data", empty), "expected one of train.jsonl, train.csv, train.parquet"),
        WrongCall((*tune, "labels", "--data", folder / "strange"), "image, text and label, this one colour, size"),
        WrongCall((*tune[:6], "--task", "rte", "--data", empty), "has no train.tsv and no train-*.parquet of RTE"),
        *(WrongCall((*tune, task, "--data", empty), words) for task, words in missing.items()),
        *(WrongCall((*words, "--store", empty), "no feature store here (the folder is empty)") for words in (
            ("pretrain", out, "--captions", captions), ("evaluate", folder / "trained", "--captions", captions),
            (*tune[:6], "--task", "vqa", "--data", folder / "strange"),
            ("predict", folder / "trained", "--data", folder, "--out", out),
        )),
    ]  # fmt: skip


def calls_with_wrong_files(pictures: Pictures, folder: Path) -> list[WrongCall]:
    photos, captions, store = pictures
    out, gone, empty, file = folder / "new", folder / "gone", folder / "empty", folder / "text.safetensors"
    extract: Words = ("extract", photos, out)
    toy: Words = (*extract, "--detector", "toy")
    pretrain: Words = ("pretrain", out, "--captions", captions, "--store")
    first = sorted(os.listdir(photos))[0]
    beside: Words = ("--tokenizer", empty, "--out", folder / "probed.svg")
    return [
        WrongCall(extract, "give a weight file (--weights FILE"),
        WrongCall(("extract", photos, folder / "x.h5", "--detector", "toy"), f"store export {folder / 'x'} "),
        WrongCall((*extract, "--weights", gone / "detector.pth", "--vocab", gone / "vocab"),
                  f"--weights '{gone / 'detector.pth'}', --vocab '{gone / 'vocab'}'"),
        WrongCall((*extract, "--weights", file), "not a complete safetensors file: it is text"),
        WrongCall((*extract, "--weights", folder / "cut.safetensors"), "its header promises 79"),
        WrongCall((*extract, "--weights", folder / "cut.pth"), "its end is missing; fetch it again"),
        WrongCall((*extract, "--weights", folder / "odd.weights"), "suffix '.weights'; readable are .safetensors"),
        WrongCall((*extract, "--weights", photos), "is a folder; name a file"),
        WrongCall(("extract", photos / "*.nothing", out, "--detector", "toy"), "no file fits this pattern"),
        WrongCall(("extract", photos, "gs:/bucket/store", "--detector", "toy"), "write gs://bucket/store"),
        WrongCall(("extract", photos / first, photos / first, "--detector", "toy"), "the last argument is the folder"),
        WrongCall(("extract", photos / first, photos, photos / first, "--detector", "toy"), "quote the pattern"),
        WrongCall(("extract", photos, photos / "store", "--detector", "toy"), "only read; name a folder beside it"),
        WrongCall(("extract", photos, file / "store", "--detector", "toy"), "cannot be made: "),
        WrongCall(("extract", photos, "foo://bucket/store", "--detector", "toy"), "stores are in folders, or at s3://"),
        WrongCall((*toy, "--captions", folder / "others.token"), "none of 2 captioned images is among the 8 images"),
        WrongCall((*toy, "--captions", folder / "whole.token"),
                  "so the file is of more photos than these. That is a normal case: allow it with --min-match 0.09"),
        WrongCall((*toy, "--captions", gone), f"no such file or folder: --captions '{gone}'"),
        WrongCall((*toy, "--captions", photos), "is a folder; name a file"),
        WrongCall((*toy, "--captions", folder / "broken.json"), "broken.json"),
        WrongCall((*toy, "--photos", file), "is a file; name a folder"),
        WrongCall((*pretrain, file), "is a file; name a folder"),
        WrongCall((*pretrain, empty), "no feature store here (the folder is empty)"),
        WrongCall((*pretrain, folder / "begun"), "has begun it and finished nothing: run the same command again"),
        WrongCall((*pretrain, folder / "killed"), "the run that writes it has not finished"),
        WrongCall((*pretrain, store, "--tokenizer", gone / "t", "--from-bert", gone / "b"),
                  f"--tokenizer '{gone / 't'}', --from-bert '{gone / 'b'}'"),
        WrongCall(("pretrain", file / "run", *pretrain[2:], store), "cannot be made: "),
        WrongCall(("toyworld", out, "--perfect-store", file), "is a file; name a folder"),
        WrongCall((*pretrain, store, "--from-run", empty), "no config.json; expected a model's folder, a run of"),
        WrongCall((*pretrain, store, "--from-run", captions), "unknown suffix '.json'; readable are .safetensors"),
        WrongCall((*pretrain, store, "--from-bert", empty), "expected a folder with config.json and model.safetensors"),
        WrongCall((*pretrain, store, "--tokenizer", empty), "is neither a vocab.txt, nor a folder with tokenizer.json"),
        WrongCall(("pretrain", photos, *pretrain[2:], store), "is not empty and no run of ours"),
        WrongCall((*pretrain, store, "--from-run", folder / "trained", "--system", "vlbert"),
                  "holds an ImageBertForPreTraining; VL-BERT starts from a VLBertForPreTraining: choose its --system"),
        WrongCall((*pretrain, store, "--from-run", folder / "trained", "--set", "model.hidden_size=33"),
                  "is not a multiple of num_attention_heads 2"),
        WrongCall((*pretrain, store, "--from-run", folder / "trained"), "was trained on ffffffffffffffffffffffff; ex"),
        WrongCall((*pretrain, store, "--text-corpus", captions, "--system", "visualbert"), "leave out the text corpus"),
        WrongCall((*pretrain, store, "--task-text", captions, "--system", "vlbert"), "on a task's own text; leave it"),
        WrongCall(("pretrain", out, "--text-corpus", captions, "--system", "visualbert"), "name a --store, or train"),
        WrongCall(("pretrain", out, "--text-corpus", captions, "--set", "data.share=0.5"), "a run on text alone has"),
        WrongCall(("demo", photos), "is not empty and holds no demo of roibeam; give a new folder"),
        WrongCall(("evaluate", folder / "trained", "--store", store, "--captions", captions, "--out", out),
                  "was trained on ffffffffffffffffffffffff; extract"),
        WrongCall(("evaluate", folder / "trained", "--store", store, "--captions", captions, "--tokenizer", empty),
                  "is neither a vocab.txt, nor a folder with tokenizer.json"),
        WrongCall(("probe", folder / "trained", "sample_00000", "a", "--store", store, *beside),
                  "is neither a vocab.txt, nor a folder with tokenizer.json"),
        WrongCall(("evaluate", empty, "--store", store, "--captions", captions), "no config.json; expected a model's"),
        WrongCall(("attention", folder / "trained", "--store", store, "--entities", empty, "--out", out),
                  "has no folder Sentences; expected that of Flickr30k Entities"),
        WrongCall(("attention", gone / "r", "--store", gone / "s", "--entities", gone / "e", "--parses", gone / "p"),
                  f"--entities '{gone / 'e'}', --parses '{gone / 'p'}'"),
        WrongCall(("convert", folder / "cut.safetensors", folder / "b.pth"), "its header promises 79"),
        WrongCall(("convert", empty, out, "--to", "roibeam"), "no config.json; expected a model's folder"),
        WrongCall(("detector", "train", photos, "--labels", captions), "is not empty and no run of ours"),
        WrongCall(("detector", "train", out, "--labels", folder / "latin.tsv"), "of COCO, or a list .txt of Visual Ge"),
        WrongCall(("download", folder / "none.txt", out), "expected a Conceptual Captions .tsv"),
        WrongCall(("download", folder / "latin.tsv", out), "no row with a caption and a URL; line 1: "),
        WrongCall(("download", folder / "urls.tsv", photos), "is not empty and holds no download"),
        WrongCall(("extract", photos, out, "--detector"), "--detector needs a value behind it: toy, a run of", 2),
        WrongCall(("extract", photos, out, "--detector", "toy", "--part", "5/4"), "; of 4 parts 1/4 to 4/4"),
        WrongCall(("extract", gone / "s", photos, "--detector", "toy"), "are the two in the wrong order? The photos"),
        WrongCall(("finetune", out, "--task", "vqa"), "missing: --from and --data (", 2),
        WrongCall(("store", "info", file), "it is a file; a store is a folder with manifest.json"),
        WrongCall(("store", "copy", store, store / "copy"), "is in the source"),
        WrongCall(("store", "import", captions, out), "this is a COCO file; one of captions goes to --captions"),
        WrongCall(("store", "repair", store, "--photos", gone / "p", "--weights", gone / "w"),
                  f"--photos '{gone / 'p'}', --weights '{gone / 'w'}'"),
        WrongCall(("evaluate", gone / "r", "--store", gone / "s", "--captions", gone / "c"),
                  f"CHECKPOINT '{gone / 'r'}', --store '{gone / 's'}', --captions '{gone / 'c'}'"),
        WrongCall(("look", photos), "is a folder; name a file"),
        WrongCall(("detector", "train", out, "--labels", gone / "l", "--photos", gone / "p", "--weights", gone / "w"),
                  f"--labels '{gone / 'l'}', --photos '{gone / 'p'}', --weights '{gone / 'w'}'"),
        WrongCall(("convert", file, out / "b.pth", "--config", captions), "--config is for a model's checkpoint"),
        WrongCall(("leaks", gone / "p", "--held-out", f"karpathy={gone}"), f"STORE '{gone / 'p'}'; and --held-out"),
        WrongCall(("store", "copy", gone / "a", gone / "b", out), f"SOURCE '{gone / 'a'}', SOURCE '{gone / 'b'}'"),
        WrongCall(("store", "diff", gone / "a", gone / "b"), f"LEFT '{gone / 'a'}', RIGHT '{gone / 'b'}'", 2),
        WrongCall(("store", "import", gone / "a", out, "--format", "lxmert_h5", "--vocab", gone / "v"),
                  f"SOURCE '{gone / 'a'}', --vocab '{gone / 'v'}'; and no feature file format is called 'lxmert_h5'"),
    ]  # fmt: skip
