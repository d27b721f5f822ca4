"""The CPU backend: compiled kernels for AVX-512, AVX2 and portable C++."""
