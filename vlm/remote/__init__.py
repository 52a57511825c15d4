"""Answer with a model on another machine: any server that speaks OpenAI's API."""
