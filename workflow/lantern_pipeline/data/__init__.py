"""What goes in and what lies between stages: prompts, images, codes, features, tables."""
