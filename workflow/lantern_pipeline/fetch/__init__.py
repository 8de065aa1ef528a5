"""Files from elsewhere: what the config says of them, how they are fetched and how a job finds them."""
