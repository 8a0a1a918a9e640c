"""The demo's engine behind an HTTP endpoint that OpenAI's clients can talk to. Needs the extra `serve`."""
