"""What a serving flag does to a language model's speed and to its output bytes."""

__version__ = "0.1.0"
