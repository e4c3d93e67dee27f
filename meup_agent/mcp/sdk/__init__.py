"""Common to both directions: tasks, texts for models, and the SDK's own log."""
