"""The HTTP interface for programs: an OpenAI-compatible API, health, warm-up and metrics."""
