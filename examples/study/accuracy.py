"""`python accuracy.py STUDY [DATA]`: the accuracy of the trials that are served, and of the ensemble of them.

STUDY is the folder of a study of LeNet-5, whose best trials `psfleet serve STUDY --top N` serves on this machine. DATA
is the folder of MNIST's idx files, without which the test images are those in `../lenet/data`.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "lenet"))

from digits import read_digits, read_mnist

URL = "http://127.0.0.1:8000/v2/models"
ROWS = 50
"""Of a query."""
LENGTH = "Inference-Header-Content-Length"


def main(study: Path, data: str | None) -> None:
    """Prints the accuracies."""
    _, test = read_digits() if data is None else read_mnist(data)
    pixels = test.pixels.astype(np.float32)[..., np.newaxis] / 255
    found, members = zip(
        *(answer(study.name, pixels[at : at + ROWS]) for at in range(0, len(pixels), ROWS)), strict=True
    )
    number = int(members[0].split(" of ")[1])
    for trial, accuracy in best_trials(study, number):
        print(f"trial {trial}: {accuracy:.2%}")
    print(f"ensemble ({', '.join(sorted(set(members)))}): {np.mean(np.concatenate(found) == test.labels):.2%}")


def answer(model: str, rows: np.ndarray) -> tuple[np.ndarray, str]:
    """The digits in images `[n, 28, 28, 1]`, and how many members say so; tensors travel in binary form."""
    tensor = {
        "name": "input_0", "datatype": "FP32", "shape": rows.shape, "parameters": {"binary_data_size": rows.nbytes}
    }  # fmt: skip
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    query = Request(f"{URL}/{model}/infer", header + rows.tobytes(), {LENGTH: str(len(header))})
    with urlopen(query) as reply:
        content, length = reply.read(), int(reply.headers[LENGTH])
    logits = np.frombuffer(content[length:], np.float32).reshape(len(rows), -1)
    return logits.argmax(1), json.loads(content[:length])["parameters"]["members"]


def best_trials(study: Path, number: int) -> list[tuple[int, float]]:
    """Numbers and accuracies of the best trials on the same images, as the sweep has evaluated them."""
    with (study / "trials.csv").open(newline="") as file:
        trials = [
            (int(row["trial"]), float(row["accuracy"])) for row in csv.DictReader(file) if row["state"] == "complete"
        ]
    return sorted(trials, key=lambda trial: -trial[1])[:number]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
