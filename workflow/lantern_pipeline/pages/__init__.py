"""The race: a page on which methods draw a prompt side by side, token by token, at the pace that was recorded."""
