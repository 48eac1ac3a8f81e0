"""Run model.onnx on the windows of test.csv and write from_onnx.csv, in the layout of predictions.csv; no evenflow."""

from __future__ import annotations

import csv

import numpy as np
import onnxruntime

NAMES = ("climbing", "resting", "running", "walking")  # the outputs in the order that `evenflow export` prints
STEPS = 50  # of each window

with open("test.csv", encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
sequences = [row["sequence"] for row in rows[::STEPS]]
numbers = np.array([[row["ax"], row["ay"], row["az"]] for row in rows], np.float32)
x = numbers.reshape(-1, STEPS, 3).transpose(1, 0, 2)  # time first: (T, B, I)
y, h_n = onnxruntime.InferenceSession("model.onnx").run(None, {"x": x})

with open("from_onnx.csv", "w", encoding="utf-8", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["sequence", "prediction", *(f"probability_{name}" for name in NAMES)])
    for sequence, probabilities in zip(sequences, y, strict=True):
        writer.writerow([sequence, NAMES[probabilities.argmax()], *probabilities])
