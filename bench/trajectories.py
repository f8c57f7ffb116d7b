"""Twenty pre-training steps of the official codes and of ours side by side, float64.

    python bench/trajectories.py --vl-bert CHECKOUT --vilbert CHECKOUT --interbert CHECKOUT --visualbert CHECKOUT

Checkouts of jackroos/VL-BERT, jiasenlu/vilbert_beta, black4321/InterBERT and uclanlp/visualbert; any of them. Prints
the largest absolute difference over all steps and parameters; exit code 1 when one is above the bar. `--record FILE`
writes a sketch of the first official steps, which tests/pipelines/test_trajectories.py compares with ours.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import official_training_concap
import official_training_visualbert
import official_training_vlbert
import torch
from official_training import Recorder, as_then
from trajectory_cases import CASES, STEPS, Case
from trajectory_runs import Moment, run_ours, sketch
from trajectory_samples import draw_samples

BAR = 1e-8  # after every step
QUANTITIES = ("loss", "gradient norm", "learning rate", "parameters")
RECORDED_STEPS = 3
# System -> what runs it, and a file by which its checkout is known.
OFFICIAL = {
    "vl-bert": (official_training_vlbert.train, "pretrain/function/train.py"),
    "vilbert": (official_training_concap.train, "vilbert/vilbert.py"),
    "interbert": (official_training_concap.train, "bertmodel/modules.py"),
    "visualbert": (official_training_visualbert.train, "visualbert/models/model_wrapper.py"),
}


def run_official(case: Case, checkout: Path, folder: Path) -> list[Moment]:
    """All steps of a case by the official code.

    Args:
        folder: an empty one, for what the code writes.
    """
    recorder = Recorder(case)
    with as_then(), recorder.watching():
        OFFICIAL[case.system][0](case, checkout.resolve(), folder.resolve(), draw_samples(case), recorder)
    return recorder.moments()


def differences(theirs: Moment, ours: Moment) -> tuple[float, float, float, float]:
    """Largest absolute ones of one step, in the order of `QUANTITIES`; inf where the two do not train or have the same.

    Raises:
        ValueError: when the official run is not finite: then there is nothing to agree with.
    """
    if not np.isfinite([theirs.loss, theirs.gradient_norm]).all():
        raise ValueError(f"the official code came to loss {theirs.loss}, gradient norm {theirs.gradient_norm}")
    rates = parameters = float("inf")
    if theirs.rates.keys() == ours.rates.keys():
        rates = max(abs(rate - ours.rates[name]) for name, rate in theirs.rates.items())
    if theirs.parameters.keys() == ours.parameters.keys():
        pairs = ((value, ours.parameters[name]) for name, value in theirs.parameters.items())
        parameters = max(float((value - other).abs().max()) for value, other in pairs)
    return abs(theirs.loss - ours.loss), abs(theirs.gradient_norm - ours.gradient_norm), rates, parameters


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for system in OFFICIAL:
        parser.add_argument(f"--{system}", type=Path, metavar="CHECKOUT")
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be given again")
    parser.add_argument("--record", type=Path, metavar="FILE", help="writes the first official steps as .npz")
    arguments = parser.parse_args()
    checkouts = {system: getattr(arguments, system.replace("-", "_")) for system in OFFICIAL}
    for system, checkout in checkouts.items():
        if checkout is not None and not (checkout / OFFICIAL[system][1]).is_file():
            parser.error(f"--{system}: no {OFFICIAL[system][1]} in {checkout}; is it a checkout of that code?")
    chosen = [case for name, case in CASES.items() if checkouts[case.system] and name in (arguments.case or CASES)]
    if not chosen:
        parser.error("nothing to compare: give a checkout")
    torch.set_num_threads(1)
    worst, recorded = 0.0, {}
    print(f"| run, {STEPS} steps | {' | '.join(QUANTITIES)} | steps clipped | farthest parameter moved |")
    print("|---" * (len(QUANTITIES) + 3) + "|")
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "theirs").mkdir()
            theirs = run_official(case, checkouts[case.system], Path(folder) / "theirs")
            ours = run_ours(case, Path(folder) / "ours")
        table = np.array([differences(*pair) for pair in zip(theirs, ours, strict=True)])
        largest = " | ".join(f"{value:.1e}" for value in table.max(axis=0))
        print(f"| {case.name} | {largest} | {_clipped(case, theirs)} | {_moved(theirs):.2g} |", flush=True)
        worst = max(worst, float(table.max()))
        found = sketch(theirs[:RECORDED_STEPS])
        recorded |= {f"{case.name}/{name}": array for name, array in found.items()}
    print(f"largest {worst:.1e}, allowed {BAR:.0e}")
    if arguments.record is not None:
        np.savez_compressed(arguments.record, **recorded)
        print(arguments.record)
    return 0 if worst <= BAR else 1


def _clipped(case: Case, moments: list[Moment]) -> str:
    """In how many steps the norm of all gradients was above the limit, where it is the limit of them all."""
    if case.train.clip_scope == "each":
        return "each tensor"
    return str(sum(moment.gradient_norm > case.train.clip_norm for moment in moments))


def _moved(moments: list[Moment]) -> float:
    """How far any parameter moved from the first step to the last: that there is something to agree on."""
    first, last = moments[0].parameters, moments[-1].parameters
    return max(float((value - first[name]).abs().max()) for name, value in last.items())


if __name__ == "__main__":
    raise SystemExit(main())
