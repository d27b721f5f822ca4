"""Text and token ids: tokenizers, vocabularies, chat templates."""
