"""The GPU backend: HIP kernels on AMD through hip-python, on NVIDIA through cuda-bindings."""
