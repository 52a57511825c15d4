"""Talk to pictures with Qwen3-VL on machines without a GPU."""
