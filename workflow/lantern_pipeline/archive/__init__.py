"""What made a result, its files compared with their checksums, and its images drawn again."""
