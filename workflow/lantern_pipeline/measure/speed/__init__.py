"""Speed: time and memory of images, steps and their parts."""
