#!/bin/sh
# All commands of README.md, in this folder. Needs evenflow with the lab; onnx and onnxruntime for ONNX, gcc for C.
set -eu
cd "$(dirname "$0")"
rm -rf runs/motion

python make_data.py
evenflow train csv:train.csv sgornn --folder runs/motion -t group=person -t share=0.25 --hidden 16 --epochs 30 --lr 0.02
evenflow evaluate runs/motion test.csv
evenflow predict runs/motion test.csv --out predictions.csv

if python -c "import onnx, onnxruntime"; then
    evenflow export runs/motion model.onnx
    python run_onnx.py
    python compare.py from_onnx.csv
fi

if command -v gcc > /dev/null; then
    evenflow export runs/motion model.c
    gcc -std=c99 -O2 -Wall -Wextra main.c model.c -lm -o motion
    ./motion < test.csv > from_c.csv
    python compare.py from_c.csv
fi
