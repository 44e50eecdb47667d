"""Fine-tuning at default options beside two linear probes, and beside timm at the same epochs and size, in one run.

    python benchmarks/finetune.py pets flowers --weights deit_tiny.safetensors --seeds 0 1 2 --json out.json

Each DATA has train/ and test/ (and perhaps val/). The probe is scikit-learn's logistic regression on frozen features of
all of train/, its C cross-validated there. The own probe is what `--tune probe` solves, on the same features: where the
two differ, the probe is in question and not the tuning. `vitrail.train(data, weights=…)` gets no other option than the
seed, and selects on its own validation images; test/ is looked at once, at the end. timm's row is what its training
script is made of (create_loader with its augmentation, AdamW with layer decay, cosine schedule, label smoothing, EMA),
at the epochs, the batch size and the image size that vitrail chose, on all of train/.

Differences are paired, against each probe: for each test image, the mean over seeds of (right − probe right); the
interval is a bootstrap over images.
"""

import argparse
import json
import shutil
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from record import keep

import vitrail
from vitrail.data.sources.classification import open_source
from vitrail.tasks.linear_probe import solve_probe

LIBRARIES = ("vitrail", "timm")


def frozen_features(weights: str, samples: list, device: str) -> np.ndarray:
    """In fp32, also where a GPU predicts in bf16: two solvers should not disagree for the rounding of what they get."""
    predictor = vitrail.load(weights, device=device)
    predictor.precision = nullcontext  # type: ignore[method-assign]
    return predictor.embed([sample.open() for sample in samples], batch_size=128).numpy()


def marks(right: np.ndarray) -> list[str]:
    return ["".join("01"[int(one)] for one in row) for row in right]


