"""Quality of images: metrics of single images and of sets of images."""
