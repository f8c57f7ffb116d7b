"""Starting from a published BERT: files that transformers writes, and a hub on this machine."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from evaluated_models import MODELS
from finetune_requests import request
from tiny_commands import Cli, Pictures, ok, one_line
from transformers import BertConfig, BertForPreTraining, BertModel

from roibeam.model.inputs import VLBatch
from roibeam.model.visualbert.model import VisualBertConfig, VisualBertForPreTraining
from roibeam.model.vlbert.config import vlbert_task_config
from roibeam.model.vlbert.tasks import VLBertForVqa
from roibeam.pipelines.data.datasets.text_sets import GLUE_TASKS
from roibeam.pipelines.finetuning.recipes.published import TASK_RECIPES
from roibeam.pipelines.finetuning.rows import LABEL, TaskGroup, TaskRow, TaskText
from roibeam.pipelines.finetuning.run.group_batches import GroupBatches
from roibeam.pipelines.finetuning.run.network import started_network
from roibeam.pipelines.finetuning.run.task_start import start_of
from roibeam.pipelines.finetuning.systems.options import LayoutOptions
from roibeam.pipelines.finetuning.systems.task_system import OutputSpec
from roibeam.pipelines.training.model_files.model_checkpoint import load_model
from roibeam.pipelines.training.model_files.model_start import check_words_of_bert, read_bert, start_from_bert
from roibeam.pipelines.training.model_files.tokenizer import load_tokenizer

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
OWN = {"InterBERT": {"num_hidden_layers": 1}}  # beside one for the text alone


def save_bert(folder: Path, *, heads: bool = True, safe: bool = True) -> Any:
    torch.manual_seed(0)
    kind = BertForPreTraining if heads else BertModel
    bert = kind(BertConfig(**SIZES, max_position_embeddings=64, vocab_size=len(WORDS))).eval()
    folder.mkdir(parents=True)
    if safe:
        bert.save_pretrained(folder)
    else:
        bert.config.save_pretrained(folder)
        # As files of 2019 name LayerNorms.
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        renamed = {re.sub(r"LayerNorm\.\w+$", lambda n: old[n[0]], n): t.clone() for n, t in bert.state_dict().items()}
        torch.save(renamed, folder / "pytorch_model.bin")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return bert


@pytest.mark.parametrize("heads, safe", [(True, True), (False, False)])
@pytest.mark.parametrize("name", ("VL-BERT", "ViLBERT", "single stream", "VisualBERT", "ImageBERT", "InterBERT"))
def test_each_model_takes_what_it_has_a_place_for(name: str, heads: bool, safe: bool, tmp_path: Path) -> None:
    theirs = save_bert(tmp_path / "bert", heads=heads, safe=safe)
    bert = read_bert(str(tmp_path / "bert"))
    torch.manual_seed(1)
    model = MODELS[name](**bert.sizes | OWN.get(name, {}))
    drawn = {key: value.clone() for key, value in model.state_dict().items()}
    left = start_from_bert(model, bert)
    now = model.state_dict()
    assert all(torch.equal(now[key], drawn[key]) for key in left)
    encoder = theirs.bert if heads else theirs
    words = next(key for key in now if key.endswith("embeddings.words.weight"))
    assert words not in left and torch.equal(now[words], encoder.embeddings.word_embeddings.weight)
    assert ("masked_word_head.bias" in left) != heads
    assert any("feature" in key or "projection" in key or "region" in key for key in left)


def test_text_alone_is_read_as_bert_reads_it(tmp_path: Path) -> None:
    theirs = save_bert(tmp_path / "bert")
    bert = read_bert(str(tmp_path / "bert"))
    model = VisualBertForPreTraining(VisualBertConfig(**bert.sizes, region_feature_size=4)).eval()
    start_from_bert(model, bert)
    ids = torch.tensor([[2, 7, 9, 3]])
    nothing = torch.zeros(1, 0, dtype=torch.bool)
    batch = VLBatch(
        text_ids=ids, text_mask=torch.ones_like(ids, dtype=torch.bool), text_segments=torch.zeros_like(ids),
        region_features=torch.zeros(1, 0, 4), region_boxes=torch.zeros(1, 0, 4), region_mask=nothing,
        image_hw=torch.ones(1, 2), masked_regions=nothing,
    )  # fmt: skip
    with torch.no_grad():
        states = model.encode(batch).text_states
        want = theirs.bert(ids).last_hidden_state
    torch.testing.assert_close(states, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in TASK_RECIPES if name.endswith("-bert-base")])
def test_the_bert_base_row_of_glue_is_bert(name: str, tmp_path: Path) -> None:
    """InterBERT's Table 3: what the run builds scores two texts as transformers' BERT does, and trains its parameters
    and a linear layer, no more."""
    theirs, recipe = save_bert(tmp_path / "bert").bert, TASK_RECIPES[name]
    start = start_of(request(recipe.task, from_bert=str(tmp_path / "bert")), recipe)
    asked = OutputSpec(LABEL, len(GLUE_TASKS[recipe.task].labels) or 1, 0)
    model = start.model(vocab_size=len(WORDS), width=None)
    network = started_network(start.system, model, asked, recipe.head, source=name)
    network.module.eval()
    made = GroupBatches(
        start.system, network.encoder_config, start.tokenizer(None, ()), LayoutOptions(), asked, None,
        loss=None,
    )  # fmt: skip
    texts = (TaskText(("a b cd",)), TaskText(("ef g",)))
    pair, single = (TaskGroup(str(parts), (), (TaskRow(parts, ()),), 0) for parts in (texts, texts[:1]))
    inputs = made.batch([pair, single]).inputs
    assert inputs.text_segments.max() == 1
    weight, bias = (each for path, each in network.module.named_parameters() if path.startswith("head."))
    with torch.no_grad():
        rest = {"attention_mask": inputs.text_mask.long(), "token_type_ids": inputs.text_segments}
        pooled = theirs(inputs.text_ids, **rest).pooler_output
        torch.testing.assert_close(network.module(inputs), pooled @ weight.T + bias, rtol=0, atol=1e-5)
    trained = sum(each.numel() for each in network.module.parameters() if each.requires_grad)
    assert trained == sum(each.numel() for each in theirs.parameters()) + weight.numel() + bias.numel()


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    save_bert(tmp_path / "bert")
    bert = read_bert(str(tmp_path / "bert"))
    with pytest.raises(ValueError, match="do its sizes and vocabulary fit"):
        start_from_bert(MODELS["VL-BERT"](**bert.sizes | {"vocab_size": 50}), bert)
    task = VLBertForVqa(vlbert_task_config("vqa", **bert.sizes | {"coordinate_embedding_size": 16}))
    with pytest.raises(ValueError, match="VLBertForVqa starts from no BERT"):
        start_from_bert(task, bert)
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings"):
        (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {name: 10**7}))
        with pytest.raises(ValueError, match=f"{name} is 10000000, the parameters have {config[name]}"):
            read_bert(str(tmp_path / "bert"))
    (tmp_path / "bert" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no BERT configuration, vocab_size"):
        read_bert(str(tmp_path / "bert"))
    with pytest.raises(ValueError, match=r"expected a folder with config\.json and model\.safetensors"):
        read_bert(str(tmp_path))


_READ = """
import sys
from roibeam.pipelines.training.model_files.model_start import read_bert
bert = read_bert(sys.argv[1])
print(bert.sizes["hidden_size"], len(bert.state))
"""


@pytest.mark.slow
def test_a_repository_of_the_hub(tmp_path: Path) -> None:
    """The real client of the hub, against a server on this machine that answers as the hub does."""
    save_bert(tmp_path / "files" / "owner" / "bert" / "resolve" / "main")

    class Hub(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            self.send_header("X-Repo-Commit", "c" * 40)
            self.send_header("ETag", f'"{abs(hash(self.path)):064d}"')
            super().end_headers()

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, directory=str(tmp_path / "files")))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment = {
            **os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1",
        }  # fmt: skip
        command = [sys.executable, "-c", _READ, "hf:owner/bert"]
        read = subprocess.run(command, env=environment, capture_output=True, text=True)
    finally:
        server.shutdown()
        server.server_close()
    assert read.returncode == 0, read.stderr
    assert read.stdout.split()[0] == "32" and int(read.stdout.split()[1]) > 40


def test_pretrain_starts_from_it(tmp_path: Path, roibeam: Cli, pictures: Pictures) -> None:
    """With its own words alone: of others the embeddings are not."""
    theirs = save_bert(tmp_path / "bert")
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join([*WORDS[:5], *reversed(WORDS[5:])]))
    words = ("--store", pictures.store, "--captions", pictures.captions, "--from-bert", tmp_path / "bert")
    refused = one_line(roibeam("pretrain", tmp_path / "no", *words, "--tokenizer", other))
    assert f"is not that of BERT {tmp_path / 'bert'}" in refused and "5 is '##z' here and 'a' there" in refused
    assert not (tmp_path / "no" / "tokenizer").exists()
    words += ("--steps", 1, "--batch-size", 2, "--learning-rate", 1e-12, "--system", "vlbert")
    ok(roibeam("pretrain", tmp_path / "run", *words))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["recorded"]["bert"] == str(tmp_path / "bert")
    model: Any = load_model(str(tmp_path / "run")).model
    assert model.config.hidden_size == 32 and model.config.vocab_size == len(WORDS)
    ours = model.state_dict()["vlbert.encoder.layers.1.attention.query.weight"]
    torch.testing.assert_close(ours, theirs.bert.encoder.layer[1].attention.self.query.weight, rtol=0, atol=1e-6)


def test_a_bert_without_a_vocabulary_takes_one_of_its_size(tmp_path: Path) -> None:
    save_bert(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").rename(tmp_path / "vocab.txt")
    bert = read_bert(str(tmp_path / "bert"))
    check_words_of_bert(bert, load_tokenizer(str(tmp_path / "vocab.txt")))
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "dog"]))
    with pytest.raises(ValueError, match=r"has 58 pieces, BERT .* has embeddings of 57 and no vocabulary"):
        check_words_of_bert(bert, load_tokenizer(str(tmp_path / "vocab.txt")))
