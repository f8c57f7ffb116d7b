"""A pre-training run asked for from Python: the same as from the command line."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_commands import Cli

from roibeam.pipelines.pretraining.request import PretrainRequest, RequestedData, RequestedModel, RequestedTraining
from roibeam.pipelines.pretraining.requested_run import RequestedStage, run_pretraining, run_stages
from roibeam.pipelines.toyworld.rendering import draw_samples

SIZES = ("hidden_size=32", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=64")


@pytest.fixture
def request_of(roibeam: Cli, tmp_path: Path, tiny_network: tuple[str, ...]) -> Callable[[str], PretrainRequest]:
    """Two steps on a store of eight pictures, by the name of the run's folder."""
    captions = draw_samples(tmp_path / "samples", count=8)
    rows = json.loads(captions.read_text())
    rows["annotations"].append({**rows["annotations"][0], "caption": " "})  # left out, with a note
    captions.write_text(json.dumps(rows))
    assert roibeam("extract", tmp_path / "samples" / "images", tmp_path / "store", *tiny_network).code == 0
    data = RequestedData(store=[str(tmp_path / "store")], captions=[str(captions)])
    settings = ["train.checkpoint_every=0", *(f"model.{each}" for each in SIZES)]
    training = RequestedTraining(steps=2, batch_size=4, device="cpu", threads=1, set=settings)
    return lambda name: PretrainRequest(tmp_path / name, data, RequestedModel(system="imagebert"), training)


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "log.jsonl").read_text().splitlines()]


def test_a_request_runs_as_the_command_does(
    roibeam: Cli, request_of: Callable[[str], PretrainRequest], tmp_path: Path
) -> None:
    asked = request_of("asked")
    result = run_pretraining(asked)
    done = roibeam(
        "pretrain", tmp_path / "told", "--store", asked.data.store[0], "--captions", asked.data.captions[0],
        "--system", "imagebert", "--steps", 2, "--batch-size", 4, "--device", "cpu", "--threads", 1, "--json",
        *(part for each in asked.training.settings for part in ("--set", each)),
    )  # fmt: skip
    assert done.code == 0, done.err
    facts, ours = json.loads(done.out.splitlines()[-1]), result.to_json()
    assert ours["run"] == str(tmp_path / "asked") and facts["run"] == str(tmp_path / "told")
    assert facts["notes"] and ours["notes"] == facts["notes"] and ours["evaluation"] == facts["evaluation"]
    assert facts.keys() - {"event", "started_from"} == ours.keys()
    name = "model/model.safetensors"
    told = Path(facts["checkpoint"]) / name
    assert (result.training.checkpoint / name).read_bytes() == told.read_bytes()
    configs = [json.loads((tmp_path / run / "config.json").read_text()) for run in ("asked", "told")]
    assert configs[0] == configs[1]
    assert sorted(path.name for path in (tmp_path / "asked").iterdir()) == sorted(
        path.name for path in (tmp_path / "told").iterdir()
    )


def test_requests_in_stages(request_of: Callable[[str], PretrainRequest], tmp_path: Path) -> None:
    """The second goes on from the weights of the first, in the folder of the whole."""
    one = request_of("unused")
    two = replace(one, training=replace(one.training, seed=1))
    told = []
    stages = [RequestedStage("first", one, ["--seed 0"]), RequestedStage("second", two, ["--seed 1"])]
    run_stages(tmp_path / "run", stages, tell=lambda request, result: told.append((request, result)))
    assert [request.out.name for request, _ in told] == ["stage-1", "stage-2"]
    assert told[0][0].model.from_run is None and told[1][0].model.from_run == str(tmp_path / "run" / "stage-1")
    recorded = json.loads((tmp_path / "run" / "stage-2" / "config.json").read_text())["recorded"]
    assert recorded["start"] == str(told[0][1].training.checkpoint / "model")
    assert losses(tmp_path / "run" / "stage-1") != losses(tmp_path / "run" / "stage-2")
    run_stages(tmp_path / "run", stages, tell=lambda request, result: pytest.fail("both are done"))
    lost = replace(two, data=replace(two.data, captions=["none.json"]))
    with pytest.raises(ValueError, match=r"^stage 2 \(lost\): --captions: no file here: 'none.json'$"):
        run_stages(tmp_path / "new", [stages[0], RequestedStage("lost", lost, [])])
    assert not (tmp_path / "new" / "stage-1").exists()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (RequestedModel(recipe="imagebert-stage-2"), "goes on from imagebert-stage-1: name its run with --from-run"),
        (RequestedModel(recipe="imagebert-stage-1", system="vlbert"), "leave --system and --model out"),
        (RequestedModel(toy=True), "--toy is the small variant of a --recipe"),
        (RequestedModel(background="middle"), "--background 'middle': choose one of first, last, none"),
        (RequestedModel(background="first"), "of a model to start from, name it with --from-run"),
        (RequestedModel(model="huge"), "--model 'huge': choose one of small"),
    ],
)
def test_requests_that_are_none(tmp_path: Path, model: RequestedModel, words: str) -> None:
    asked = PretrainRequest(tmp_path / "run", RequestedData(store=["nowhere"]), model)
    with pytest.raises(ValueError, match=words):
        run_pretraining(asked)
    with pytest.raises(ValueError, match="name the store that roibeam extract wrote"):
        run_pretraining(replace(asked, data=RequestedData()))
    assert not (tmp_path / "run").exists()
