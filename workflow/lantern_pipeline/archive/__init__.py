"""What made a result, one archive of it, and its images drawn again."""
