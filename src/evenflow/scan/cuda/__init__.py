"""The recurrences as CUDA kernels: all steps in one launch, the recurrent matrix in registers; see docs/kernels.md."""
