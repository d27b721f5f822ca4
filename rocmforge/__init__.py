"""ROCmForge: a GGUF inference engine inside an asv benchmark and regression suite."""
