"""Common to both directions: messages and their streams, tasks, texts for models, the SDK's log."""
