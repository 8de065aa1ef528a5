"""Image tokenizers, which turn images into codes and codes into images."""
