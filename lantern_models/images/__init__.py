"""Image tokenizers, which turn codes into pixels."""
