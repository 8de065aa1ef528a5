"""HTML pages of a run: the race and the preference study.

In the race, several methods generate an image of one prompt side by side, at the recorded pace.
"""
