"""A step's passes over all time steps as CUDA, on the tiles and exchanges of ``scan/cuda``.

A cluster of blocks runs some rows of the batch through all steps; every thread owns some units of a row, its *items*,
and keeps their numbers in registers. A matrix product is a *stage*: its inputs are published to all blocks, and each
thread gets the sums of its items. Sums over units are stages without weights, and so are products that make a number
per row (`narrow_products`). A number per row is kept by every thread that has a unit of the row.

A stage is *carried* where the step before has published its inputs: states, or in the backward pass gradients that only
the step before reads. It runs at the start of a step. The other stages publish and multiply in the middle of a step.
"""

from evenflow.step.emit_cuda.cuda_backward import CudaBackward
from evenflow.step.emit_cuda.cuda_direction import CudaDirection
from evenflow.step.emit_cuda.cuda_forward import CudaForward
from evenflow.step.emit_cuda.cuda_stages import CudaStage

__all__ = ["CudaBackward", "CudaDirection", "CudaForward", "CudaStage"]
