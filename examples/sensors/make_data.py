"""Write train.csv and test.csv: made-up windows of an accelerometer on a belt, for four motions of eighteen people.

Each window is 2 seconds at 25 Hz of the acceleration along three axes in g. Nobody wore a sensor: the numbers are drawn
from simple equations, with a fixed seed. They are gravity, which falls on the axes as the person wears the sensor, a
swing at the rate of the steps with one overtone, and noise. Twelve people are in train.csv, the other six in test.csv.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

RATE, STEPS, WINDOWS = 25, 50, 8  # samples a second, samples of a window, windows of each motion and person
PEOPLE = {"train.csv": range(1, 13), "test.csv": range(13, 19)}
# Steps a second; swing in g forward, sideways and up; share of the overtone.
MOTIONS = {
    "climbing": (1.3, (0.24, 0.20, 0.22), 0.7),
    "resting": (0.3, (0.02, 0.02, 0.02), 0.0),
    "running": (2.7, (0.45, 0.30, 1.00), 0.3),
    "walking": (1.9, (0.18, 0.12, 0.34), 0.2),
}


def windows(motion: str, generator: np.random.Generator) -> np.ndarray:
    """The windows of one person ``(WINDOWS, STEPS, 3)``."""
    rate, swing, overtone = MOTIONS[motion]
    each = WINDOWS, 1, 1  # rate and size differ from person to person and from window to window
    rate = rate * generator.normal(1, 0.05) * generator.normal(1, 0.05, each)
    size = np.array(swing) * generator.normal(1, 0.12, 3) * generator.normal(1, 0.15, each)
    time = np.arange(STEPS)[:, None] / RATE
    phase = 2 * np.pi * (rate * time + generator.uniform(size=each) + np.array([0.0, 0.25, 0.1]))
    noise = generator.normal(0, 0.08, (WINDOWS, STEPS, 3))
    return size * (np.sin(phase) + overtone * np.sin(2 * phase)) + noise


def main(folder: Path) -> None:
    generator = np.random.default_rng(7)
    for name, people in PEOPLE.items():
        with open(folder / name, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["sequence", "person", "time", "ax", "ay", "az", "target"])
            for person in people:
                tilt = generator.normal(0, 0.07, 2)
                gravity = np.array([*tilt, np.sqrt(1 - tilt @ tilt)])
                number = 0
                for motion in MOTIONS:
                    for window in windows(motion, generator) + gravity:
                        number += 1
                        for step, values in enumerate(window):
                            name = f"p{person}-{number:02}", f"p{person}"
                            writer.writerow([*name, f"{step / RATE:.2f}", *(f"{v:.3f}" for v in values), motion])


if __name__ == "__main__":
    main(Path(__file__).parent)
