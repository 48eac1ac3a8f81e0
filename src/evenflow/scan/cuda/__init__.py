"""The CUDA engine: all steps of a recurrence in one launch, the recurrent matrix in registers; see docs/kernels.md."""
