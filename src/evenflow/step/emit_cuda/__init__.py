"""A step's passes over all time steps as CUDA, on the tiles and exchanges of ``scan/cuda``.

A cluster of blocks runs some rows of the batch through all steps; every thread owns some units of a row and keeps their
numbers in registers. A product is a *stage*: its inputs are published to all blocks, and each thread gets the sums of
its units. Sums over units are products with ones, so that they need nothing of their own. A number per row is kept by
every thread that has a unit of the row.

A stage whose inputs the step before has published (the states, or going back the gradients that wait for the step
before) runs at the start of a step; the others publish and multiply in its middle.
"""

from evenflow.step.emit_cuda.cuda_backward import CudaBackward
from evenflow.step.emit_cuda.cuda_direction import CudaDirection
from evenflow.step.emit_cuda.cuda_forward import CudaForward
from evenflow.step.emit_cuda.cuda_stages import CudaStage

__all__ = ["CudaBackward", "CudaDirection", "CudaForward", "CudaStage"]
