"""Drafters: what a step proposes; see `lantern.methods` for the table of them."""
