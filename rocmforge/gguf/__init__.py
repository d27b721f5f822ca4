"""Reading GGUF files, and the weight formats in them."""
