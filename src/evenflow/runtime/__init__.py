"""What the library needs of the machine: compilers of C and CUDA, CUDA graphs, and questions about torch's state."""