def probe_answers(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """scikit-learn's logistic regression, C by five-fold cross-validation on train/."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=np.logspace(-4, 1, 11), cv=5, max_iter=2000, n_jobs=4)
    )
    return model.fit(features, labels).predict(test)


def own_probe_answers(
    features: np.ndarray, labels: np.ndarray, test: np.ndarray, classes: int, device: str
) -> np.ndarray:
    """Vitrail's, its penalty by cross-validation on train/, as `--tune probe` solves for it."""
    targets = torch.nn.functional.one_hot(torch.from_numpy(labels), classes)
    probe = solve_probe(torch.from_numpy(features).to(device), targets)
    return probe(torch.from_numpy(test).to(device)).argmax(1).cpu().numpy()


def vitrail_answers(data: str, weights: str, seed: int, test: list, device: str) -> tuple[np.ndarray, dict]:
    folder = Path(tempfile.mkdtemp()) / "run"
    run = vitrail.train(data, weights=weights, seed=seed, out=folder, device=device)
    recipe = json.loads((folder / "run.json").read_text())["recipe"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    predictor = vitrail.load(run, device=device)
    kept = {name: predictor.about["metrics"].get(name) for name in ("epoch", "share")}
    answers = predictor.probabilities([s.open() for s in test], batch_size=128).argmax(1).numpy()
    shutil.rmtree(folder.parent)
    return answers, {"epochs": recipe["epochs"], "batch_size": recipe["batch_size"], "validation": run.metrics["top1"],
                     "rows": rows, "kept": kept}  # fmt: skip


def timm_answers(
    data: str, weights: str, seed: int, epochs: int, batch: int, lr: float, test: list, device: str, workers: int
) -> np.ndarray:
    import timm
    from timm.data import create_dataset, create_loader, resolve_data_config
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV3, random_seed

    random_seed(seed)
    classes = sorted(p.name for p in (Path(data) / "train").iterdir())
    model = timm.create_model("deit_tiny_patch16_224", num_classes=1000, drop_path_rate=0.1, checkpoint_path=weights)
    model.reset_classifier(len(classes))
    model.to(device)
    config = resolve_data_config({}, model=model)
    common = {"mean": config["mean"], "std": config["std"], "interpolation": config["interpolation"],
              "input_size": config["input_size"], "num_workers": workers, "device": torch.device(device),
              "use_prefetcher": device != "cpu"}  # fmt: skip
    train = create_loader(
        create_dataset("", f"{data}/train"), batch_size=batch, is_training=True, auto_augment=None, color_jitter=0.4,
        hflip=0.5, re_prob=0.0, persistent_workers=workers > 0, **common,
    )  # fmt: skip
    held = create_loader(create_dataset("", f"{data}/test"), batch_size=256, crop_pct=config["crop_pct"], **common)
    optimizer = create_optimizer_v2(model, "adamw", lr=lr, weight_decay=0.05, layer_decay=0.75)
    scheduler, _ = create_scheduler_v2(
        optimizer, "cosine", num_epochs=epochs, warmup_epochs=1, warmup_lr=1e-6, min_lr=1e-6, step_on_epochs=False,
        updates_per_epoch=len(train),
    )  # fmt: skip
    average, loss_of = ModelEmaV3(model, decay=0.998, use_warmup=True), LabelSmoothingCrossEntropy(0.1)
    updates = 0
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            if device == "cpu":
                x, y = x.to(device), y.to(device)
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            updates += 1
            average.update(model, step=updates)
            scheduler.step_update(updates)
        scheduler.step(epoch + 1)
    average.module.eval()
    answers = []
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
        for x, _ in held:
            answers.append(average.module(x.to(device)).argmax(1).cpu())
    found = np.concatenate([part.numpy() for part in answers])
    # timm's reader lists class folders and the files in them in natural order; bring them into ours.
    names = [str(Path(name)) for name in held.dataset.filenames(absolute=True)]
    place = {name: i for i, name in enumerate(names)}
    to_ours = [classes.index(name) for name, _ in sorted(held.dataset.reader.class_to_idx.items(), key=lambda c: c[1])]
    return np.array([to_ours[found[place[str(sample.where)]]] for sample in test])


def paired(right: np.ndarray, probe: np.ndarray, rounds: int = 10_000) -> tuple[float, float, float]:
    """Mean difference in points and its 95 % interval: right [seeds, n], probe [n]."""
    difference = right.mean(axis=0) - probe
    rng = np.random.default_rng(0)
    means = [difference[rng.integers(0, len(difference), len(difference))].mean() for _ in range(rounds)]
    low, high = np.percentile(means, [2.5, 97.5])
    return 100 * difference.mean(), 100 * low, 100 * high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: the two linear probes alone")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=LIBRARIES)
    parser.add_argument("--timm-lr", type=float, nargs="+", default=[3e-4], help="all are shown, and the best counts")
    parser.add_argument("--workers", type=int, default=4, help="of timm's loader")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    for data in arguments.data:
        source = open_source(data)
        train, test = source.splits["train"], source.splits["test"]
        truth = np.array([sample.labels[0] for sample in test])
        labels = np.array([sample.labels[0] for sample in train])
        features, seen = (frozen_features(arguments.weights, part, arguments.device) for part in (train, test))
        print(f"{data}: {len(train)} train, {len(test)} test", flush=True)
        start = time.time()
        theirs = probe_answers(features, labels, seen)
        probes = {"probe": theirs == truth}
        print(f"  probe {probes['probe'].mean():.2%} ({time.time() - start:.0f} s)", flush=True)
        start = time.time()
        own = own_probe_answers(features, labels, seen, len(source.classes), arguments.device)
        probes["own probe"] = own == truth
        print(
            f"  own probe {probes['own probe'].mean():.2%} ({time.time() - start:.0f} s); "
            f"{(own != theirs).sum()} answers differ",
            flush=True,
        )
        result: dict = {"train": len(train), "test": len(test)}
        result |= {name: float(right.mean()) for name, right in probes.items()}
        rows: dict[str, list[np.ndarray]] = {}
        facts: dict = {}
        for seed in arguments.seeds:
            start = time.time()
            answers, facts = vitrail_answers(data, arguments.weights, seed, test, arguments.device)
            rows.setdefault("vitrail", []).append(answers == truth)
            print(f"  vitrail seed {seed}: {rows['vitrail'][-1].mean():.2%} ({time.time() - start:.0f} s)", flush=True)
        if "timm" in arguments.libraries:
            for lr in arguments.timm_lr:
                for seed in arguments.seeds:
                    start = time.time()
                    chosen = facts["epochs"], facts["batch_size"], lr
                    answers = timm_answers(
                        data, arguments.weights, seed, *chosen, test, arguments.device, arguments.workers
                    )
                    name = f"timm, lr {lr:g}"
                    rows.setdefault(name, []).append(answers == truth)
                    print(
                        f"  {name} seed {seed}: {rows[name][-1].mean():.2%} ({time.time() - start:.0f} s)", flush=True
                    )
        # For each test image, in order, whether it was right: so that any two can be compared later.
        result["right"] = {name: marks(right[None]) for name, right in probes.items()}
        result["right"] |= {name: marks(np.array(right)) for name, right in rows.items()}
        for name, right in rows.items():
            accuracy = [float(row.mean()) for row in right]
            result[name] = {"accuracy": accuracy}
            words = []
            for reference, probe in probes.items():
                mean, low, high = paired(np.array(right), probe)
                against = {"difference": mean, "low": low, "high": high}
                result[name] |= against if reference == "probe" else {f"against the {reference}": against}
                words.append(f"against the {reference} {mean:+.2f} [{low:+.2f}, {high:+.2f}]")
            print(f"  {name:16s} {100 * np.mean(accuracy):6.2f} ± {100 * np.std(accuracy):.2f}   {', '.join(words)}",
                  flush=True)  # fmt: skip
        if facts:
            result["vitrail"] |= {"epochs": facts["epochs"], "batch_size": facts["batch_size"]}
        results[Path(data).name] = result
        keep(arguments.json, {"results": results}, arguments.device)


if __name__ == "__main__":
    main()
