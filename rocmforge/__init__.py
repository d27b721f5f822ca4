"""ROCmForge: GGUF inference with fused HIP kernels, and its benchmark and regression suite."""
