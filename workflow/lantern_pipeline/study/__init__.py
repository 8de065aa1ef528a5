"""The perceptual study: which pairs of images are shown, the page that shows them, what its readers preferred."""
